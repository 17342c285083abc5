"""Nearest upsampling by two before a convolution, as one transposed convolution of the smaller picture."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from togi.graph.composites import unwritten
from togi.graph.edit import EditableGraph, arguments, is_call, shape
from togi.graph.linear import Linear, linear

aten = torch.ops.aten


def fold_upsampling(graph: EditableGraph) -> int:
    """Each upsampling that a convolution alone reads goes into that convolution. Returns how many."""
    return sum(_fold(graph, node) for node in graph.nodes if is_call(node, "conv2d.default", "conv2d.padding"))


def _fold(graph: EditableGraph, node: Node) -> bool:
    upsampling = node.args[0]
    if not is_call(upsampling, "upsample_nearest2d.vec") or not isinstance(upsampling, Node):
        return False
    source, call = arguments(upsampling)["input"], linear(graph, node)
    if call is None or len(upsampling.users) != 1 or not _doubles(upsampling) or not _fits(call):
        return False
    if not unwritten(graph, source, node):
        return False
    was = graph.constant(arguments(node)["weight"])
    assert was is not None  # it is a Linear
    weight, padding = _through_pairs(call.weight).to(was.dtype), [k - 1 - p for k, p in _sides(call)]
    if not weight.isfinite().all():
        return False
    key = ("upsampled", arguments(node)["weight"])
    given = {
        "input": source,
        "weight": graph.shared_constant(key, lambda: weight, f"{node.name}_weight", node),
        "bias": arguments(node)["bias"],
        "stride": [2, 2],
        "padding": padding,
    }
    return graph.replace_if_laid_out_alike(node, [graph.call_with(aten.conv_transpose2d.input, given, before=node)])


def _doubles(upsampling: Node) -> bool:
    """True if both sides become twice as long: by factors, or by fixed sizes."""
    given = arguments(upsampling)
    if given["scale_factors"] is not None:
        return list(given["scale_factors"]) == [2.0, 2.0]
    before, after = shape(given["input"])[2:], shape(upsampling)[2:]
    return all(type(size) is int for size in (*before, *after)) and [2 * size for size in before] == list(after)


def _fits(call: Linear) -> bool:
    """True if it has stride 1 and one group; the sum takes fewer products where the kernel is larger than 1 x 1."""
    plain = {*call.stride, *call.dilation, call.groups} == {1}
    return plain and all(p < k and k > 1 for k, p in _sides(call))


def _sides(call: Linear) -> list[tuple[int, int]]:
    """Kernel and padding, of height and width."""
    return list(zip(call.weight.shape[2:], call.padding, strict=True))


def _through_pairs(weight: Tensor) -> Tensor:
    """The kernel that spreads one value as ``weight`` gathers the four it was copied to: ``[in, out, kh + 1, kw + 1]``.

    ``y[j] = sum_t w[t] * x[(j + t - p) // 2]`` is ``sum_i W[j + P - 2 i] * x[i]`` with ``P = k - 1 - p`` and
    ``W[m] = w[k - 1 - m] + w[k - m]``.
    """
    spread = torch.nn.functional.pad(weight.flip(2, 3).transpose(0, 1), (1, 1, 1, 1))
    rows = spread[:, :, 1:] + spread[:, :, :-1]
    return (rows[..., 1:] + rows[..., :-1]).contiguous()
