"""Compares the streamed function with the plain one, once per plan and within the same byte budget.

Where the plain function would not fit into the budget, both are run on a smaller problem cut out of the tensors given:
the same graph, the same loops, at least three tiles with a shorter last one. The unit of error is the plain function's
own distance from itself in float64, as everywhere in togi.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor

from togi.decide.faithful import MAX_UNITS, MAX_UNITS_COMPILED, within
from togi.tiling.capture import Captured, NotLean, Refuted, in_one_line
from togi.tiling.peak import Weights, plain_peak_bytes
from togi.tiling.program import TileLoop, Tiles
from togi.tiling.sizes import evaluate, size_expressions
from togi.tiling.special_points import KINDS, compare_specials
from togi.torch_internals.tensors import tree_flatten, tree_leaves, tree_unflatten
from togi.verify.compare import mismatches
from togi.verify.units import error_in_units

LARGEST_BYTES = 64 << 20
"""A proof on more than this proves no more and takes longer."""
SPECIAL_BYTES = 256 << 10, 1 << 20
"""Of the part on which special values are tried: as the budget is, but not less, since every kind needs some rows."""
_LEAST = 2
"""Positions below which a dimension is not cut."""
_TILES = 3.3
_DISCRETE_SHARE = 1e-3
"""Of integers and bools, which may differ from both the plain function and float64: among nearly equal distances the
nearest one is a matter of rounding, and there is no unit of error for an index."""
Streamed = Callable[[Sequence[Tensor], Weights, float], Any]
"""``(tensors, weights, tiles) -> what the function returns``, with loops cut in about so many tiles."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """``units``: the largest error of any output (and gradient), in units of the plain function's own."""

    units: float
    sizes: str
    """The problem it was proven on."""
    gradients: bool
    tracked: tuple[bool, ...]
    """Of each leaf of the plain result, whether it takes part in autograd."""
    special_kinds: int
    """Kinds of special values (zeros, infinities, ...) for which it holds too."""

    def __str__(self) -> str:
        compared = "values and gradients" if self.gradients else "values"
        return (
            f"{compared} within {self.units:.2f} of the plain function's own error (limit {MAX_UNITS:g}), on "
            f"{self.sizes}; right for {self.special_kinds} of {len(KINDS)} kinds of special values"
        )


def prove(
    plain: Callable[..., Any],
    streamed: Streamed,
    captured: Captured,
    tensors: Sequence[Tensor],
    whole: Weights,
    lengths: Sequence[sympy.Expr],
    budget_bytes: int,
) -> Proof:
    """Compare ``streamed`` with ``plain`` on as much of ``tensors`` as fits.

    Args:
        whole: the weights of all of ``tensors``.

    Raises:
        Refuted: they differ.
        NotLean: no part of the problem is small enough to compare on, or the function raises on it.
    """
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *captured.constants))
    weights, part, wide_fits = _part(captured, tensors, whole, lengths, budget_bytes, 3 if gradients else 1)
    held = captured.constants
    tracked: list[bool] = []

    def noted(*given: Tensor) -> Any:
        result = plain(*given)
        tracked[:] = [isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(result)]
        return result

    def in_tiles(given: Sequence[Tensor], weights: Weights) -> list[Any]:
        return _answers(lambda *cut: as_tracked(streamed(cut, weights, _TILES), tracked), given, held, gradients)

    try:
        expected = _answers(noted, part, held, gradients)
    except Exception as error:  # the user's function on a part of the user's data: an index may point outside of it
        refusal = NotLean(f"the plain function cannot be called on a part of the problem ({in_one_line(error)})")
        refusal.remember = lambda: None  # the next call of these sizes brings other values
        raise refusal from error
    try:
        answers = in_tiles(part, weights)
    except Exception as error:  # an operation of torch's that has no derivative, or refuses a slice
        raise Refuted(f"it fails in tiles ({in_one_line(error)})") from error
    truth = _truth(plain, part, held, gradients) if wide_fits else None
    units = _distance(answers, expected, truth)
    weights_small, small = _small_part(plain, captured, tensors, whole, lengths, budget_bytes) or (weights, part)
    kinds = compare_specials(
        lambda given: in_tiles(given, weights_small),
        lambda given: _answers(plain, given, held, gradients),
        lambda given: _truth(plain, given, held, gradients),
        small,
    )
    sizes = ", ".join(f"{weights.values[s]:,} of {size:,}" for s, size in whole.values.items()) or "the whole"
    return Proof(units=units, sizes=sizes, gradients=gradients, tracked=tuple(tracked), special_kinds=kinds)


def as_tracked(result: Any, tracked: Sequence[bool]) -> Any:
    """The result with the leaves out of autograd that the plain function leaves out of it: a loop makes all that it
    makes in one step of autograd."""
    leaves, form = tree_flatten(result)
    kept = [
        leaf.detach() if isinstance(leaf, Tensor) and leaf.requires_grad and not is_tracked else leaf
        for leaf, is_tracked in zip(leaves, tracked, strict=True)
    ]
    return result if all(map(operator.is_, kept, leaves)) else tree_unflatten(kept, form)


def same_tiles(loop: TileLoop, reads: Sequence[Any], tiles: Tiles, length: int) -> float:
    """The distance of the compiled body from ``loop.body`` on the first compiled tile, in units.

    The reference is the plain body in float64, in half of its tiles so that it stays within the same memory.

    Raises:
        Refuted: it is another function, or off by more than ``MAX_UNITS_COMPILED``.
    """
    count = min(tiles.compiled, length)
    part = [read.narrow(s.dim, 0, count) for s, read in zip(loop.sliced, reads, strict=False)]
    given = [*part, *reads[len(part) :]]
    plain = max(1, min(tiles.plain, count // 4))

    def in_float64(given: Sequence[Any]) -> list[Any] | None:
        wide = [read.double() if isinstance(read, Tensor) and read.is_floating_point() else read for read in given]
        try:
            return tree_leaves(loop.run(wide, count, Tiles(plain=max(1, plain // 2))))
        except Exception:  # an operation of the user's function may not exist in float64
            return None

    def in_tiles(tiles: Tiles) -> Callable[[Sequence[Any]], list[Any]]:
        return lambda given: tree_leaves(loop.run(given, count, tiles))

    compiled, uncompiled = in_tiles(tiles), in_tiles(Tiles(plain=plain))
    with torch.no_grad():
        units = _distance(compiled(given), uncompiled(given), in_float64(given), MAX_UNITS_COMPILED)
        if sum(read.nbytes for read in given if isinstance(read, Tensor)) <= LARGEST_BYTES:
            compare_specials(compiled, uncompiled, in_float64, given)
    return units


def _small_part(
    plain: Callable[..., Any],
    captured: Captured,
    tensors: Sequence[Tensor],
    whole: Weights,
    lengths: Sequence[sympy.Expr],
    budget_bytes: int,
) -> tuple[Weights, list[Tensor]] | None:
    """Enough for special values, which are many; None where there is none on which the function can be called."""
    try:
        weights, part, _ = _part(
            captured, tensors, whole, lengths, min(max(budget_bytes, SPECIAL_BYTES[0]), SPECIAL_BYTES[1]), 3
        )
        plain(*part)
    except Exception:  # no such part, or the user's function on a part of the user's data
        return None
    return weights, part


def _part(
    captured: Captured,
    tensors: Sequence[Tensor],
    whole: Weights,
    lengths: Sequence[sympy.Expr],
    budget_bytes: int,
    factor: int,
) -> tuple[Weights, list[Tensor], bool]:
    """Sizes small enough for the plain function, the tensors cut to them, and whether float64 fits too.

    Dimensions of loops are cut first. Others only where that is not enough: indices that are data may point outside.
    """
    values, part = dict(whole.values), list(tensors)
    looped = [symbol for symbol in values if any(symbol in length.free_symbols for length in lengths)]
    limit = min(budget_bytes, LARGEST_BYTES)

    def needed(times: int) -> int:
        return times * factor * plain_peak_bytes(captured.graph, captured.outputs, whole.at(values))

    for cuttable, times in ((looped, 3), (looped, 1), (list(values), 3)):
        while needed(times) > limit:
            smaller = _smaller(captured, tensors, values, cuttable)
            if smaller is None:
                break
            values, part = smaller
        else:
            return whole.at(values), part, needed(3) <= limit
    raise NotLean("no part of the problem is small enough to compare with the plain function within the budget")


def _smaller(
    captured: Captured, tensors: Sequence[Tensor], values: dict[sympy.Symbol, int], cuttable: Sequence[sympy.Symbol]
) -> tuple[dict[sympy.Symbol, int], list[Tensor]] | None:
    """The largest dimension that may be halved, halved; None where none may."""
    for symbol in sorted(cuttable, key=lambda s: -values[s]):
        alike = {other for other in values if values[other] == values[symbol]}
        for linked in ({symbol}, alike):  # a size may have to equal another one, which the graph does not always say
            halved = {s: size // 2 if s in linked else size for s, size in values.items()}
            cut = _cut(captured, tensors, halved) if halved[symbol] >= _LEAST else None
            if cut is not None:
                return halved, cut
    return None


def _cut(captured: Captured, tensors: Sequence[Tensor], values: Mapping[sympy.Symbol, int]) -> list[Tensor] | None:
    """The leading part of every dimension; None where the graph would not be the function for it."""
    part = []
    for tensor, node in zip(tensors, captured.placeholders, strict=False):
        cut = tensor
        for dim, size in enumerate(size_expressions(node.meta["val"])):
            cut = cut.narrow(dim, 0, evaluate(size, values))
        part.append(cut.contiguous() if tensor.is_contiguous() else cut)
    return part if captured.admits(part) else None


def _answers(call: Callable[..., Any], tensors: Sequence[Tensor], held: Sequence[Tensor], gradients: bool) -> list[Any]:
    """The leaves of the result, then the gradients of the tensors (and of those held) for fixed cotangents."""
    with torch.set_grad_enabled(gradients):
        given = [t.detach().requires_grad_(t.requires_grad and gradients) for t in tensors]
        leaves = tree_leaves(call(*given))
        answers = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        results = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        wanted = [tensor for tensor in (*given, *held) if tensor.requires_grad]
        if results and wanted:
            generator = torch.Generator().manual_seed(0)
            weights = [torch.rand(m.shape, generator=generator, dtype=torch.float64).to(m) for m in results]
            answers += list(torch.autograd.grad(results, wanted, weights, allow_unused=True))
    return answers


def _truth(
    plain: Callable[..., Any], tensors: Sequence[Tensor], held: Sequence[Tensor], gradients: bool
) -> list[Any] | None:
    """The plain function in float64; None where it insists on another type."""
    wide = [
        t.detach().double().requires_grad_(t.requires_grad and gradients) if t.is_floating_point() else t
        for t in tensors
    ]
    if any(t.device.type == "mps" for t in tensors):
        return None
    try:
        return _answers(plain, wide, held, gradients)
    except Exception:  # the user's function may be written for one type: then plain itself is the reference
        return None


def _distance(
    actual: Sequence[Any], expected: Sequence[Any], truth: Sequence[Any] | None, limit: float = MAX_UNITS
) -> float:
    """The largest error in units.

    Raises:
        Refuted: more than ``limit``, or the results differ in form.
    """
    worst = 0.0
    if len(actual) != len(expected):
        raise Refuted(f"it returned {len(actual)} results where the plain function returns {len(expected)}")
    for index, (answer, other) in enumerate(zip(actual, expected, strict=True)):
        real = truth[index] if truth is not None and len(truth) == len(expected) else other
        worst = max(worst, _leaf_distance(answer, other, real, f"result {index}", limit))
    return worst


def _leaf_distance(actual: Any, expected: Any, truth: Any, where: str, limit: float) -> float:
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        if type(actual) is type(expected) and (actual is expected or actual == expected):
            return 0.0
        raise Refuted(f"{where} is {actual!r} and should be {expected!r}")
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        raise Refuted(
            f"{where} is {actual.dtype} of {tuple(actual.shape)}, not {expected.dtype} of {tuple(expected.shape)}"
        )
    if not actual.numel():
        return 0.0
    if not expected.is_floating_point() and not expected.is_complex():
        wrong = mismatches(actual, truth if truth.dtype == expected.dtype else expected, expected)
        if wrong > _DISCRETE_SHARE * actual.numel():
            raise Refuted(f"{where} differs from the plain function's in {wrong} of {actual.numel()} places")
        return 0.0
    distance = error_in_units(actual, truth, expected)
    if not within(distance, limit):
        raise Refuted(f"{where} is {distance:.3g} times the plain function's own error off (limit {limit:g})")
    return distance
