"""Slicing rules for operations that move, drop, pick, multiply or reduce dimensions. See ``slicing``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from togi.tiling.slicing import (
    RULES,
    Call,
    Length,
    NotSliceable,
    Offset,
    Slice,
    arguments,
    broadcast_slice,
    name,
    pointwise,
    rank,
    rule,
    sizes,
    value,
)

aten = torch.ops.aten


def sliced_call(node: fx.Node, dim: int) -> Call:
    """The call that computes the slice of ``node`` along ``dim`` (not negative) from slices of its operands.

    Raises:
        NotSliceable: the operation mixes positions of that dimension, or has no rule.
    """
    known_rule = RULES.get(node.target)
    if known_rule is not None:
        return known_rule(node, dim)
    if torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return pointwise(node, dim)
    raise NotSliceable(f"{name(node)} has no rule for slices")


rule(
    *(aten._to_copy.default, aten.clone.default, aten.alias.default, aten.detach.default),
    *(aten.lift_fresh_copy.default, aten.full_like.default, aten.zeros_like.default, aten.ones_like.default),
    # pointwise without torch's tag; the losses are recorded with one result for each element
    *(aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default, aten.soft_margin_loss.default),
    *(aten.binary_cross_entropy.default, aten.binary_cross_entropy_with_logits.default),
    *(aten.log_sigmoid_forward.default, aten.hardswish.default, aten._prelu_kernel.default),
    *(aten.masked_fill.Tensor, aten.rsub.Tensor, aten.floor_divide.default),
)(pointwise)


def _other(node: fx.Node, dim: int, mixed: Sequence[int], drops: bool = False) -> Call:
    """The first operand sliced, unless ``dim`` is one of the dimensions that the operation mixes."""
    source: Any = node.args[0]
    count = value(source).dim()
    along = {d % max(count, 1) for d in mixed}
    own = [d for d in range(count) if not (drops and d in along)][dim]
    if own in along:
        raise NotSliceable(f"{name(node)} mixes the positions of dimension {own}")
    return Call(node.target, (Slice(source, own), *node.args[1:]), node.kwargs)


@rule(operator.getitem)
def _item(node: fx.Node, dim: int) -> Call:
    return Call(operator.getitem, (Slice(node.args[0], dim), node.args[1]))  # type: ignore[arg-type]


def _mixing(dims: Callable[[fx.Node], Sequence[int]], *targets: Any) -> None:
    """Rules of operations that mix the positions of these dimensions of their first operand, and of no others."""
    rule(*targets)(lambda node, dim: _other(node, dim, dims(node)))


_mixing(
    lambda node: [arguments(node)["dim"]],
    *(aten.glu.default, aten._softmax.default, aten._log_softmax.default, aten.cumsum.default, aten.cumprod.default),
    *(aten.logcumsumexp.default, aten.cummax.default, aten.cummin.default, aten.sort.default, aten.sort.stable),
    *(aten.topk.default, aten.slice.Tensor, aten.split.Tensor, aten.split_with_sizes.default),
)
_mixing(lambda node: arguments(node)["dims"], aten.flip.default)
_mixing(lambda node: arguments(node)["dims"] or range(rank(node)), aten.roll.default)
_mixing(
    lambda node: [-1 - i // 2 for i, amount in enumerate(arguments(node)["pad"]) if amount != 0],
    aten.constant_pad_nd.default,
)
_mixing(
    lambda node: range(rank(node) - len(arguments(node)["normalized_shape"]), rank(node)),
    aten.native_layer_norm.default,
)
_mixing(lambda _: [1], aten._native_batch_norm_legit_no_training.default)
_mixing(lambda node: range(1, rank(node)), aten.convolution.default)


@rule(
    *(aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default, aten.logsumexp.default),
    *(aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default, aten.prod.dim_int),
    *(aten.any.dim, aten.all.dim, aten.any.dims, aten.all.dims, aten.var.correction, aten.std.correction),
    *(aten.var_mean.correction, aten.std_mean.correction, aten.linalg_vector_norm.default),
    *(aten.median.dim, aten.kthvalue.default, aten.mode.default),
)
def _reduction(node: fx.Node, dim: int) -> Call:
    reduced, keepdim = reduced_dims(node)
    return _other(node, dim, reduced, drops=not keepdim)


def reduced_dims(node: fx.Node) -> tuple[list[int], bool]:
    """(dimensions that a reduction reduces, whether they stay with size 1)."""
    given = arguments(node)
    count = value(node.args[0]).dim()  # type: ignore[arg-type]
    dims = given.get("dim", -1 if "dim" in given or node.target in (aten.kthvalue.default, aten.mode.default) else None)
    if dims is None or dims == []:
        dims = range(count)
    listed = [dims] if isinstance(dims, int) else list(dims)
    return [d % max(count, 1) for d in listed], bool(given.get("keepdim", False))


@rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(node: fx.Node, dim: int) -> Call:
    """A dimension that survives: same size, and the same number of elements before it."""
    source: Any = node.args[0]
    before, after = sizes(source), sizes(node)
    for own, size in enumerate(before):
        if size == after[dim] and _equal(before[:own], after[:dim]):
            shape = [Length() if i == dim else given for i, given in enumerate(_given_shape(node))]
            return Call(aten.reshape.default, (Slice(source, own), shape))
    raise NotSliceable(f"{name(node)} merges or splits the dimension")


def _given_shape(node: fx.Node) -> list[Any]:
    shape: Any = node.args[1]
    return list(shape)


def _equal(one: Sequence[sympy.Expr], other: Sequence[sympy.Expr]) -> bool:
    return bool(sympy.expand(sympy.prod(one) - sympy.prod(other)) == 0)


@rule(aten.expand.default)
def _expand(node: fx.Node, dim: int) -> Call:
    source: Any = node.args[0]
    operand = broadcast_slice(source, dim, rank(node))
    shape = [Length() if i == dim else given for i, given in enumerate(_given_shape(node))]
    return Call(aten.expand.default, (operand, shape))


@rule(aten.unsqueeze.default)
def _unsqueeze(node: fx.Node, dim: int) -> Call:
    at = int(node.args[1]) % rank(node)  # type: ignore[arg-type]
    return Call(node.target, (Slice(node.args[0], dim - (dim > at)), at))  # type: ignore[arg-type]


@rule(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def _squeeze(node: fx.Node, dim: int) -> Call:
    source: Any = node.args[0]
    count = value(source).dim()
    given = arguments(node).get("dim", list(range(count)))
    asked = {d % max(count, 1) for d in ([given] if isinstance(given, int) else given)}
    gone = [d for d in sorted(asked) if sizes(source)[d] == 1]
    own = [d for d in range(count) if d not in gone][dim]
    return Call(aten.squeeze.dims, (Slice(source, own), gone))


@rule(aten.permute.default)
def _permute(node: fx.Node, dim: int) -> Call:
    order: Any = node.args[1]
    return Call(node.target, (Slice(node.args[0], order[dim] % rank(node)), order))  # type: ignore[arg-type]


@rule(aten.transpose.int)
def _transpose(node: fx.Node, dim: int) -> Call:
    one, other = (int(d) % rank(node) for d in node.args[1:])  # type: ignore[arg-type]
    own = {one: other, other: one}.get(dim, dim)
    return Call(node.target, (Slice(node.args[0], own), one, other))  # type: ignore[arg-type]


@rule(aten.t.default)
def _t(node: fx.Node, dim: int) -> Call:
    return Call(node.target, (Slice(node.args[0], rank(node) - 1 - dim),))  # type: ignore[arg-type]


@rule(aten.select.int, aten.unbind.int)
def _one_of(node: fx.Node, dim: int) -> Call:
    return _other(node, dim, [arguments(node)["dim"]], drops=True)


@rule(aten.cat.default, aten.stack.default)
def _joined(node: fx.Node, dim: int) -> Call:
    parts: Any = node.args[0]
    along = arguments(node)["dim"] % rank(node)
    if dim == along:
        raise NotSliceable(f"{name(node)} joins tensors along the dimension")
    own = dim - (dim > along) if node.target is aten.stack.default else dim
    return Call(node.target, ([Slice(part, own) for part in parts], along))


@rule(aten.gather.default)
def _gather(node: fx.Node, dim: int) -> Call:
    source, along, index = node.args[:3]
    along = int(along) % rank(node)  # type: ignore[arg-type]
    if dim == along:
        return Call(node.target, (source, along, Slice(index, dim)))  # type: ignore[arg-type]
    if not statically_known_true(value(source).shape[dim] == value(index).shape[dim]):  # type: ignore[arg-type]
        raise NotSliceable("aten.gather reads only a part of the dimension")
    return Call(node.target, (Slice(source, dim), along, Slice(index, dim)))  # type: ignore[arg-type]


@rule(aten.index_select.default)
def _index_select(node: fx.Node, dim: int) -> Call:
    source, along, index = node.args[:3]
    along = int(along) % rank(node)  # type: ignore[arg-type]
    if dim == along:
        return Call(node.target, (source, along, Slice(index, 0)))  # type: ignore[arg-type]
    return Call(node.target, (Slice(source, dim), along, index))  # type: ignore[arg-type]


@rule(aten.embedding.default)
def _embedding(node: fx.Node, dim: int) -> Call:
    table, index = node.args[:2]
    if dim < rank(index):  # type: ignore[arg-type]
        return Call(aten.embedding.default, (table, Slice(index, dim)))  # type: ignore[arg-type]
    return Call(aten.embedding.default, (Slice(table, 1), index))  # type: ignore[arg-type]


@rule(aten.index.Tensor)
def _index(node: fx.Node, dim: int) -> Call:
    """Index tensors in neighbouring positions: their broadcast dimensions stand where the first one stood."""
    source: Any = node.args[0]
    indices: Any = list(node.args[1])  # type: ignore[arg-type]
    at = [i for i, index in enumerate(indices) if index is not None]
    if any(value(indices[i]).dtype == torch.bool for i in at) or at != list(range(at[0], at[0] + len(at))):
        raise NotSliceable("aten.index picks by a mask, or along dimensions that are not neighbours")
    picked = max(rank(indices[i]) for i in at)
    counted = next((i for i in at if _counts_all(indices[i], source, i)), None)
    if picked == 1 and dim == at[0] and counted is not None:
        chosen = [broadcast_slice(i, 0, 1) if i is not None else None for i in indices]
        chosen[counted] = None
        return Call(pick_of_each, (Slice(source, counted), chosen, counted))
    if at[0] <= dim < at[0] + picked:
        chosen = [broadcast_slice(i, dim - at[0], picked) if i is not None else None for i in indices]
        return Call(node.target, (source, chosen))
    own = dim if dim < at[0] else dim - picked + len(at)
    return Call(node.target, (Slice(source, own), indices))


def _counts_all(index: fx.Node, source: fx.Node, dim: int) -> bool:
    """``arange`` over the whole of a dimension: ``x[arange(n), i]`` picks one element of each row."""
    if index.target not in (aten.arange.default, aten.arange.start, aten.arange.start_step):
        return False
    given = arguments(index)
    from_zero = given.get("start", 0) == 0 and given.get("step", 1) == 1
    return from_zero and statically_known_true(value(index).shape[0] == value(source).shape[dim])


@rule(aten.mm.default, aten.bmm.default)
def _matmul(node: fx.Node, dim: int) -> Call:
    left, right = node.args
    batch = rank(node) - 2
    if dim < batch:
        return Call(node.target, (Slice(left, dim), Slice(right, dim)))  # type: ignore[arg-type]
    if dim == batch:
        return Call(node.target, (Slice(left, dim), right))  # type: ignore[arg-type]
    return Call(node.target, (left, Slice(right, dim)))  # type: ignore[arg-type]


@rule(aten.addmm.default, aten.baddbmm.default)
def _add_matmul(node: fx.Node, dim: int) -> Call:
    added, left, right = node.args[:3]
    batch = rank(node) - 2
    first = broadcast_slice(added, dim, rank(node))  # type: ignore[arg-type]
    operands = (
        Slice(left, dim) if dim <= batch else left,  # type: ignore[arg-type]
        Slice(right, dim) if dim != batch else right,  # type: ignore[arg-type]
    )
    return Call(node.target, (first, *operands, *node.args[3:]), node.kwargs)


@rule(aten.mv.default)
def _matrix_vector(node: fx.Node, _dim: int) -> Call:
    return Call(node.target, (Slice(node.args[0], 0), node.args[1]))  # type: ignore[arg-type]


@rule(aten._cdist_forward.default, aten._euclidean_dist.default)
def _distances(node: fx.Node, dim: int) -> Call:
    left, right = node.args[:2]
    out = rank(node)
    pair: tuple[Any, Any]
    if dim == out - 2:
        pair = Slice(left, rank(left) - 2), right  # type: ignore[arg-type]
    elif dim == out - 1:
        pair = left, Slice(right, rank(right) - 2)  # type: ignore[arg-type]
    else:
        pair = broadcast_slice(left, dim, out), broadcast_slice(right, dim, out)  # type: ignore[arg-type]
    return Call(node.target, (*pair, *node.args[2:]))


@rule(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _attention(node: fx.Node, dim: int) -> Call:
    """Heads and samples are independent; so are queries, unless a mask counts their positions."""
    given = arguments(node)
    masked = given["is_causal"] or given.get("attn_mask") is not None
    query, key, against = node.args[:3]
    if dim > 2 or (masked and (dim == 2 or given.get("attn_mask") is not None)):
        raise NotSliceable("attention mixes the positions of the dimension, or masks them by position")
    others = (Slice(key, dim), Slice(against, dim)) if dim < 2 else (key, against)  # type: ignore[arg-type]
    return Call(node.target, (Slice(query, dim), *others, *node.args[3:]), node.kwargs)  # type: ignore[arg-type]


@rule(aten.full.default, aten.zeros.default, aten.ones.default)
def _constant(node: fx.Node, dim: int) -> Call:
    shape: Any = node.args[0]
    sliced = [Length() if i == dim else given for i, given in enumerate(shape)]
    return Call(node.target, (sliced, *node.args[1:]), node.kwargs)


@rule(aten.slice_scatter.default, aten.select_scatter.default)
def _assignment(node: fx.Node, dim: int) -> Call:
    """``x[:, 3] = y``, as it is written without changing ``x``."""
    target, source = node.args[:2]
    given = arguments(node)
    along = int(given["dim"]) % rank(node)
    if dim == along:
        raise NotSliceable(f"{name(node)} writes to places of the dimension")
    own = dim - (dim > along) if node.target is aten.select_scatter.default else dim
    return Call(node.target, (Slice(target, dim), Slice(source, own), *node.args[2:]), node.kwargs)  # type: ignore[arg-type]


@rule(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _positions(node: fx.Node, _dim: int) -> Call:
    given = arguments(node)
    counted = value(node)
    if counted.is_floating_point():
        raise NotSliceable("a floating-point aten.arange is not cut: its roundings depend on where it begins")
    return Call(
        positions,
        (given.get("start", 0), given.get("step", 1), Offset(), Length()),
        {"dtype": counted.dtype, "device": counted.device},
    )


def pick_of_each(source: Tensor, indices: Sequence[Tensor | None], dim: int) -> Tensor:
    """``source[..., i, arange(n), j, ...]`` with the ``arange`` at ``dim``."""
    own = torch.arange(source.shape[dim], device=source.device)
    return aten.index.Tensor(source, [own if i == dim else index for i, index in enumerate(indices)])  # type: ignore[no-any-return]


def positions(start: int, step: int, offset: int, length: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A piece of an ``arange``: ``length`` elements from its element ``offset`` on."""
    first = start + offset * step
    return torch.arange(first, first + length * step, step, dtype=dtype, device=device)
