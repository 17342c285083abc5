"""The unit of error: how far plain eager is from the truth, made robust for small tensors.

A candidate's error is given in multiples of eager's own. That needs an estimate of eager's own error which is not small
by luck. So it is pooled over all inputs (the median of the relative errors), and it never falls below a few roundings
of the output's own type. If a leaf has few numbers in all, eager also runs with weights and inputs moved by one
rounding each. That samples the error that any order of evaluation may make.

Quantities of other magnitudes in one tensor have a unit each: columns, and large numbers among small ones.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from togi.core.records import LeafError, Record
from togi.decide.faithful import (
    BESIDE_LARGER,
    FEWEST_FLIPS,
    MAX_UNITS,
    counted,
    far,
    in_units,
    unit_of_error,
    unit_of_far,
    unit_of_mismatches,
)
from togi.subject.plain_tensors import plain
from togi.verify.compare import (
    Columns,
    Difference,
    between,
    columns_apart,
    continuous,
    difference,
    far_off,
    farthest,
    mismatches,
    sentinel_threshold,
    threshold_of_large,
    together,
)
from togi.verify.observe import ObservedCalls

FEW = 256
"""Below this many numbers (over all inputs) eager's own error is also sampled by nudged runs. The root mean square of n
normal errors is below a quarter of its expectation with probability 2e-4 at n = 8 and never seen at n = 256; the
extreme of few numbers scatters far more than their mean square."""
NUDGES_FEW = 8
"""Nudged runs per input where the outputs hold few numbers, or where eager must serve as the truth."""


class LargeUnit(Record):
    """One unit of error for numbers that are large next to all others, and stand for themselves."""

    least: float
    """From which magnitude on they are."""
    rms: float
    peak: float
    relative: float = 0.0


class Unit(Record):
    """One unit of error for one output on one input, absolute. For integers and bools ``rms`` is a share of
    elements."""

    rms: float
    peak: float
    columns: tuple[ColumnsUnit, ...] = ()
    """Where columns hold quantities of other magnitudes, that of each: by these it is judged then."""
    large: LargeUnit | None = None
    relative: float = 0.0
    """``rms`` as a share of the output's size; of integers, of what they differ by."""
    distance: float = math.inf
    """Of integers and bools: the largest distance by which eager's differ from one rounding to the next. Infinite: too
    few differ to tell."""
    flips: int = 0
    """How many differ, in all of these runs."""


class ColumnsUnit(Record):
    """One unit of error for some columns of an output."""

    dim: int
    indices: tuple[int, ...]
    rms: float
    peak: float
    threshold: float
    """From which an element is a sentinel."""
    large: LargeUnit | None = None
    relative: float = 0.0
    kind: int = 0
    """``rmse`` is relative to all columns of one kind."""

    def of(self, tensor: Tensor) -> Tensor:
        """These columns of an output."""
        return tensor.index_select(self.dim, torch.tensor(self.indices, device=tensor.device))

    @property
    def unit(self) -> Unit:
        return Unit(rms=self.rms, peak=self.peak, large=self.large, relative=self.relative)


def units(eager: Sequence[Difference], nudged: Sequence[Sequence[Difference]], epsilon: float) -> list[Unit]:
    """The unit on each input, for one output.

    Args:
        eager: plain eager against the truth, per input. Where the truth is no more precise than eager, give
            differences of 0.
        nudged: per input, nudged runs against the truth; empty where eager's own error needs no support.
        epsilon: machine epsilon of the computation.
    """
    rms = [_support(e.rms, [n.rms for n in more]) for e, more in zip(eager, nudged, strict=True)]
    peak = [_support(e.peak, [n.peak for n in more]) for e, more in zip(eager, nudged, strict=True)]
    typical_rms = _typical([r / e.scale for r, e in zip(rms, eager, strict=True) if e.scale])
    typical_peak = _typical([p / e.scale for p, e in zip(peak, eager, strict=True) if e.scale])
    return [
        _unit(
            unit_of_error(max(r, typical_rms * e.scale), e.scale, epsilon),
            unit_of_error(max(p, typical_peak * e.scale), e.largest, epsilon),
            e.scale,
        )
        for r, p, e in zip(rms, peak, eager, strict=True)
    ]


def _unit(rms: float, peak: float, scale: float) -> Unit:
    return Unit(rms=rms, peak=peak, relative=rms / scale if scale else 0.0)


def discrete_units(
    eager: Sequence[Tensor], truth: Sequence[Tensor], nudged: Sequence[Sequence[Tensor]]
) -> list[tuple[Unit, float]]:
    """The units of integers and bools, and the shares of elements on which eager and the truth disagree, per input."""
    runs = [[e, *moved] for e, moved in zip(eager, nudged, strict=True)]
    # eager itself against the truth alone, the others against both
    flips = [
        [mismatches(run, t, t if run is e else e) for run in of_input]
        for of_input, t, e in zip(runs, truth, eager, strict=True)
    ]
    count = sum(map(sum, flips))
    distance = math.inf
    if count >= FEWEST_FLIPS:
        distance = max(
            farthest(run, t, t if run is e else e)
            for of_input, t, e in zip(runs, truth, eager, strict=True)
            for run in of_input
        )
    told = min(1.0, far(distance) / spread) if (spread := _spread(truth)) else 1.0
    found = []
    for e, of_input in zip(eager, flips, strict=True):
        most = share(max(of_input), e)
        unit = unit_of_mismatches(most, e.numel())
        relative = most * told
        found.append(
            (Unit(rms=unit, peak=unit, relative=relative, distance=distance, flips=count), share(of_input[0], e))
        )
    return found


def _spread(tensors: Sequence[Tensor]) -> float:
    """The standard deviation of all their elements."""
    count = sum(t.numel() for t in tensors)
    if not count:
        return 0.0
    mean = sum(float(t.double().sum()) for t in tensors) / count
    return math.sqrt(sum(float((t.double() - mean).square().sum()) for t in tensors) / count)


def _support(own: float, nudged: Sequence[float]) -> float:
    finite = [value for value in (own, *nudged) if math.isfinite(value)]
    return max(finite, default=0.0)


def _typical(relative: Sequence[float]) -> float:
    return statistics.median(relative) if relative else 0.0


Measured = tuple[Unit, Difference | float, float]
"""The unit of one output on one input, eager's own error (a share of elements where discrete), the sentinel
threshold."""
_OfNumbers = tuple[Unit, Difference, float]


def share(count: int, tensor: Tensor) -> float:
    return count / max(tensor.numel(), 1)


def epsilon_of(tensor: Tensor) -> float:
    return float(torch.finfo(tensor.dtype).eps)


def units_of(
    run: ObservedCalls, truths: list[list[Tensor]], nudges: list[list[list[Tensor]]], epsilon: float, known: bool
) -> list[list[Measured]]:
    """Per call and leaf: the unit, eager's own error, the sentinel threshold. Pooled per leaf name over all calls."""
    places: dict[str, list[tuple[int, int]]] = {}
    for c, seen in enumerate(run.seen):
        for i, (name, _) in enumerate(seen.leaves):
            places.setdefault(name, []).append((c, i))
    result: list[list[Any]] = [[None] * len(leaves) for leaves in run.leaves]
    for where in places.values():
        eager = [run.leaves[c][i] for c, i in where]
        moved = [
            [n[c][i] for n in nudges if i < len(n[c]) and n[c][i].shape == e.shape]
            for (c, i), e in zip(where, eager, strict=True)
        ]
        if known and not needs_nudges(eager, epsilon):
            moved = [[] for _ in eager]
        measured = measure_own_error(eager, [truths[c][i] for c, i in where], moved, epsilon)
        for (c, i), of_call in zip(where, measured, strict=True):
            result[c][i] = of_call
    return result


def needs_nudges(eager: Sequence[Tensor], epsilon: float) -> bool:
    """Whether eager's own error says too little of an output, given on several inputs: it is discrete or has few
    numbers (of one magnitude), or it is more precise than what it was computed with (``epsilon``), whose roundings tell
    nothing of it."""
    if not continuous(eager[0]) or epsilon_of(eager[0]) < epsilon:
        return True
    count = sum(e.numel() for e in eager)
    fewest = min((len(columns.indices) / eager[0].shape[columns.dim] for columns in columns_apart(eager)), default=1.0)
    if fewest * count < FEW:
        return True
    large = sum(int(between(*_large(e), e, e).sum()) for e in eager)
    return 0 < large < FEW


def _large(eager: Tensor) -> tuple[float, float]:
    """From which magnitude on numbers are measured apart, and from which they are mask values. Infinite: none are."""
    sentinels = sentinel_threshold(eager)
    return threshold_of_large(eager, sentinels), sentinels


def measure_own_error(
    eager: Sequence[Tensor], truth: Sequence[Tensor], nudged: Sequence[Sequence[Tensor]], epsilon: float = 0.0
) -> list[Measured]:
    """Measure one output on several inputs: ``nudged`` are runs with weights and inputs moved by a rounding,
    ``epsilon`` the least machine epsilon to assume."""
    if not continuous(eager[0]):
        return [(unit, own, math.inf) for unit, own in discrete_units(eager, truth, nudged)]
    if epsilon_of(eager[0]) < epsilon:
        epsilon = 0.0  # of float64 every digit counts, whatever part of it was computed in less
    epsilon = max(epsilon, epsilon_of(eager[0]))
    if parts := columns_apart(truth):
        return _by_columns(eager, truth, nudged, epsilon, parts)
    return list(_of_one_magnitude(eager, truth, nudged, epsilon))


def _of_one_magnitude(
    eager: Sequence[Tensor], truth: Sequence[Tensor], nudged: Sequence[Sequence[Tensor]], epsilon: float
) -> list[_OfNumbers]:
    """But for large numbers among small ones, which have a unit of their own."""
    limits = [_large(e) for e in eager]
    least = [size for size, _ in limits]
    if min(least) == math.inf:
        return _measured(eager, truth, nudged, epsilon)
    large = [between(*limit, t, e) for limit, t, e in zip(limits, truth, eager, strict=True)]
    rest_of = [~where for where in large]
    rest, apart = (
        _measured(
            [_elements(e, at) for e, at in zip(eager, where, strict=True)],
            [_elements(t, at) for t, at in zip(truth, where, strict=True)],
            [[_elements(m, at) for m in moved] for moved, at in zip(nudged, where, strict=True)],
            epsilon,
        )
        for where in (rest_of, large)
    )
    return [
        (
            unit
            if size == math.inf
            else unit.model_copy(
                update={"large": LargeUnit(least=size, rms=own.rms, peak=own.peak, relative=own.relative)}
            ),
            max(error, of_large, key=lambda each: each.rmse),
            threshold,
        )
        for size, (unit, error, threshold), (own, of_large, _) in zip(least, rest, apart, strict=True)
    ]


def _elements(tensor: Tensor, where: Tensor) -> Tensor:
    return plain(tensor).reshape(-1)[where]


def _measured(
    eager: Sequence[Tensor], truth: Sequence[Tensor], nudged: Sequence[Sequence[Tensor]], epsilon: float
) -> list[_OfNumbers]:
    thresholds = [sentinel_threshold(e) for e in eager]
    own = [difference(e, t, e, th) for e, t, th in zip(eager, truth, thresholds, strict=True)]
    others = [
        [difference(m, t, e, th) for m in ms] for ms, t, e, th in zip(nudged, truth, eager, thresholds, strict=True)
    ]
    return list(zip(units(own, others, epsilon), own, thresholds, strict=True))


def _by_columns(
    eager: Sequence[Tensor],
    truth: Sequence[Tensor],
    nudged: Sequence[Sequence[Tensor]],
    epsilon: float,
    parts: Sequence[Columns],
) -> list[Measured]:
    """Each magnitude as an output of its own; eager's error is that of the worst kind."""
    by_input: list[list[tuple[ColumnsUnit, Difference]]] = [[] for _ in eager]
    for part in parts:
        columns = ColumnsUnit(dim=part.dim, indices=part.indices, rms=0.0, peak=0.0, threshold=math.inf, kind=part.kind)
        measured = _of_one_magnitude(
            [columns.of(e) for e in eager],
            [columns.of(t) for t in truth],
            [[columns.of(m) for m in moved] for moved in nudged],
            epsilon,
        )
        for i, (unit, own, threshold) in enumerate(measured):
            known = {"rms": unit.rms, "peak": unit.peak, "large": unit.large, "relative": unit.relative}
            by_input[i].append((columns.model_copy(update={**known, "threshold": threshold}), own))
    return [_of_columns(of_input, epsilon) for of_input in by_input]


def _of_columns(found: Sequence[tuple[ColumnsUnit, Difference]], epsilon: float) -> Measured:
    """The unit of one input, of those of its columns and eager's own errors there."""
    kinds = {kind: together([own for each, own in found if each.kind == kind]) for kind in {c.kind for c, _ in found}}
    columns = tuple(
        each.model_copy(
            update={
                "rms": max(each.rms, BESIDE_LARGER * kinds[each.kind].largest),
                "peak": max(each.peak, BESIDE_LARGER * kinds[each.kind].largest),
            }
        )
        for each, _ in found
    )
    # one less a probability is as exact as the one: that no digit is left says nothing of how exact the output is
    roundings = MAX_UNITS * unit_of_error(0.0, max(own.largest for _, own in found), epsilon)
    unit = Unit(
        rms=max(each.rms for each in columns),
        peak=max(each.peak for each in columns),
        columns=columns,
        relative=max((each.relative for each in columns if each.rms > roundings), default=0.0),
    )
    return unit, max(kinds.values(), key=lambda own: own.rmse), math.inf


def leaf_error(
    name: str, found: Tensor, truth: Tensor, eager: Tensor, unit: Unit, threshold: float
) -> tuple[LeafError, bool]:
    """The error of one output tensor, and whether NaN, inf or a sentinel is where it must not be (or is not where it
    must)."""
    found = plain(found)
    if not continuous(found):
        return _discrete_error(name, found, truth, eager, unit), False
    parts = list(_parts(found, truth, eager, unit, threshold))
    kinds = [together([part.error for part in parts if part.kind == kind]) for kind in {part.kind for part in parts}]
    error = LeafError(
        name=name,
        rmse=max(kind.rmse for kind in kinds),
        max_abs=max(kind.max_abs for kind in kinds),
        units=max(part.units for part in parts),
    )
    return error, any(kind.misplaced for kind in kinds)


class _PartError(NamedTuple):
    kind: tuple[int, bool]
    """Of its columns, and whether these are large numbers among small ones."""
    error: Difference
    units: float


def _parts(
    found: Tensor, truth: Tensor, eager: Tensor, unit: Unit, threshold: float, kind: tuple[int, bool] = (0, False)
) -> Iterator[_PartError]:
    """The errors of all that has a unit of its own."""
    for columns in unit.columns:
        tensors = (columns.of(found), columns.of(truth), columns.of(eager))
        yield from _parts(*tensors, columns.unit, columns.threshold, (columns.kind, False))
    if unit.columns:
        return
    if unit.large is not None:
        where = between(unit.large.least, threshold, truth, eager)
        large = Unit(rms=unit.large.rms, peak=unit.large.peak, relative=unit.large.relative)
        apart = _elements(found, where), _elements(truth, where), _elements(eager, where)
        yield from _parts(*apart, large, math.inf, (kind[0], True))
        found, truth, eager = (_elements(t, ~where) for t in (found, truth, eager))
    error = difference(found, truth, eager, threshold)
    in_16_bits = eager.dtype in (torch.float16, torch.bfloat16)
    rms = counted(error.rms, error.systematic, unit.relative, error.ordinary, in_16_bits=in_16_bits)
    yield _PartError(kind, error, max(in_units(rms, unit.rms), in_units(error.peak, unit.peak)))


def _discrete_error(name: str, found: Tensor, truth: Tensor, eager: Tensor, unit: Unit) -> LeafError:
    count = mismatches(found, truth, eager)
    wrong = share(count, found)
    units = math.inf if far_off(found, truth, eager) else in_units(wrong, unit.rms)
    if count and math.isfinite(unit.distance):
        too_far = mismatches(found, truth, eager, far(unit.distance))
        units = max(units, in_units(too_far, unit_of_far(count, unit.flips, found.numel())))
    return LeafError(name=name, rmse=wrong, max_abs=wrong, units=units)


def worst(errors: Sequence[LeafError]) -> LeafError:
    """The largest of each measure, of errors of one output."""
    return LeafError(
        name=errors[0].name,
        rmse=max(error.rmse for error in errors),
        max_abs=max(error.max_abs for error in errors),
        units=max(error.units for error in errors),
        limit_units=errors[0].limit_units,
    )


def error_in_units(found: Tensor, truth: Tensor, eager: Tensor, nudged: Sequence[Tensor] = ()) -> float:
    """Measure how far one output is from the truth, in units of plain eager's own error.

    All tensors have one shape. ``truth`` is in float64 (where there is none, eager itself); ``nudged`` are eager's
    outputs with weights and inputs moved by a rounding, which support the unit where an output has few numbers.
    Infinite where NaN, infinity or a sentinel stands where it must not, or is missing.
    """
    ((unit, _, threshold),) = measure_own_error([eager], [truth], [nudged])
    return leaf_error("", found, truth, eager, unit, threshold)[0].units
