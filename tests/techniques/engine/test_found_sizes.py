"""How much a module finds decides its sizes: engines answer as it does for none, one and many, or refuse it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.small_modules import ComputesWith
from tests.techniques.engine.engine_subjects import candidate_of
from togi.core.errors import Refused
from togi.graph.candidate import Candidate
from togi.graph.capture import export, held_for
from togi.techniques.registry import technique


class Finds(ComputesWith):
    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__(function, linear=nn.Linear(4, 4), recurrent=nn.LSTM(4, 4, batch_first=True))


def mask(x: Tensor) -> Tensor:
    return x[:, 0] > 0


def rows(found: int) -> Tensor:
    """Six rows of which so many are found."""
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    x[:, 0] = -x[:, 0].abs()
    x[6 - found :, 0] *= -1
    return x


def nothing_found(_: Finds, x: Tensor) -> Tensor:
    found = torch.nonzero(mask(x)).squeeze(1)
    if found.numel() == 0:
        return x.new_full((4,), -1.0)
    return x[found].mean(0)


def candidate(function: Callable[[Finds, Tensor], Tensor]) -> Candidate:
    torch.manual_seed(0)
    return candidate_of(Finds(function), [rows(3)])


def refused(engine: str, subject: Candidate) -> str:
    options = {"how": "trace", "freeze": True, "optimize": False} if engine == "torchscript" else {}
    with torch.no_grad(), pytest.raises(Refused) as error:
        technique(engine).apply(subject, options)
    return str(error.value)


@pytest.mark.parametrize("engine", ["torchscript", "openvino"])
def test_a_trace_that_holds_that_something_was_found_is_refused(engine: str) -> None:
    subject = candidate(nothing_found)
    told = refused(engine, subject.with_(facts=subject.facts.model_copy(update={"exportable": False})))
    assert "a size that nonzero.default decides" in told
    assert "test_found_sizes.py:" in told
    assert "(`if found.numel() == 0:`)" in told
    assert "torch.where" in told


def test_ncnn_refuses_such_a_trace_too() -> None:
    class Pictures(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if torch.nonzero(x > 0.5).shape[0] < 400 else x

    assert "a size that nonzero.default decides" in refused("ncnn", candidate_of(Pictures(), torch.rand(1, 3, 4, 4)))


ANSWERED: dict[str, Callable[[Finds, Tensor], Tensor]] = {
    "rows": lambda self, x: self.linear(x[mask(x)]),
    "sum": lambda self, x: self.linear(x[mask(x)]).sum(0),
    "beside others": lambda _, x: torch.cat([x[mask(x)], x[:1]]),
    "times one row": lambda self, x: x[mask(x)] * self.linear.weight[:1],
    "attention": lambda _, x: torch.softmax(x[mask(x)] @ x[mask(x)].T, -1) @ x[mask(x)],
    "written back": lambda self, x: (y := x.clone()).__setitem__(mask(x), self.linear(x[mask(x)])) or y,
    "first": lambda _, x: x[mask(x)][:1].sum(0),
    "differences": lambda _, x: x[mask(x)][1:] - x[mask(x)][:-1],
    "columns": lambda _, x: torch.cat(x[mask(x)].unbind(-1)),
    "counted": lambda _, x: torch.arange(x[mask(x)].shape[0]),
}
ENGINES: dict[str, dict[str, Any]] = {
    "torchscript": {"how": "trace", "freeze": True, "optimize": True},
    "openvino": {},
    "onnxruntime": {"spinning": False},
    "aot_inductor": {"freezing": True, "max_autotune": False},
}
SLOWER_TO_BUILD = {
    "onnxruntime": ("rows", "written back"),
    "aot_inductor": ("rows", "attention", "written back", "differences"),
}
"""Engines that take seconds for each case: a few of them."""
CASES = [(engine, name) for engine in ENGINES for name in SLOWER_TO_BUILD.get(engine, ANSWERED)]


@pytest.mark.thorough
@pytest.mark.parametrize(("engine", "name"), CASES)
def test_none_one_and_many_are_answered_as_the_original_does(engine: str, name: str) -> None:
    subject = candidate(ANSWERED[name])
    program = technique(engine).apply(subject, ENGINES[engine]).program
    assert program is not None
    for count in (3, 0, 1, 2, 6):
        with torch.no_grad():
            torch.testing.assert_close(program(rows(count)), subject.module(rows(count)), rtol=1e-4, atol=1e-5)


def test_found_rows_next_to_others_are_captured() -> None:
    subject = candidate(ANSWERED["beside others"])
    program = export(subject)
    assert held_for(subject, program).conditions == subject.signature.conditions
    with torch.no_grad():
        assert program.module()(rows(0))[0].shape == (1, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda _, x: x[torch.nonzero(mask(x)).squeeze()],
        lambda _, x: x[mask(x)].squeeze(0),
        lambda _, x: x[mask(x)].T.squeeze((0, 1)),
    ],
    ids=["squeeze", "dimension", "dimensions"],
)
def test_a_rank_that_is_another_where_one_is_found_is_refused(function: Callable[[Finds, Tensor], Tensor]) -> None:
    subject = candidate(function)
    with pytest.raises(Refused, match=r"decides the number of dimensions.*aten\.squeeze.*small_modules\.py:\d+"):
        export(subject)
    assert "the number of dimensions" in refused("torchscript", subject)


def test_a_rank_that_is_the_same_for_all_is_captured() -> None:
    subject = candidate(lambda _, x: x[torch.nonzero(mask(x)).squeeze(1)].sum(0))
    with torch.no_grad():
        assert torch.equal(export(subject).module()(rows(1))[0], subject.module(rows(1)))
