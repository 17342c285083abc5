"""What operations on large inputs take for themselves, besides their results: measured on a slice of each.

A product copies a factor whose rows and columns are both strided, ``logsumexp`` and ``kthvalue`` copy what they read,
and so on. For an intermediate the tiles are sized so that it fits; an input may be many times larger than the budget,
and an operation that reads it is run as it is where its own result is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


def taken_bytes(
    captured: Captured, tensors: Sequence[Tensor], weights: Weights, limit_bytes: int
) -> dict[fx.Node, int]:
    """The operations that read more than ``limit_bytes`` of what is given and take more than that for themselves, where
    they can be cut into tiles, with what they take."""
    at_hand: dict[fx.Node, Any] = dict(zip(captured.placeholders, (*tensors, *captured.constants), strict=True))
    taken: dict[fx.Node, int] = {}
    with torch.no_grad():
        for node in captured.graph.nodes:
            if node.op != "call_function" or not _is_told_by_sizes(node, weights):
                continue
            if is_number(node) or (weights.is_view(node) and at_hand.keys() >= set(node.all_input_nodes)):
                at_hand[node] = value_of(node, at_hand, weights)
            elif torch.Tag.pointwise not in getattr(node.target, "tags", ()) and any(
                source in at_hand and weights.spread_bytes(source) > limit_bytes for source in node.all_input_nodes
            ):
                needed = _measured(node, captured.graph, at_hand, weights, limit_bytes)
                if needed > limit_bytes:
                    taken[node] = needed
    return taken


def _is_told_by_sizes(node: fx.Node, weights: Weights) -> bool:
    """Not so numbers that are computed from the values of tensors, and what is computed from such numbers."""
    numbers = [each.meta["val"] for each in (node, *node.all_input_nodes) if is_number(each)]
    return all(
        isinstance(number, int | float) or number.node.expr.free_symbols <= weights.values.keys() for number in numbers
    )


def _measured(
    node: fx.Node, graph: fx.Graph, at_hand: Mapping[fx.Node, Any], weights: Weights, limit_bytes: int
) -> int:
    """What the whole takes, by a slice that reads ``limit_bytes`` at most; 0 where it has none, or cannot be seen."""
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
        try:
            peak = peak_of_tile(loop, reads, loop.body, count)
            made = sum(result.nbytes for result in tensors_of(loop.body(*loop.arguments(reads, 0, count))))
        except Exception:  # it refuses these values, or a slice: so will the function itself, or the loop
            return 0
        return 0 if peak is None else (peak - made) * length // count
    return 0


def _products(node: fx.Node) -> Iterator[Product]:
    yield from (Product(node, dim, combined=False) for dim in range(rank(node)))
    yield from (Product(node, dim, combined=True) for dim in streamable_dims(node))


def _stand_in(node: fx.Node, weights: Weights) -> Any:
    """A small value, of which the sizes alone matter."""
    value = node.meta["val"]
    shape = [weights.number(size) for size in size_expressions(value)]
    return torch.zeros(shape, dtype=value.dtype, device=value.device)
