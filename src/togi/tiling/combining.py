"""Puts a reduction over a streamed dimension together from the parts of its tiles, and differentiates it.

A ``Combiner`` is made for one reduction node. ``add(part, offset, count)`` takes what the very same operation gave on
one tile, ``finish`` gives what it gives on the whole. Sums are kept in float64 where torch has it, and a tile of half
precision gives its sum in float32, in which torch adds such numbers: thousands of tiles add no error of their own, and
the result is rounded once. Of equal extremes the first is kept, and NaN wins, as in torch.

``part_gradient`` is the derivative of the whole with respect to the part of one tile; autograd does the rest. Where
torch's derivative of a reduction reads its result, autograd is given that of the whole for that of the tile
(``reads_result``): what it makes of the tile is then what it makes of the whole, special cases included.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from togi.tiling.slicing import Slice, SlicedCall, arguments, refuse_unknown_arguments, value
from togi.tiling.slicing_rules import reduced_dims

aten = torch.ops.aten


class Combiner(ABC):
    """The running state of one reduction in one pass over the tiles."""

    understands: frozenset[str]
    """The arguments of its operations for any value of which it is right, in its gradient too: see ``slicing.rule``."""
    adds = False
    """Whether it adds up what the tiles give."""
    reads_result = False
    """Whether torch's derivative is one of the operand and the result (saved under that name) alone."""
    settled_positions = 1
    """After so many positions its state has the size that it keeps."""

    def __init__(self, node: fx.Node, dim: int, length: int) -> None:
        """``dim``: the streamed dimension of the operand, which has ``length`` positions in all."""
        self.node, self.dim, self.length = node, dim, length

    @classmethod
    def differentiates(cls, _node: fx.Node) -> bool:
        """True if gradients can be computed tile by tile."""
        return True

    @abstractmethod
    def add(self, part: Any, offset: int, count: int) -> None:
        """Take the result of a tile of ``count`` positions from ``offset`` on."""

    @abstractmethod
    def finish(self) -> Any:
        """The result over all tiles."""

    def part_gradient(self, part: Any, result: Any, gradient: Tensor, offset: int, count: int) -> Tensor:
        """The gradient of ``part``'s values. ``result``: of the whole; ``gradient``: of its values, in the type of the
        part's."""
        return gradient


def _wide(tensor: Tensor) -> torch.dtype:
    if not _has_fractions(tensor.dtype) or tensor.device.type == "mps":
        return tensor.dtype
    return torch.promote_types(tensor.dtype, torch.float64)


def _has_fractions(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _added_in(dtype: torch.dtype) -> torch.dtype:
    """The type in which torch adds numbers of this one, before it rounds the sum."""
    return torch.promote_types(dtype, torch.float32) if _has_fractions(dtype) else dtype


def _result_type(node: fx.Node, part: Tensor) -> torch.dtype:
    """The type of the result that is put together from such parts: another one only where all is computed in it."""
    own = value(node).dtype
    return own if part.dtype == _added_in(own) else part.dtype


class SumCombiner(Combiner):
    """``sum``, ``mean``, and matrix products over the dimension that they sum."""

    understands = frozenset("self dim keepdim dtype mat2 vec tensor".split())
    adds = True

    def __init__(self, node: fx.Node, dim: int, length: int) -> None:
        super().__init__(node, dim, length)
        self.mean = node.target in (aten.mean.dim, aten.mean.default)
        self.total: Tensor | None = None

    def add(self, part: Tensor, offset: int, count: int) -> None:
        self.dtype = _result_type(self.node, part)
        wide = part.to(_wide(part), copy=self.total is None)
        if self.mean:
            wide = wide * (count / self.length)
        self.total = wide if self.total is None else self.total.add_(wide)

    def finish(self) -> Tensor:
        assert self.total is not None
        return self.total.to(self.dtype)

    def part_gradient(self, part: Tensor, result: Tensor, gradient: Tensor, offset: int, count: int) -> Tensor:
        return gradient * (count / self.length) if self.mean else gradient


class Extreme(Combiner):
    """``amax``, ``amin``, ``max()``, ``min()``, ``any``, ``all``: values without an index."""

    understands = frozenset("self dim keepdim".split())

    def __init__(self, node: fx.Node, dim: int, length: int) -> None:
        super().__init__(node, dim, length)
        self.best: Tensor | None = None
        largest = node.target in (aten.amax.default, aten.max.default) or "any" in str(node.target)
        self.join: Callable[[Tensor, Tensor], Tensor] = torch.maximum if largest else torch.minimum

    @classmethod
    def differentiates(cls, _node: fx.Node) -> bool:
        return False  # torch divides the gradient among equal extremes: their number is known only at the end

    def add(self, part: Tensor, offset: int, count: int) -> None:
        self.best = part if self.best is None else self.join(self.best, part)

    def finish(self) -> Tensor:
        assert self.best is not None
        return self.best


class IndexedExtreme(Combiner):
    """``max`` and ``min`` along a dimension with the index of the first extreme; ``argmax`` and ``argmin``."""

    understands = frozenset("self dim keepdim".split())

    def __init__(self, node: fx.Node, dim: int, length: int) -> None:
        super().__init__(node, dim, length)
        self.largest = node.target in (aten.max.dim, aten.argmax.default)
        self.index_only = node.target in (aten.argmax.default, aten.argmin.default)
        self.values: Tensor | None = None
        self.index: Tensor | None = None

    def add(self, part: Any, offset: int, count: int) -> None:
        values, index = part[0], part[1] + offset
        if self.values is None or self.index is None:
            self.values, self.index = values, index
            return
        better = values > self.values if self.largest else values < self.values
        better |= values.isnan() & ~self.values.isnan()
        self.values = torch.where(better, values, self.values)
        self.index = torch.where(better, index, self.index)

    def finish(self) -> Any:
        assert self.values is not None
        return self.index if self.index_only else (self.values, self.index)

    def part_gradient(self, part: Any, result: Any, gradient: Tensor, offset: int, count: int) -> Tensor:
        return torch.where((result[1] >= offset) & (result[1] < offset + count), gradient, 0)


class TopK(Combiner):
    """``topk`` along the streamed dimension: the best of the best so far and of the tile, in order, which is one of the
    orders that ``sorted=False`` allows."""

    understands = frozenset("self k dim largest sorted".split())

    def __init__(self, node: fx.Node, dim: int, length: int) -> None:
        super().__init__(node, dim, length)
        given = arguments(node)
        self.count, self.largest = given["k"], given["largest"]
        self.settled_positions = self.count
        self.values: Tensor | None = None
        self.index: Tensor | None = None

    def add(self, part: Any, offset: int, count: int) -> None:
        values, index = part[0], part[1] + offset
        if self.values is not None and self.index is not None:
            values = torch.cat([self.values, values], self.dim)
            index = torch.cat([self.index, index], self.dim)
        count_kept = min(self.count, values.shape[self.dim])
        self.values, order = values.topk(count_kept, self.dim, self.largest, True)
        self.index = index.gather(self.dim, order)

    def finish(self) -> tuple[Tensor, Tensor]:
        assert self.values is not None
        assert self.index is not None
        return self.values, self.index

    def part_gradient(self, part: Any, result: Any, gradient: Tensor, offset: int, count: int) -> Tensor:
        """Each of the tile's best gets the gradient of the place it took in the whole's best, if any."""
        own, whole = (index.movedim(self.dim, -1) for index in (part[1] + offset, result[1]))
        taken = own.unsqueeze(-1) == whole.unsqueeze(-2)
        given = torch.where(taken, gradient.movedim(self.dim, -1).unsqueeze(-2), 0).sum(-1)
        return given.movedim(-1, self.dim)


class LogSumExp(Combiner):
    """``logsumexp``."""

    understands = frozenset("self dim keepdim".split())
    adds = True
    reads_result = True

    def __init__(self, node: fx.Node, dim: int, length: int) -> None:
        super().__init__(node, dim, length)
        self.total: Tensor | None = None

    def add(self, part: Tensor, offset: int, count: int) -> None:
        self.dtype = _result_type(self.node, part)
        wide = part.to(_wide(part))
        self.total = wide if self.total is None else torch.logaddexp(self.total, wide)

    def finish(self) -> Tensor:
        assert self.total is not None
        return self.total.to(self.dtype)


class Norm(Combiner):
    """``linalg.vector_norm`` of any order."""

    understands = frozenset("self ord dim keepdim dtype".split())
    adds = True
    reads_result = True

    def __init__(self, node: fx.Node, dim: int, length: int) -> None:
        super().__init__(node, dim, length)
        self.order = float(arguments(node)["ord"])
        self.total: Tensor | None = None

    @classmethod
    def differentiates(cls, node: fx.Node) -> bool:
        return math.isfinite(arguments(node)["ord"])  # others divide the gradient among equal extremes

    def add(self, part: Tensor, offset: int, count: int) -> None:
        self.dtype = _result_type(self.node, part)
        wide = self._power(part.to(_wide(part)), self.order)
        self.total = wide if self.total is None else self._join(self.total, wide)

    def finish(self) -> Tensor:
        assert self.total is not None
        return self._power(self.total, 1 / self.order if self.order else 0.0).to(self.dtype)

    def _join(self, one: Tensor, other: Tensor) -> Tensor:
        if math.isinf(self.order):
            return torch.maximum(one, other) if self.order > 0 else torch.minimum(one, other)
        return one + other

    def _power(self, tensor: Tensor, exponent: float) -> Tensor:
        return tensor.pow(exponent) if self.order and math.isfinite(self.order) else tensor


def tile_topk(tile: Tensor, k: int, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    """``topk`` of a tile, which may hold fewer than ``k``."""
    best = tile.topk(min(k, tile.shape[dim]), dim, largest, True)
    return best[0], best[1]


COMBINERS: dict[Any, type[Combiner]] = {
    **dict.fromkeys((aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default), SumCombiner),
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default), SumCombiner),
    **dict.fromkeys((aten.amax.default, aten.amin.default, aten.max.default, aten.min.default), Extreme),
    **dict.fromkeys((aten.any.dim, aten.any.dims, aten.any.default), Extreme),
    **dict.fromkeys((aten.all.dim, aten.all.dims, aten.all.default), Extreme),
    **dict.fromkeys((aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default), IndexedExtreme),
    aten.logsumexp.default: LogSumExp,
    aten.linalg_vector_norm.default: Norm,
    aten.topk.default: TopK,
}
_CONTRACTIONS = (aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default)
_WITH_INDEX = {aten.argmax.default: aten.max.dim, aten.argmin.default: aten.min.dim}


def streamable_dims(node: fx.Node) -> list[int]:
    """Dimensions of the first operand over which the parts of ``node`` can be combined."""
    combiner = COMBINERS.get(node.target)
    if combiner is None:
        return []
    count = value(node.args[0]).dim()  # type: ignore[arg-type]
    if node.target in _CONTRACTIONS:
        return [count - 1]
    if combiner is TopK:
        return [int(arguments(node)["dim"]) % count]
    if combiner is IndexedExtreme and arguments(node).get("dim") is None:
        return []  # an index into the flattened tensor
    return reduced_dims(node)[0]


def part_call(node: fx.Node, dim: int) -> SlicedCall:
    """The call that runs on a tile, the operand being sliced along the streamed ``dim``.

    Raises:
        NotSliceable: it is given what its combiner does not understand.
    """
    combiner = COMBINERS[node.target]
    refuse_unknown_arguments(node, combiner.understands)
    call = _part_call(node, dim)
    if combiner.adds and _is_rounded(node):
        return SlicedCall(unrounded, (call.target, *call.args), call.kwargs)
    return call


def widened(node: fx.Node, dim: int) -> list[Slice]:
    """The slices that ``part_call`` reads in a wider type, which takes memory of its own."""
    call = part_call(node, dim)
    return call.slices if call.target is unrounded else []


def _is_rounded(node: fx.Node) -> bool:
    """True if torch adds in another type than that of the result."""
    return _added_in(value(node).dtype) != value(node).dtype


def unrounded(operation: Any, *operands: Any, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """The operation in the type in which torch adds, its result not rounded after it."""

    def wide(operand: Any) -> Any:
        if not isinstance(operand, Tensor):
            return operand
        given = operand if dtype is None else operand.to(dtype)
        return given.to(_added_in(given.dtype))

    return operation(*map(wide, operands), **options)


def _part_call(node: fx.Node, dim: int) -> SlicedCall:
    source: Any = node.args[0]
    given = arguments(node)
    if node.target in _CONTRACTIONS:
        other: Any = node.args[1]
        return SlicedCall(node.target, (Slice(source, dim), Slice(other, max(0, value(other).dim() - 2))))
    if node.target in _WITH_INDEX:
        return SlicedCall(_WITH_INDEX[node.target], (Slice(source, dim), given["dim"], given["keepdim"]))
    if node.target is aten.topk.default:
        return SlicedCall(tile_topk, (Slice(source, dim), given["k"], dim, given["largest"]))
    return SlicedCall(node.target, (Slice(source, dim), *node.args[1:]), node.kwargs)
