"""Engines work in a child forked from a process that imported torch, and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.techniques.engine.child_trials import ENGINES

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="trials fork, and this system cannot")
@pytest.mark.parametrize(
    "ids",
    [
        ("eager", "torchscript", "onnxruntime", "openvino", "ncnn"),
        pytest.param(("torch_compile", "aot_inductor"), marks=pytest.mark.thorough),
    ],
)
def test_engines_run_in_a_forked_child(ids: tuple[str, ...], tmp_path: Path) -> None:
    assert set(ids) <= set(ENGINES)
    done = subprocess.run(
        [sys.executable, "-m", "tests.techniques.engine.child_trials", *ids],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith("togi-")]
    assert not left, "temporary models were left behind"
