"""Slicing rules for operations that move, drop, multiply or reduce dimensions. See ``slicing``."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import fx

from togi.tiling import picking_rules  # noqa: F401 - fills the table
from togi.tiling.slicing import (
    RULES,
    Length,
    NotSliceable,
    Slice,
    SlicedCall,
    SlicingRule,
    arguments,
    broadcast_slice,
    name,
    pointwise,
    rank,
    refuse_unknown_arguments,
    rule,
    sizes,
    value,
)
from togi.torch_internals.dimensions import mixed_dimensions, moved_dimensions, reduced_dimensions

aten = torch.ops.aten


def sliced_call(node: fx.Node, dim: int) -> SlicedCall:
    """The call that computes the slice of ``node`` along ``dim`` (not negative) from slices of its operands.

    Raises:
        NotSliceable: the operation mixes positions of that dimension, has no rule, or none for what it is given.
    """
    known_rule = RULES.get(node.target)
    if known_rule is None and torch.Tag.pointwise in getattr(node.target, "tags", ()):
        known_rule = SlicingRule(pointwise, None)
    if known_rule is None:
        raise NotSliceable(f"{name(node)} has no rule for slices")
    refuse_unknown_arguments(node, known_rule.understands)
    return known_rule.cut(node, dim)


rule(
    *(aten._to_copy.default, aten.clone.default, aten.alias.default, aten.detach.default),
    *(aten.lift_fresh_copy.default, aten.full_like.default, aten.zeros_like.default, aten.ones_like.default),
    # pointwise without torch's tag; the losses are recorded with one result for each element
    *(aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default, aten.soft_margin_loss.default),
    *(aten.binary_cross_entropy.default, aten.binary_cross_entropy_with_logits.default),
    *(aten.log_sigmoid_forward.default, aten.hardswish.default, aten._prelu_kernel.default),
    *(aten.masked_fill.Tensor, aten.rsub.Tensor, aten.floor_divide.default),
    understands=None,
)(pointwise)


def _other(node: fx.Node, dim: int, mixed: Sequence[int], drops: bool = False) -> SlicedCall:
    """The first operand sliced, unless ``dim`` is one of the dimensions that the operation mixes."""
    source: Any = node.args[0]
    count = value(source).dim()
    along = {d % max(count, 1) for d in mixed}
    own = [d for d in range(count) if not (drops and d in along)][dim]
    if own in along:
        raise NotSliceable(f"{name(node)} mixes the positions of dimension {own}")
    return SlicedCall(node.target, (Slice(source, own), *node.args[1:]), node.kwargs)


@rule(operator.getitem, understands=None)
def _item(node: fx.Node, dim: int) -> SlicedCall:
    return SlicedCall(operator.getitem, (Slice(node.args[0], dim), node.args[1]))  # type: ignore[arg-type]


@rule(
    *(aten.glu.default, aten._softmax.default, aten._log_softmax.default, aten.cumsum.default, aten.cumprod.default),
    *(aten.logcumsumexp.default, aten.cummax.default, aten.cummin.default, aten.sort.default, aten.sort.stable),
    *(aten.topk.default, aten.flip.default, aten.roll.default, aten.constant_pad_nd.default),
    aten.native_layer_norm.default,
    understands="self dim dims dtype half_to_float descending stable k largest sorted shifts pad value "
    "input normalized_shape weight bias eps",
)
def _mixed(node: fx.Node, dim: int) -> SlicedCall:
    return _other(node, dim, mixed_dimensions(node.target, arguments(node), rank(node)))


@rule(
    *(aten.slice.Tensor, aten.split.Tensor, aten.split_with_sizes.default),
    understands="self dim start end step split_size split_sizes",
)
def _part_of_dimension(node: fx.Node, dim: int) -> SlicedCall:
    return _other(node, dim, [arguments(node)["dim"]])


@rule(
    aten._native_batch_norm_legit_no_training.default,
    understands="input weight bias running_mean running_var momentum eps",
)
def _batch_norm(node: fx.Node, dim: int) -> SlicedCall:
    return _other(node, dim, [1])


@rule(
    aten.convolution.default,
    understands="input weight bias stride padding dilation transposed output_padding groups",
)
def _convolution(node: fx.Node, dim: int) -> SlicedCall:
    return _other(node, dim, range(1, rank(node)))


@rule(
    *(aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default, aten.logsumexp.default),
    *(aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default, aten.prod.dim_int),
    *(aten.any.dim, aten.all.dim, aten.any.dims, aten.all.dims, aten.var.correction, aten.std.correction),
    *(aten.var_mean.correction, aten.std_mean.correction, aten.linalg_vector_norm.default),
    *(aten.median.dim, aten.kthvalue.default, aten.mode.default),
    understands="self dim keepdim dtype correction ord k",
)
def _reduction(node: fx.Node, dim: int) -> SlicedCall:
    reduced, keepdim = reduced_dims(node)
    return _other(node, dim, reduced, drops=not keepdim)


def reduced_dims(node: fx.Node) -> tuple[list[int], bool]:
    """(dimensions that a reduction reduces, whether they stay with size 1)."""
    given, source = arguments(node), node.args[0]
    return reduced_dimensions(given, value(source).dim()), bool(given.get("keepdim", False))  # type: ignore[arg-type]


@rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default, understands="self size shape")
def _view(node: fx.Node, dim: int) -> SlicedCall:
    """A dimension that survives: same size, and the same number of elements before it."""
    source: Any = node.args[0]
    before, after = sizes(source), sizes(node)
    for own, size in enumerate(before):
        if size == after[dim] and _equal(before[:own], after[:dim]):
            return SlicedCall(aten.reshape.default, (Slice(source, own), _with_length(node.args[1], dim)))
    raise NotSliceable(f"{name(node)} merges or splits the dimension")


def _with_length(shape: Any, dim: int) -> list[Any]:
    return [Length() if i == dim else size for i, size in enumerate(shape)]


def _equal(one: Sequence[sympy.Expr], other: Sequence[sympy.Expr]) -> bool:
    return bool(sympy.expand(sympy.prod(one) - sympy.prod(other)) == 0)


@rule(aten.expand.default, understands="self size")
def _expand(node: fx.Node, dim: int) -> SlicedCall:
    source: Any = node.args[0]
    operand = broadcast_slice(source, dim, rank(node))
    return SlicedCall(aten.expand.default, (operand, _with_length(node.args[1], dim)))


@rule(
    *(aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default),
    *(aten.select.int, aten.unbind.int),
    understands="self dims dim dim0 dim1 index",
)
def _moved(node: fx.Node, dim: int) -> SlicedCall:
    own = _before_moving(node)[dim]
    if own is None:
        raise NotSliceable(f"{name(node)} adds the dimension")
    return SlicedCall(node.target, (Slice(node.args[0], own), *node.args[1:]))  # type: ignore[arg-type]


@rule(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, understands="self dim")
def _squeeze(node: fx.Node, dim: int) -> SlicedCall:
    source: Any = node.args[0]
    kept: list[Any] = _before_moving(node)
    return SlicedCall(aten.squeeze.dims, (Slice(source, kept[dim]), [d for d in range(rank(source)) if d not in kept]))


def _before_moving(node: fx.Node) -> list[int | None]:
    """For each dimension of the result that of the operand."""
    source: Any = node.args[0]
    return moved_dimensions(node.target, arguments(node), sizes(source))


def _factors(left: Any, right: Any, dim: int, batch: int) -> tuple[Any, Any]:
    """Rows are those of the left factor, columns those of the right one; batches are of both."""
    return Slice(left, dim) if dim <= batch else left, Slice(right, dim) if dim != batch else right


@rule(aten.mm.default, aten.bmm.default, understands="self mat2")
def _matmul(node: fx.Node, dim: int) -> SlicedCall:
    left, right = node.args
    return SlicedCall(node.target, _factors(left, right, dim, rank(node) - 2))


@rule(aten.addmm.default, aten.baddbmm.default, understands="self mat1 mat2 batch1 batch2 beta alpha")
def _add_matmul(node: fx.Node, dim: int) -> SlicedCall:
    added: Any = node.args[0]
    left, right, *others = node.args[1:]
    factors = _factors(left, right, dim, rank(node) - 2)
    return SlicedCall(node.target, (broadcast_slice(added, dim, rank(node)), *factors, *others), node.kwargs)


@rule(aten.mv.default, understands="self vec")
def _matrix_vector(node: fx.Node, _dim: int) -> SlicedCall:
    return SlicedCall(node.target, (Slice(node.args[0], 0), node.args[1]))  # type: ignore[arg-type]


@rule(aten._cdist_forward.default, aten._euclidean_dist.default, understands="x1 x2 p compute_mode")
def _distances(node: fx.Node, dim: int) -> SlicedCall:
    left, right = node.args[:2]
    out = rank(node)
    pair: tuple[Any, Any]
    if dim == out - 2:
        pair = Slice(left, rank(left) - 2), right  # type: ignore[arg-type]
    elif dim == out - 1:
        pair = left, Slice(right, rank(right) - 2)  # type: ignore[arg-type]
    else:
        pair = broadcast_slice(left, dim, out), broadcast_slice(right, dim, out)  # type: ignore[arg-type]
    return SlicedCall(node.target, (*pair, *node.args[2:]))


@rule(
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    understands="query key value is_causal attn_mask scale",
)
def _attention(node: fx.Node, dim: int) -> SlicedCall:
    """Heads and samples are independent; so are queries, unless a mask counts their positions."""
    given = arguments(node)
    masked = given["is_causal"] or given.get("attn_mask") is not None
    query, key, against = node.args[:3]
    if dim > 2 or (masked and (dim == 2 or given.get("attn_mask") is not None)):
        raise NotSliceable("attention mixes the positions of the dimension, or masks them by position")
    others = (Slice(key, dim), Slice(against, dim)) if dim < 2 else (key, against)  # type: ignore[arg-type]
    return SlicedCall(node.target, (Slice(query, dim), *others, *node.args[3:]), node.kwargs)  # type: ignore[arg-type]


@rule(
    *(aten.full.default, aten.zeros.default, aten.ones.default),
    understands="size fill_value dtype layout device pin_memory",
)
def _constant(node: fx.Node, dim: int) -> SlicedCall:
    return SlicedCall(node.target, (_with_length(node.args[0], dim), *node.args[1:]), node.kwargs)
