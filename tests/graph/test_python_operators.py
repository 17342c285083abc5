"""Operators with a Python body are what their body calls, in a captured graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.small_modules import Computes
from togi.core.errors import Refused
from togi.graph.capture import GraphModule, capture, export, held_for
from togi.graph.python_operators import grouped_product
from togi.techniques import conformance, technique
from togi.techniques.base import Options
from togi.torch_internals.operators import is_python_operator

_THOROUGH = pytest.mark.thorough(30)


@torch.library.custom_op("togi_tests::gated", mutates_args=())
def gated(x: Tensor, weight: Tensor, scale: float) -> Tensor:
    half = x.shape[-1] // 2
    return torch.nn.functional.linear(torch.sigmoid(x[..., :half]) * x[..., half:], weight) * scale


@gated.register_fake
def _(x: Tensor, weight: Tensor, _scale: float) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("togi_tests::low_and_high", mutates_args=())
def low_and_high(x: Tensor) -> tuple[Tensor, Tensor]:
    found = x.clone()
    found.add_(1.0)
    return found.amin(0), found.amax(0)


@low_and_high.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x[0]), torch.empty_like(x[0])


@torch.library.custom_op("togi_tests::reads", mutates_args=())
def reads(x: Tensor) -> Tensor:
    return x * 2 if float(x.sum()) > 0 else x * 3


@reads.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("togi_tests::leaves_torch", mutates_args=())
def leaves_torch(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() + 1)


@leaves_torch.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("togi_tests::writes", mutates_args=("x",))
def writes(x: Tensor) -> None:
    x.mul_(2)


def _by_group(rows: Tensor, weights: Tensor, ends: Tensor, *, last: bool) -> Tensor:
    found = torch.zeros(rows.size(0), weights.size(2), dtype=rows.dtype)
    begin = 0
    for group, end in enumerate(ends.tolist()):
        if begin != end:
            torch.mm(rows[begin:end], weights[group if last else -1 - group], out=found[begin:end])
        begin = end
    return found


@torch.library.custom_op("togi_tests::by_group", mutates_args=())
def by_group(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return _by_group(rows, weights, ends, last=True)


@torch.library.custom_op("togi_tests::by_group_backwards", mutates_args=())
def by_group_backwards(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return _by_group(rows, weights, ends, last=False)


for operator in (by_group, by_group_backwards):
    operator.register_fake(lambda rows, weights, _: rows.new_empty(rows.size(0), weights.size(2)))


class Experts(nn.Module):
    """Sorts rows by the expert that they belong to, as a mixture of experts does."""

    def __init__(self, product: Callable[..., Any], count: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(6, count)
        self.weights = nn.Parameter(torch.randn(count, 6, 5))
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).argmax(1)
        order = chosen.argsort(stable=True)
        last = len(self.weights) - 1
        counts = torch.histc(chosen.float(), last + 1, 0, last)  # as transformers does it
        found: Tensor = self.product(x[order], self.weights, counts.cumsum(0).to(torch.int32))
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0])
        return found[back]


def python_operators(graph: Any) -> list[str]:
    return [str(node.target) for node in graph.nodes if is_python_operator(node.target)]


def captured(module: nn.Module, *samples: Any) -> Any:
    """The candidate, and what its graph answers to a sample."""
    start = conformance.candidate_of(module, list(samples))
    program = export(start)
    held_for(start, program)
    return start, GraphModule(capture(start), start.signature)


@pytest.mark.parametrize("sizes", [(3,), (3, 5)])
def test_a_body_that_can_be_traced_stands_in_the_place_of_its_operator(sizes: tuple[int, ...]) -> None:
    weight = torch.randn(2, 4)
    start, graph = captured(Computes(lambda x: gated(x, weight, 0.5) + 1), *(torch.randn(n, 8) for n in sizes))
    assert python_operators(graph.graph.graph) == []
    x = torch.randn(sizes[-1], 8)
    torch.testing.assert_close(graph(x), start.module(x))
    if len(sizes) > 1:
        wider = torch.randn(9, 8)
        torch.testing.assert_close(graph(wider), start.module(wider))


def test_several_results_are_taken_apart() -> None:
    start, graph = captured(Computes(lambda x: low_and_high(x)[1] - low_and_high(x)[0]), torch.randn(3, 4))
    assert python_operators(graph.graph.graph) == []
    x = torch.randn(3, 4)
    torch.testing.assert_close(graph(x), start.module(x))


@pytest.mark.parametrize("operator", [reads, leaves_torch])
def test_a_body_that_cannot_be_traced_stays(operator: Callable[..., Any]) -> None:
    start, graph = captured(Computes(lambda x: operator(x) + 1), torch.randn(3, 4))
    assert len(python_operators(graph.graph.graph)) == 1
    for x in (torch.ones(3, 4), -torch.ones(3, 4)):
        torch.testing.assert_close(graph(x), start.module(x))


def test_one_that_writes_stays() -> None:
    def call(x: Tensor) -> Tensor:
        found = x + 1
        writes(found)
        return found

    try:
        start, graph = captured(Computes(call), torch.randn(3, 4))
    except Refused:  # torch.export may not take it at all
        return
    x = torch.randn(3, 4)
    torch.testing.assert_close(graph(x), start.module(x))


@pytest.mark.parametrize("sizes", [(7,), (7, 12)])
def test_a_product_by_groups_is_known_by_its_answers(sizes: tuple[int, ...]) -> None:
    start, graph = captured(Experts(lambda *given: by_group(*given)), *(torch.randn(n, 6) for n in sizes))
    assert python_operators(graph.graph.graph) == []
    for x in (torch.randn(sizes[-1], 6), torch.zeros(sizes[-1], 6)):  # all rows to one expert
        torch.testing.assert_close(graph(x), start.module(x))


def test_one_that_answers_otherwise_is_none() -> None:
    start, graph = captured(Experts(lambda *given: by_group_backwards(*given)), torch.randn(7, 6))
    assert len(python_operators(graph.graph.graph)) == 1
    x = torch.randn(7, 6)
    torch.testing.assert_close(graph(x), start.module(x))


@pytest.mark.parametrize("ends", [[2, 5, 6, 9], [0, 0, 9, 9], [1, 1, 4, 7], [0, 0, 0, 0]])
@pytest.mark.parametrize("gathered", [True, False])
def test_the_product_is_that_of_a_loop(ends: list[int], gathered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("togi.graph.python_operators._GATHERED_BYTES", 1 << 20 if gathered else 0)
    rows, weights, at = torch.randn(9, 3), torch.randn(4, 3, 5), torch.tensor(ends)
    rows[-1] = float("nan") if ends[-1] < 9 else 1.0
    torch.testing.assert_close(grouped_product(rows, weights, at), _by_group(rows, weights, at, last=True))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [4, 20])
def test_rows_are_multiplied_alone_and_in_blocks(count: int, transposed: bool) -> None:
    """Of as many rows as a group has in the mean; groups may be empty, and rows behind the last."""
    torch.manual_seed(0)
    weights = torch.randn(count, 5, 3).transpose(1, 2) if transposed else torch.randn(count, 3, 5)
    for most in (0, 9, 19, 19):
        rows, ends = torch.randn(19, 3), torch.randint(0, most + 1, (count,)).sort().values
        torch.testing.assert_close(grouped_product(rows, weights, ends), _by_group(rows, weights, ends, last=True))


def test_many_groups_are_inlined_where_the_rows_are_known() -> None:
    start, graph = captured(Experts(lambda *given: by_group(*given), count=40), torch.randn(90, 6))
    assert python_operators(graph.graph.graph) == []
    for x in (torch.randn(90, 6), torch.zeros(90, 6)):
        torch.testing.assert_close(graph(x), start.module(x))


ENGINES: dict[str, Options] = {
    "openvino": {},
    "onnxruntime": {"spinning": False},
    "aot_inductor": {"freezing": True, "max_autotune": False},
}


@pytest.mark.parametrize("rows", [7, 11])  # of four groups: alone, and in blocks of two
@pytest.mark.parametrize("id", [pytest.param(id, marks=_THOROUGH if id == "aot_inductor" else ()) for id in ENGINES])
def test_an_engine_takes_it(id: str, rows: int) -> None:
    """Also one that would call the body from its own threads (AOTInductor), where two callers waited for ever."""
    for package in technique(id).packages:
        pytest.importorskip(package.distribution)
    start = conformance.candidate_of(Experts(lambda *given: by_group(*given)), [torch.randn(rows, 6)])
    program = technique(id).apply(start, ENGINES[id]).program
    for x in (torch.randn(rows, 6), torch.zeros(rows, 6)):
        torch.testing.assert_close(program(x), start.module(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("bins", "low", "high"), [(32, 0, 31), (4, -3, 3), (5, 0.25, 0.75), (1, 0, 1)])
def test_a_histogram_of_a_given_range_is_comparisons(bins: int, low: float, high: float) -> None:
    start, graph = captured(Computes(lambda x: torch.histc(x, bins, low, high) + 1), torch.randn(3, 40))
    assert torch.ops.aten.histc.default not in {node.target for node in graph.graph.graph.nodes}
    whole = torch.randint(-1, 33, (3, 40)).float()
    for x in (torch.randn(3, 40), whole, torch.full((3, 40), float(high)), torch.rand(3, 40)):
        torch.testing.assert_close(graph(x), start.module(x))


def test_a_histogram_whose_range_values_decide_stays() -> None:
    start, graph = captured(Computes(lambda x: torch.histc(x, 8) + 1), torch.randn(3, 40))
    assert torch.ops.aten.histc.default in {node.target for node in graph.graph.graph.nodes}
    x = torch.randn(3, 40)
    torch.testing.assert_close(graph(x), start.module(x))
