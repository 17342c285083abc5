"""A process that dropped what it had loaded still takes signals: Ctrl-C, the end that a scheduler asks for, alarms. And
its forked children can load again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.artifact.small_artifacts import RECIPES, make
from togi.techniques import all_techniques
from togi.techniques.base import Engine

SIGNALS = """
import gc, os, signal, sys
from togi.artifact.load import load

signal.signal(signal.SIGTERM, lambda *_: print("taken"))
loaded = [load(sys.argv[1]) for _ in range(3)]
while loaded:
    del loaded[0]  # in the order in which they came
    gc.collect()
    os.kill(os.getpid(), signal.SIGTERM)
"""
FORKS = """
import gc, os, sys
import torch
from togi.artifact.load import load

torch.set_num_threads(1)  # its own threads are not in a child either
sample = {"x": torch.ones(3, 8), "scale": torch.full((3, 4), 2.0)}

def loads_in_a_child():
    if (child := os.fork()) == 0:
        load(sys.argv[1])(**sample)
        os._exit(0)
    print("taken" if os.waitpid(child, 0)[1] == 0 else "died")

loaded = [load(sys.argv[1]) for _ in range(2)]
for one in loaded:
    one(**sample)
del one
while True:
    gc.collect()
    loads_in_a_child()
    if not loaded:
        break
    del loaded[0]
"""


@pytest.mark.thorough
@pytest.mark.parametrize("script", [SIGNALS, FORKS], ids=["signals", "forks"])
@pytest.mark.parametrize("engine", sorted(engine for engine in RECIPES if not all_techniques()[engine].inductor))
def test_signals_and_forks_once_artifacts_are_dropped(engine: str, script: str, tmp_path: Path) -> None:
    needed = all_techniques()[engine]
    assert isinstance(needed, Engine)
    if missing := [problem for package in needed.packages if (problem := package.missing())]:
        pytest.skip(missing[0])
    make(tmp_path / "net.togi", RECIPES[engine])
    dropped = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script, str(tmp_path / "net.togi")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert dropped.returncode == 0, dropped.stderr
    assert dropped.stdout.split() == ["taken"] * 3
