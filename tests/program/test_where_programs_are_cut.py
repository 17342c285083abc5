"""Where a program is cut: modules that it keeps are parts, modules that it makes anew in each run are obstacles."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest, Cuts
from togi.subject.inputs import Inputs, Subject
from togi.subject.program import ProgramModule


class Slow(nn.Module):
    """Takes nearly all of the time of whatever calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(200):
            x = torch.tanh(self.inner(x))
        return x


class Program:
    def __init__(self) -> None:
        self.first = nn.Linear(64, 64)
        self.kept: dict[str, nn.Module] = {}

    def makes_and_keeps(self, x: Tensor) -> list[float]:
        if not self.kept:
            torch.manual_seed(0)
            self.kept["slow"] = Slow()
        found: list[float] = self.kept["slow"](self.first(x)).sum(1).tolist()
        return found

    def makes_anew(self, x: Tensor) -> list[float]:
        torch.manual_seed(0)
        found: list[float] = Slow()(self.first(x)).sum(1).tolist()
        return found


def cuts_of(call: object, folder: Path) -> Cuts:
    program = ProgramModule(call)  # type: ignore[arg-type]
    return find_cuts(Subject(program, Inputs((torch.randn(4, 64),))), CutRequest(folder=str(folder)))


def test_a_module_that_the_first_call_made_is_a_part(tmp_path: Path) -> None:
    cuts = cuts_of(Program().makes_and_keeps, tmp_path)
    assert [part.path for part in cuts.parts] == ["slow"]
    assert cuts.obstacles == ()


def test_a_module_that_each_run_makes_anew_is_an_obstacle(tmp_path: Path) -> None:
    cuts = cuts_of(Program().makes_anew, tmp_path)
    assert cuts.parts == ()
    (obstacle,) = cuts.obstacles
    assert obstacle.module == "Slow"
    assert "make it once and keep it" in obstacle.reason
