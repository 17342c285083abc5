"""Slicing rules for operations that pick, join or number positions. See ``slicing``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from togi.tiling.slicing import (
    Length,
    NotSliceable,
    Offset,
    Slice,
    SlicedCall,
    arguments,
    broadcast_slice,
    name,
    rank,
    rule,
    value,
)

aten = torch.ops.aten


@rule(aten.cat.default, aten.stack.default, understands="tensors dim")
def _joined(node: fx.Node, dim: int) -> SlicedCall:
    parts: Any = node.args[0]
    along = arguments(node)["dim"] % rank(node)
    if dim == along:
        raise NotSliceable(f"{name(node)} joins tensors along the dimension")
    own = dim - (dim > along) if node.target is aten.stack.default else dim
    return SlicedCall(node.target, ([Slice(part, own) for part in parts], along))


@rule(aten.gather.default, understands="self dim index")
def _gather(node: fx.Node, dim: int) -> SlicedCall:
    source, along, index = node.args[:3]
    along = int(along) % rank(node)  # type: ignore[arg-type]
    if dim == along:
        return SlicedCall(node.target, (source, along, Slice(index, dim)))  # type: ignore[arg-type]
    if not statically_known_true(value(source).shape[dim] == value(index).shape[dim]):  # type: ignore[arg-type]
        raise NotSliceable("aten.gather reads only a part of the dimension")
    return SlicedCall(node.target, (Slice(source, dim), along, Slice(index, dim)))  # type: ignore[arg-type]


@rule(aten.index_select.default, understands="self dim index")
def _index_select(node: fx.Node, dim: int) -> SlicedCall:
    source, along, index = node.args[:3]
    along = int(along) % rank(node)  # type: ignore[arg-type]
    if dim == along:
        return SlicedCall(node.target, (source, along, Slice(index, 0)))  # type: ignore[arg-type]
    return SlicedCall(node.target, (Slice(source, dim), along, index))  # type: ignore[arg-type]


@rule(aten.embedding.default, understands="weight indices padding_idx")
def _embedding(node: fx.Node, dim: int) -> SlicedCall:
    """The row of ``padding_idx`` has no gradient. Not understood: the frequencies in a tile, by which a gradient may be
    scaled, are not those in the whole, and gradients of tiles are added up, which sparse ones are not."""
    table, index, *more = node.args
    if dim < rank(index):  # type: ignore[arg-type]
        return SlicedCall(aten.embedding.default, (table, Slice(index, dim), *more))  # type: ignore[arg-type]
    return SlicedCall(aten.embedding.default, (Slice(table, 1), index, *more))  # type: ignore[arg-type]


@rule(aten.index.Tensor, understands="self indices")
def _index(node: fx.Node, dim: int) -> SlicedCall:
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
        return SlicedCall(pick_of_each, (Slice(source, counted), chosen, counted))
    if at[0] <= dim < at[0] + picked:
        chosen = [broadcast_slice(i, dim - at[0], picked) if i is not None else None for i in indices]
        return SlicedCall(node.target, (source, chosen))
    own = dim if dim < at[0] else dim - picked + len(at)
    return SlicedCall(node.target, (Slice(source, own), indices))


def _counts_all(index: fx.Node, source: fx.Node, dim: int) -> bool:
    """``arange`` over the whole of a dimension: ``x[arange(n), i]`` picks one element of each row."""
    if index.target not in (aten.arange.default, aten.arange.start, aten.arange.start_step):
        return False
    given = arguments(index)
    from_zero = given.get("start", 0) == 0 and given.get("step", 1) == 1
    return from_zero and statically_known_true(value(index).shape[0] == value(source).shape[dim])


@rule(
    *(aten.slice_scatter.default, aten.select_scatter.default),
    understands="self src dim start end step index",
)
def _assignment(node: fx.Node, dim: int) -> SlicedCall:
    """``x[:, 3] = y``, as it is written without changing ``x``."""
    target, source = node.args[:2]
    given = arguments(node)
    along = int(given["dim"]) % rank(node)
    if dim == along:
        raise NotSliceable(f"{name(node)} writes to places of the dimension")
    own = dim - (dim > along) if node.target is aten.select_scatter.default else dim
    return SlicedCall(node.target, (Slice(target, dim), Slice(source, own), *node.args[2:]), node.kwargs)  # type: ignore[arg-type]


@rule(
    *(aten.arange.default, aten.arange.start, aten.arange.start_step),
    understands="start end step dtype layout device pin_memory",
)
def _positions(node: fx.Node, _dim: int) -> SlicedCall:
    given = arguments(node)
    counted = value(node)
    if counted.is_floating_point():
        raise NotSliceable("a floating-point aten.arange is not cut: its roundings depend on where it begins")
    return SlicedCall(
        positions,
        (given.get("start", 0), given.get("step", 1), Offset(), Length()),
        {**node.kwargs, "dtype": counted.dtype, "device": counted.device},
    )


def pick_of_each(source: Tensor, indices: Sequence[Tensor | None], dim: int) -> Tensor:
    """``source[..., i, arange(n), j, ...]`` with the ``arange`` at ``dim``."""
    own = torch.arange(source.shape[dim], device=source.device)
    return aten.index.Tensor(source, [own if i == dim else index for i, index in enumerate(indices)])  # type: ignore[no-any-return]


def positions(start: int, step: int, offset: int, length: int, **options: Any) -> Tensor:
    """A piece of an ``arange``: ``length`` elements from its element ``offset`` on."""
    first = start + offset * step
    return torch.arange(first, first + length * step, step, **options)
