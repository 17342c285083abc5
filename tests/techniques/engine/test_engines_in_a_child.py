"""Engines work in a child forked from a process that imported torch, and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from child_trials import ENGINES

HERE = Path(__file__).parent


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
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(HERE / "child_trials.py"), *ids],
        capture_output=True,
        text=True,
        timeout=280,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith("togi-")]
    assert not left, "temporary models were left behind"
