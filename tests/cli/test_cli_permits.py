"""Flags that permit something reach the processes that load a subject, are loud, and end with the command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from togi.cli.app import run
from togi.core.permits import VARIABLE

MODULE = """
import lightning, torch

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.example_input_array = torch.ones(2, 3)
        self.layer = torch.nn.Linear(3, 7)
    def forward(self, x):
        return self.layer(x)
"""


class Touch:
    """Its pickle makes a file when it is read."""

    def __reduce__(self) -> Any:
        return open, ("touched", "w")


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that holds an object besides its weights."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODULE, encoding="utf-8")
    state = {f"layer.{name}": value for name, value in torch.nn.Linear(3, 7).state_dict().items()}
    content = {"state_dict": state, "hyper_parameters": {}, "pytorch-lightning_version": "2.5.0", "callbacks": Touch()}
    torch.save({**content, "epoch": 0, "global_step": 0}, "a.ckpt")
    return "a.ckpt?class=net.py:Net"


@pytest.mark.thorough
def test_a_pickle_is_read_in_the_child_with_the_flag(checkpoint: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", checkpoint, "--trust-pickle", "--json"]) == 0
    assert "togi: --trust-pickle: pickled files of subjects are read in this command" in capfd.readouterr().err
    assert Path("touched").exists()
    assert VARIABLE not in os.environ


@pytest.mark.thorough
def test_it_is_not_without(checkpoint: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", checkpoint]) == 2
    assert "If you trust who made it, add --trust-pickle" in capfd.readouterr().err
    assert not Path("touched").exists()


@pytest.mark.parametrize("command", "tune bench verify memory fit check explain report".split())
def test_each_command_that_loads_subjects_takes_the_flags(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    shown = capfd.readouterr().out
    assert all(flag in shown for flag in ("--download", "--trust-remote-code", "--trust-pickle"))
