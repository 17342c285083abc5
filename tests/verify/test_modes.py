"""A module in training mode: run in eval() where that makes no difference, else in the mode that was asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from togi.core.choices import Mode
from togi.core.errors import SubjectError, UnknownNameError
from togi.subject.inputs import Subject
from togi.subject.prepare import prepare
from togi.worker.survey import survey


class Auxiliary(nn.Module):
    """Returns one output more while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        out = self.layer(x)
        return (out, out) if self.training else out


class Counting(Auxiliary):
    """Answers the same, and counts calls while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            self.calls += 1
        return self.layer(x)


class Wanting(Auxiliary):
    """Does not run in training mode without targets."""

    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            raise ValueError("targets should not be none")
        return self.layer(x)


def frozen() -> nn.Module:
    """In training mode but for its batch norm."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    module[1].eval()
    return module


DIFFERENT = {
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
    "instance norm": lambda: nn.InstanceNorm1d(4, track_running_stats=True),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True),
    "recurrent": lambda: nn.GRU(4, 4, num_layers=2, dropout=0.4, batch_first=True),
    "another output": Auxiliary,
    "a buffer": Counting,
    "frozen batch norm": frozen,
}
EQUAL = {
    "linear": lambda: nn.Linear(4, 4),
    "no dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)),
    "fast path": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
    "statistics of the batch": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "runs in eval alone": Wanting,
}


def sample(kind: str) -> torch.Tensor:
    torch.manual_seed(0)
    sequences = kind in ("instance norm", "attention", "recurrent", "fast path")
    return torch.randn(*((3, 4, 4) if sequences else (8, 4))) + 1


@pytest.mark.parametrize("kind", DIFFERENT)
def test_where_the_mode_decides_the_answer_it_is_asked_for(kind: str) -> None:
    module = DIFFERENT[kind]()
    modes = [part.training for part in module.modules()]
    with pytest.raises(SubjectError, match=r"in training mode.*mode='eval'.*mode='as-is'"):
        survey(Subject(module, sample(kind)), captured=False)
    assert not survey(Subject(module, sample(kind), mode="eval"), captured=False).facts.training
    assert survey(Subject(module, sample(kind), mode="as-is"), captured=False).facts.training
    assert [part.training for part in prepare(Subject(module, sample(kind), mode=Mode.AS_IS)).module.modules()] == modes
    assert [part.training for part in module.modules()] == modes


@pytest.mark.parametrize("kind", EQUAL)
def test_where_it_makes_no_difference_nobody_is_asked(kind: str) -> None:
    assert not survey(Subject(EQUAL[kind]().train(), sample(kind)), captured=False).facts.training


def test_parts_that_were_put_into_training_mode_stay_in_it() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.0)).eval()
    module[1].train()
    x = torch.randn(8, 4) + 2
    with torch.no_grad():
        assert torch.equal(prepare(Subject(module, x)).module(x), module(x))
        assert not torch.allclose(prepare(Subject(module, x, mode="eval")).module(x), module(x))


def test_what_answers_differently_each_time_does_not_tell_the_mode() -> None:
    generator = torch.Generator()

    class Drawing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(x.shape, generator=generator)

    assert not survey(Subject(Drawing(), torch.randn(8, 4)), captured=False).facts.repeatable


def test_another_mode_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'eval'"):
        Subject(nn.Linear(4, 4), torch.randn(8, 4), mode="evel")
