"""A process that dropped what it had loaded still takes signals: Ctrl-C, the end that a scheduler asks for, alarms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.artifact.small_artifacts import RECIPES, make
from togi.techniques import all_techniques
from togi.techniques.base import Engine

LOADED_AND_DROPPED = """
import gc, os, signal, sys
from togi.artifact.load import load

signal.signal(signal.SIGTERM, lambda *_: print("taken"))
loaded = [load(sys.argv[1]) for _ in range(3)]
while loaded:
    del loaded[0]  # in the order in which they came
    gc.collect()
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize("engine", sorted(engine for engine in RECIPES if not all_techniques()[engine].inductor))
def test_signals_are_taken_once_artifacts_are_dropped(engine: str, tmp_path: Path) -> None:
    needed = all_techniques()[engine]
    assert isinstance(needed, Engine)
    if missing := [problem for package in needed.packages if (problem := package.missing())]:
        pytest.skip(missing[0])
    make(tmp_path / "net.togi", RECIPES[engine])
    dropped = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", LOADED_AND_DROPPED, str(tmp_path / "net.togi")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert dropped.returncode == 0, dropped.stderr
    assert dropped.stdout.split() == ["taken"] * 3
