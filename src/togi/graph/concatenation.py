"""A convolution of a concatenation, as the sum of the convolutions of what was concatenated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from togi.graph.composites import unwritten
from togi.graph.edit import EditableGraph, arguments, is_call, shape, value
from togi.graph.linear import CONVOLUTIONS, linear

aten = torch.ops.aten

_MOST_PIECES = 3
"""Each costs a pass over the result. A skip connection makes two; densely connected blocks join dozens."""
_LEAST_CHANNELS = 8
"""Of each piece: below it an engine's vectors are mostly empty."""


def split_concatenations(graph: EditableGraph) -> int:
    """Each concatenation of channels that a convolution alone reads goes. Returns how many."""
    return sum(_split(graph, node) for node in graph.nodes if is_call(node, *CONVOLUTIONS))


def _split(graph: EditableGraph, node: Node) -> bool:
    joined, call = arguments(node)["input"], linear(graph, node)
    if call is None or call.groups != 1 or not is_call(joined, "cat.default") or len(joined.users) != 1:
        return False
    pieces = arguments(joined)["tensors"]
    if arguments(joined)["dim"] % len(shape(joined)) != 1 or not _worthwhile(joined, pieces):
        return False
    if not all(unwritten(graph, piece, node) for piece in pieces):
        return False
    return graph.replace_if_laid_out_alike(node, _sum_of_each(graph, node, pieces))


def _worthwhile(joined: Node, pieces: Sequence[Node]) -> bool:
    """Few pieces of enough channels, whose number is known, and of one type."""
    if not 2 <= len(pieces) <= _MOST_PIECES:
        return False
    dtypes = {form.dtype for node in (joined, *pieces) if (form := value(node)) is not None}
    channels = [shape(piece)[1] for piece in pieces]
    return len(dtypes) == 1 and all(type(count) is int and count >= _LEAST_CHANNELS for count in channels)


def _sum_of_each(graph: EditableGraph, node: Node, pieces: Sequence[Node]) -> list[Node]:
    """The calls made, in order; the last is the sum. The bias is the first one's."""
    given, calls, start = arguments(node), list[Node](), 0
    weight = graph.constant(given["weight"])
    assert weight is not None  # it is a Linear
    total: Node | None = None
    for piece in pieces:
        part = weight[:, start : start + shape(piece)[1]]
        key = ("split", given["weight"], start, part.shape[1])
        own = graph.shared_constant(key, part.contiguous, f"{node.name}_weight", node)
        bias = given["bias"] if total is None else None
        calls.append(graph.call_with(node.target, given | {"input": piece, "weight": own, "bias": bias}, before=node))
        if total is not None:
            calls.append(graph.call_with(aten.add.Tensor, {"self": total, "other": calls[-1]}, before=node))
        total, start = calls[-1], start + part.shape[1]
    return calls
