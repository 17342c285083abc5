"""Parallel linear branches of one input, as kernels on a common grid.

A branch reads ``source`` and ends in a sum: a convolution, a linear layer, the input itself (identity), a batch norm or
factor on the input, an average pool. Each may have a constant scale and shift after it, and one linear call may follow
another if the second is pointwise (low-rank adapters). Everything is float64.

Source: Ding et al., RepVGG, https://arxiv.org/abs/2101.03697; ACNet, https://arxiv.org/abs/1908.03930; Diverse Branch
Block, https://arxiv.org/abs/2103.13425.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from togi.graph.edit import EditableGraph, arguments, call_name, is_call, same_form, shape
from togi.graph.linear import Linear, absorbed, affine, each, linear

DENSER_AT_MOST = 1.5
"""How many times the branches' multiplications the merged kernel may cost: a 1x3 next to a 3x1 is 1.5."""


@dataclass(frozen=True, kw_only=True)
class Branch:
    """``kernel``: ``[out, in / groups, *k]``, or ``[channels, *k]`` where it is ``diagonal`` (one tap set per
    channel)."""

    term: Node
    source: Node
    first: Node
    """The first call of the branch: where it reads the source."""
    kernel: Tensor
    bias: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    diagonal: bool = False
    cost: int = 0
    """Multiplications per output position (0 where nothing is multiplied)."""
    dim: int | None = None
    """Of factors on the input itself: the dimension along which they differ; None: they are the same for all."""

    @property
    def size(self) -> tuple[int, ...]:
        return tuple(self.kernel.shape[1 if self.diagonal else 2 :])

    @property
    def reach(self) -> tuple[int, ...]:
        """Distance between the first and the last tap, per dimension."""
        return tuple(d * (k - 1) for d, k in zip(self.dilation, self.size, strict=True))

    def times(self, factor: float) -> Branch:
        return replace(self, kernel=self.kernel * factor, bias=self.bias * factor)


def readings(graph: EditableGraph, term: Node) -> Iterator[Branch]:
    """The ways to read a term of a sum as a branch of some source; calls passed through have no other user."""
    yield _identity(term, term, torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64), None)
    chain = _linear_chain(graph, term)
    if chain is not None:
        yield chain
    pool = _average_pool(term)
    if pool is not None:
        yield pool
    outer = affine(graph, term)
    if outer is not None and same_form(outer.source, term):
        yield _identity(term, outer.source, outer.scale, outer.shift, outer.dim)


def _identity(term: Node, source: Node, scale: Tensor, shift: Tensor, dim: int | None) -> Branch:
    """Spatial dimensions are added by ``aligned``, where the other branches are known."""
    return Branch(
        term=term,
        source=source,
        first=term,
        kernel=scale,
        bias=shift,
        stride=(),
        padding=(),
        dilation=(),
        diagonal=True,
        dim=dim,
    )


def _linear_chain(graph: EditableGraph, term: Node) -> Branch | None:
    """Scale and shift after a linear call, after another linear call."""
    call = _linear_before(graph, term)
    if call is None or call.transposed:
        return None
    cost, first = call.weight.numel(), call.node
    inner = _linear_before(graph, call.source) if _only_used_once(call.source) else None
    if (
        inner is not None
        and _pointwise(call)
        and not inner.transposed
        and inner.groups == 1
        and inner.spatial == call.spatial
    ):
        outer = call.weight.flatten(1)
        cost, first = cost + inner.weight.numel(), inner.node
        weight = torch.tensordot(outer, inner.weight, dims=1)
        call = replace(inner, weight=weight, bias=outer @ inner.bias + call.bias)
    return Branch(
        term=term,
        source=call.source,
        first=first,
        kernel=call.weight,
        bias=call.bias,
        stride=call.stride,
        padding=call.padding,
        dilation=call.dilation,
        groups=call.groups,
        cost=cost,
    )


def _pointwise(call: Linear) -> bool:
    ones = all(size == 1 for size in (*call.weight.shape[2:], *call.stride))
    return ones and call.groups == 1 and not any(call.padding)


def _linear_before(graph: EditableGraph, node: Node) -> Linear | None:
    """The linear call that ``node`` is, or is a scaled and shifted result of."""
    direct = linear(graph, node)
    if direct is not None:
        return direct
    outer = affine(graph, node)
    if outer is None or not _only_used_once(outer.source) or not same_form(outer.source, node):
        return None
    inner = _linear_before(graph, outer.source)
    return absorbed(inner, outer) if inner is not None else None


def _only_used_once(node: Any) -> bool:
    return isinstance(node, Node) and len(node.users) == 1


def _average_pool(term: Node) -> Branch | None:
    """Average pooling that counts the padding is a convolution with one constant kernel per channel."""
    if not is_call(term, "avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default"):
        return None
    given = arguments(term)
    spatial = int(call_name(term).removeprefix("avg_pool")[0])
    size = each(given["kernel_size"], spatial)
    stride, padding = each(given["stride"] or size, spatial), each(given["padding"], spatial)
    padded = any(padding) and not given["count_include_pad"]
    plain = not given["ceil_mode"] and not given.get("divisor_override") and len(shape(term)) == spatial + 2
    if padded or not plain or not all(type(number) is int for number in (*size, *stride, *padding, shape(term)[1])):
        return None
    kernel = torch.ones(shape(term)[1], *size, dtype=torch.float64)
    kernel = kernel / kernel[0].numel()
    return Branch(
        term=term,
        source=given["self"],
        first=term,
        kernel=kernel,
        bias=torch.zeros(1, dtype=torch.float64),
        stride=stride,
        padding=padding,
        dilation=(1,) * spatial,
        diagonal=True,
        cost=kernel.numel(),
    )


def merged(anchor: Branch, others: Iterable[Branch]) -> Branch | None:
    """The sum of branches of one source as one branch with the anchor's stride and groups, or None.

    None where a branch does not fit the anchor's grid of taps, where the sum's output size would not be that of one of
    the branches for every input size, or where it would cost more than ``DENSER_AT_MOST`` times the branches.
    """
    aligned = [_aligned(branch, anchor) for branch in others]
    branches = [anchor, *(branch for branch in aligned if branch is not None)]
    if len(branches) <= len(aligned):
        return None
    padding = tuple(max(column) for column in zip(*(b.padding for b in branches), strict=True))
    last = [tuple(r - p for r, p in zip(b.reach, b.padding, strict=True)) for b in branches]
    reach = tuple(p + max(column) for p, column in zip(padding, zip(*last, strict=True), strict=True))
    kernel = sum(_placed(branch, anchor.dilation, padding, reach) for branch in branches)
    assert isinstance(kernel, Tensor)
    result = replace(anchor, kernel=kernel, bias=_bias(branches, anchor), padding=padding)
    sizes = {tuple(2 * p - r for p, r in zip(b.padding, b.reach, strict=True)) for b in branches}
    affordable = kernel.numel() <= DENSER_AT_MOST * sum(branch.cost for branch in branches)
    return result if affordable and tuple(2 * p - r for p, r in zip(padding, reach, strict=True)) in sizes else None


def _bias(branches: list[Branch], anchor: Branch) -> Tensor:
    outputs = anchor.kernel.shape[0]
    return torch.stack([b.bias.to(anchor.bias.device).expand(outputs) for b in branches]).sum(0)


def _aligned(branch: Branch, anchor: Branch) -> Branch | None:
    """The branch with dense weights and the anchor's groups and dilation, or None where it does not fit them."""
    spatial, ones = anchor.kernel.dim() - 2, (1,) * (anchor.kernel.dim() - 2)
    channels = 1 if spatial else len(shape(anchor.term)) - 1  # a linear layer has them last
    anywhere = branch.diagonal and not branch.stride  # factors on the input itself: they have no taps
    if branch.dim not in (None, channels) or (not anywhere and len(branch.stride) != spatial):
        return None
    if anywhere and spatial:
        if branch.kernel.numel() == 1:
            branch = replace(branch, kernel=branch.kernel.expand(anchor.kernel.shape[0]))
        kernel = branch.kernel.reshape(-1, *ones)
        branch = replace(branch, kernel=kernel, stride=ones, dilation=ones, padding=(0,) * spatial)
    if branch.diagonal:
        dense = _dense(branch.kernel, anchor)
        if dense is None:
            return None
        branch = replace(branch, kernel=dense, diagonal=False, groups=anchor.groups)
    dilation = tuple(a if k == 1 else d for a, d, k in zip(anchor.dilation, branch.dilation, branch.size, strict=True))
    on_grid = all((a - b) % d == 0 for a, b, d in zip(anchor.padding, branch.padding, anchor.dilation, strict=True))
    same = branch.kernel.shape[:2] == anchor.kernel.shape[:2] and branch.groups == anchor.groups
    fits = same and on_grid and branch.stride == anchor.stride and dilation == anchor.dilation
    return replace(branch, dilation=dilation) if fits else None


def _dense(diagonal: Tensor, anchor: Branch) -> Tensor | None:
    """``[channels, *k]`` (or one value) as ``[channels, channels / groups, *k]``, where there are as many outputs
    as inputs."""
    outputs, per_group = anchor.kernel.shape[:2]
    if outputs != per_group * anchor.groups or diagonal.shape[0] not in (1, outputs):
        return None
    diagonal = diagonal.to(anchor.kernel.device).expand(outputs, *diagonal.shape[1:])
    dense = diagonal.new_zeros(outputs, per_group, *diagonal.shape[1:])
    rows = torch.arange(outputs, device=dense.device)
    dense[rows, rows % per_group] = diagonal
    return dense


def _placed(branch: Branch, dilation: tuple[int, ...], padding: tuple[int, ...], reach: tuple[int, ...]) -> Tensor:
    """The branch's kernel inside the common one: its first tap lies at ``-padding``."""
    size = tuple(r // d + 1 for r, d in zip(reach, dilation, strict=True))
    placed = branch.kernel.new_zeros(*branch.kernel.shape[:2], *size)
    starts = ((p - b) // d for p, b, d in zip(padding, branch.padding, dilation, strict=True))
    place = tuple(slice(start, start + k) for start, k in zip(starts, branch.size, strict=True))
    placed[(slice(None),) * 2 + place] = branch.kernel
    return placed
