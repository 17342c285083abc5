"""What operations on large inputs take for themselves, besides their results: measured on a slice of each.

A product copies a factor whose rows and columns are both strided, ``logsumexp`` and ``kthvalue`` copy what they read,
and so on. For an intermediate the tiles are sized so that it fits; an input may be many times larger than the budget,
and an operation that reads it is run as it is where its own result is small.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx

from togi.tiling.capture import Captured
from togi.tiling.combining import streamable_dims
from togi.tiling.loops import Loop, Product, Wanted
from togi.tiling.peak import Weights, is_number
from togi.tiling.program import TileLoop, value_of
from togi.tiling.sizes import size_expressions
from togi.tiling.slicing import NotSliceable, rank
from togi.tiling.tile import peak_of_tile
from togi.torch_internals.tensors import tensors_of


class Needs:
    """What the operations of one graph take, as it was measured: for each, and for each way in which what it reads lies
    in memory."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._per_byte: dict[Hashable, float] = {}
        """Bytes for each one that it reads."""

    def taken_bytes(self, tensors: Sequence[Tensor], weights: Weights, limit_bytes: int) -> dict[fx.Node, int]:
        """The operations that read more than ``limit_bytes`` of what is given and take more than that for themselves,
        where they can be cut into tiles, with what they take."""
        captured = self._captured
        at_hand: dict[fx.Node, Any] = dict(zip(captured.placeholders, (*tensors, *captured.constants), strict=True))
        taken: dict[fx.Node, int] = {}
        with torch.no_grad():
            for node in captured.graph.nodes:
                if node.op != "call_function":
                    continue
                if is_number(node) or (weights.is_view(node) and at_hand.keys() >= set(node.all_input_nodes)):
                    with suppress(TypeError):  # a number that values decide: what it decides is not at hand
                        at_hand[node] = value_of(node, at_hand, weights)
                elif torch.Tag.pointwise not in getattr(node.target, "tags", ()):
                    read = max((weights.spread_bytes(n) for n in node.all_input_nodes if n in at_hand), default=0)
                    needed = self._needed(node, at_hand, weights, limit_bytes) if read > limit_bytes else 0
                    if needed > limit_bytes:
                        taken[node] = needed
        return taken

    def _needed(self, node: fx.Node, at_hand: Mapping[fx.Node, Any], weights: Weights, limit_bytes: int) -> int:
        read = [source for source in node.all_input_nodes if not is_number(source)]
        key = (node, tuple(_lies(at_hand[source]) if source in at_hand else None for source in read))
        if key not in self._per_byte:
            measured = _measured(node, self._captured.graph, at_hand, weights, limit_bytes)
            if measured is None:
                return 0
            self._per_byte[key] = measured
        return int(self._per_byte[key] * sum(map(weights.spread_bytes, read)))


def _lies(tensor: Tensor) -> tuple[Hashable, ...]:
    """How a tensor lies in memory, as far as operations tell by it what they copy."""
    return (tensor.is_contiguous(), *(min(stride, 2) for stride in tensor.stride()))


def _measured(
    node: fx.Node, graph: fx.Graph, at_hand: Mapping[fx.Node, Any], weights: Weights, limit_bytes: int
) -> float | None:
    """What an operation takes for each byte that it reads, by a slice that reads ``limit_bytes`` at most. None where it
    cannot be seen now; 0 where it has no slices, reads a number that values decide, or reads a large intermediate
    and so runs in tiles anyway."""
    others = [source for source in node.all_input_nodes if source not in at_hand]
    if any(is_number(source) or weights.spread_bytes(source) > limit_bytes for source in others):
        return 0.0
    for product in _products(node):
        try:
            call = product.call()
        except NotSliceable:
            continue
        length = weights.number(product.length)
        computed = {} if product.combined else {product.first: call}
        wanted = Wanted(computed, frozenset(call.slices), frozenset(call.whole_nodes))
        loop = TileLoop(Loop((product,), wanted, product.length), graph)
        reads = [at_hand[read] if read in at_hand else _stand_in(read, weights) for read in loop.reads]
        read_bytes = sum(weights.spread_bytes(part.node) for part in call.slices)
        count = max(1, min(length, length * limit_bytes // max(read_bytes, 1)))
        given = loop.arguments(reads, 0, count)
        try:
            peak = peak_of_tile(loop, reads, loop.body, count)
            made = sum(result.nbytes for result in tensors_of(loop.body(*given)))
        except Exception:  # it refuses these values, or a slice: so will the function itself, or the loop
            return 0.0
        return None if peak is None else (peak - made) / max(sum(one.nbytes for one in tensors_of(given)), 1)
    return 0.0


def _products(node: fx.Node) -> Iterator[Product]:
    yield from (Product(node, dim, combined=False) for dim in range(rank(node)))
    yield from (Product(node, dim, combined=True) for dim in streamable_dims(node))


def _stand_in(node: fx.Node, weights: Weights) -> Any:
    """A small value, of which the sizes alone matter."""
    value = node.meta["val"]
    shape = [weights.number(size) for size in size_expressions(value)]
    return torch.zeros(shape, dtype=value.dtype, device=value.device)
