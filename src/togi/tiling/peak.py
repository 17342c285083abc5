"""The peak of what running nodes of a graph allocates: modelled from their sizes, and measured.

The model: every operation that is not a view allocates its result and nothing else, and a value is freed after its last
use. What an operation needs for itself is seen only by the allocator's own account (``peak_bytes``, ``needs``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from togi.tiling.sizes import element_count, evaluate
from togi.torch_internals.profiler import profiler_is_on

aten = torch.ops.aten
VIEWS = {
    *(aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.unsqueeze.default, aten.t.default),
    *(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.permute.default, aten.transpose.int),
    *(aten.slice.Tensor, aten.select.int, aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default),
    *(aten.detach.default, aten.alias.default, operator.getitem),
}
"""Operations that allocate nothing, at the strides of contiguous tensors."""
_COPIED_IN_BLOCKS = 60 * 60
"""Elements of the block through which torch copies a transposed matrix of no fewer (ATen/native/Copy.cpp)."""


def is_number(node: fx.Node) -> bool:
    """A size or another number computed from sizes: known from the inputs' sizes alone."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float)


@dataclass(frozen=True)
class Weights:
    """Bytes at the sizes ``values``. ``copies``: views that are copies at the strides of a call. ``taken``: what some
    operations take for themselves."""

    values: Mapping[sympy.Symbol, int]
    copies: frozenset[fx.Node] = frozenset()
    taken: Mapping[fx.Node, int] = field(default_factory=dict)
    _known: dict[sympy.Expr, int] = field(default_factory=dict)

    def at(self, values: Mapping[sympy.Symbol, int]) -> Weights:
        """Those at other sizes, where it is not known what operations take."""
        return replace(self, values=values, taken={}, _known={})

    def number(self, expression: sympy.Expr) -> int:
        if expression not in self._known:
            self._known[expression] = evaluate(expression, self.values)
        return self._known[expression]

    def spread_bytes(self, node: fx.Node) -> int:
        """Bytes of the node's results if they were written out (an expanded view counts in full)."""
        results = node.meta.get("val")
        parts = results if isinstance(results, list | tuple) else [results]
        return sum(self.number(element_count(part)) * part.element_size() for part in parts if isinstance(part, Tensor))

    def is_view(self, node: fx.Node) -> bool:
        """True if computing the node allocates nothing."""
        return node.target in VIEWS and node not in self.copies

    def own_bytes(self, node: fx.Node) -> int:
        """Bytes that computing the node allocates: none for inputs and views."""
        return 0 if node.op != "call_function" or self.is_view(node) else self.spread_bytes(node)

    def besides_bytes(self, node: fx.Node) -> int:
        """Bytes that computing the node allocates besides its result, where that is known."""
        if node.target is aten.clone.default or node in self.copies:
            block = _COPIED_IN_BLOCKS * int(node.meta["val"].element_size())
            return block if self.spread_bytes(node) >= block else 0
        return self.taken.get(node, 0)

    def copied_bytes(self) -> int:
        """Bytes of all views that are copies."""
        return sum(map(self.spread_bytes, self.copies))


def peak_of(
    steps: Sequence[Hashable],
    uses: Callable[[Any], Iterable[Hashable]],
    allocated: Callable[[Any], float],
    kept: Iterable[Hashable],
    besides: Callable[[Any], float] = lambda _: 0.0,
) -> float:
    """The highest sum of live allocations, running ``steps`` in order.

    Args:
        uses: the steps (or inputs) that a step reads.
        allocated: what a step allocates; 0 for a view, which keeps alive what it reads.
        kept: steps whose values live to the end.
        besides: what a step allocates while it runs.
    """
    last: dict[Hashable, int] = {}
    for at in range(len(steps) - 1, -1, -1):
        for used in uses(steps[at]):
            last.setdefault(used, at)
    last.update(dict.fromkeys(kept, len(steps)))
    for at in range(len(steps) - 1, -1, -1):
        if allocated(steps[at]) == 0:
            for used in uses(steps[at]):
                last[used] = max(last[used], last.get(steps[at], at))
    live = highest = 0.0
    ending: dict[int, float] = {}
    for at, step in enumerate(steps):
        size = allocated(step)
        live += size
        highest = max(highest, live + besides(step))
        end = last.get(step, at)
        ending[end] = ending.get(end, 0.0) + size
        live -= ending.get(at, 0.0)
    return highest


def plain_peak_bytes(graph: fx.Graph, outputs: Sequence[fx.Node], weights: Weights) -> int:
    """The peak of running the graph unchanged, its results included.

    The function itself may need more: Python names keep tensors alive past their last use.
    """
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    return int(peak_of(nodes, lambda node: node.all_input_nodes, weights.own_bytes, outputs, weights.besides_bytes))


def peak_bytes(run: Any, device: str) -> int | None:
    """The allocator's exact peak during ``run``; None where it cannot be had (a profiler is running already)."""
    if device not in ("cpu", "cuda") or (device == "cpu" and profiler_is_on()):
        return None
    from togi.measure.memory import torch_allocator_peak_bytes

    return torch_allocator_peak_bytes(run, device)
