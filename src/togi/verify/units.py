"""The unit of error: how far plain eager is from the truth, made robust for small tensors.

A candidate's error is given in multiples of eager's own. That needs an estimate of eager's own error which is not small
by luck. So it is pooled over all inputs (the median of the relative errors), and it never falls below a few roundings
of the output's own type. If a leaf has few numbers in all, eager also runs with weights and inputs moved by one
rounding each. That samples the error that any order of evaluation may make.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from togi.core.records import LeafError, Record
from togi.decide.faithful import MISMATCH_FLOOR, in_units, unit_of_error
from togi.subject.plain_tensors import plain
from togi.verify.compare import (
    Difference,
    columns_apart,
    continuous,
    difference,
    far_off,
    mismatches,
    sentinel_threshold,
)
from togi.verify.observe import ObservedCalls

FEW = 256
"""Below this many numbers (over all inputs) eager's own error is also sampled by nudged runs. The root mean square of n
normal errors is below a quarter of its expectation with probability 2e-4 at n = 8 and never seen at n = 256; the
extreme of few numbers scatters far more than their mean square."""
NUDGES_FEW = 8
"""Nudged runs per input where the outputs hold few numbers, or where eager must serve as the truth."""


class Unit(Record):
    """One unit of error for one output on one input, absolute. For integers and bools ``rms`` is a share of
    elements."""

    rms: float
    peak: float
    columns: tuple[ColumnsUnit, ...] = ()
    """Where columns hold quantities of other magnitudes, that of each: by these it is judged then."""


class ColumnsUnit(Record):
    """One unit of error for some columns of an output."""

    dim: int
    indices: tuple[int, ...]
    rms: float
    peak: float
    threshold: float
    """From which an element is a sentinel."""

    def of(self, tensor: Tensor) -> Tensor:
        """These columns of an output."""
        return tensor.index_select(self.dim, torch.tensor(self.indices, device=tensor.device))


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
        Unit(
            rms=unit_of_error(max(r, typical_rms * e.scale), e.scale, epsilon),
            peak=unit_of_error(max(p, typical_peak * e.scale), e.largest, epsilon),
        )
        for r, p, e in zip(rms, peak, eager, strict=True)
    ]


def discrete_units(shares: Sequence[float], nudged: Sequence[Sequence[float]]) -> list[Unit]:
    """The units of integers and bools. ``shares``: of elements on which eager and the truth disagree, per input."""
    all_shares = [max([share, *more, MISMATCH_FLOOR]) for share, more in zip(shares, nudged, strict=True)]
    return [Unit(rms=share, peak=share) for share in all_shares]


def _support(own: float, nudged: Sequence[float]) -> float:
    finite = [value for value in (own, *nudged) if math.isfinite(value)]
    return max(finite, default=0.0)


def _typical(relative: Sequence[float]) -> float:
    return statistics.median(relative) if relative else 0.0


Measured = tuple[Unit, Difference | float, float]
"""The unit of one output on one input, eager's own error (a share of elements where discrete), the sentinel
threshold."""


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
    numbers, or it is more precise than what it was computed with (``epsilon``), whose roundings tell nothing of it."""
    if not continuous(eager[0]) or epsilon_of(eager[0]) < epsilon:
        return True
    fewest = min((len(indices) / eager[0].shape[dim] for dim, indices in columns_apart(eager)), default=1.0)
    return fewest * sum(e.numel() for e in eager) < FEW


def measure_own_error(
    eager: Sequence[Tensor], truth: Sequence[Tensor], nudged: Sequence[Sequence[Tensor]], epsilon: float = 0.0
) -> list[Measured]:
    """Measure one output on several inputs: ``nudged`` are runs with weights and inputs moved by a rounding,
    ``epsilon`` the least machine epsilon to assume."""
    if not continuous(eager[0]):
        shares = [share(int((e != t).sum()), e) for e, t in zip(eager, truth, strict=True)]
        more = [[share(mismatches(m, t, e), e) for m in ms] for ms, t, e in zip(nudged, truth, eager, strict=True)]
        return list(zip(discrete_units(shares, more), shares, [math.inf] * len(eager), strict=True))
    if epsilon_of(eager[0]) < epsilon:
        epsilon = 0.0  # of float64 every digit counts, whatever part of it was computed in less
    if parts := columns_apart(truth):
        return _by_columns(eager, truth, nudged, epsilon, parts)
    thresholds = [sentinel_threshold(e) for e in eager]
    own = [difference(e, t, e, th) for e, t, th in zip(eager, truth, thresholds, strict=True)]
    others = [
        [difference(m, t, e, th) for m in ms] for ms, t, e, th in zip(nudged, truth, eager, thresholds, strict=True)
    ]
    return list(zip(units(own, others, max(epsilon, epsilon_of(eager[0]))), own, thresholds, strict=True))


def _by_columns(
    eager: Sequence[Tensor],
    truth: Sequence[Tensor],
    nudged: Sequence[Sequence[Tensor]],
    epsilon: float,
    parts: Sequence[tuple[int, list[int]]],
) -> list[Measured]:
    """Each magnitude as an output of its own; eager's error is that of the worst."""
    by_input: list[list[tuple[ColumnsUnit, Measured]]] = [[] for _ in eager]
    for dim, indices in parts:
        columns = ColumnsUnit(dim=dim, indices=tuple(indices), rms=0.0, peak=0.0, threshold=math.inf)
        measured = measure_own_error(
            [columns.of(e) for e in eager],
            [columns.of(t) for t in truth],
            [[columns.of(m) for m in moved] for moved in nudged],
            epsilon,
        )
        for i, of_input in enumerate(measured):
            unit, _, threshold = of_input
            of_columns = columns.model_copy(update={"rms": unit.rms, "peak": unit.peak, "threshold": threshold})
            by_input[i].append((of_columns, of_input))
    return [
        (
            Unit(
                rms=max(columns.rms for columns, _ in of_input),
                peak=max(columns.peak for columns, _ in of_input),
                columns=tuple(columns for columns, _ in of_input),
            ),
            max((own for _, (_, own, _) in of_input), key=lambda own: own.rmse if isinstance(own, Difference) else own),
            math.inf,
        )
        for of_input in by_input
    ]


def leaf_error(
    name: str, found: Tensor, truth: Tensor, eager: Tensor, unit: Unit, threshold: float
) -> tuple[LeafError, bool]:
    """The error of one output tensor, and whether NaN, inf or a sentinel is where it must not be (or is not where it
    must)."""
    found = plain(found)
    if not continuous(found):
        wrong = share(mismatches(found, truth, eager), found)
        units = math.inf if far_off(found, truth, eager) else in_units(wrong, unit.rms)
        return LeafError(name=name, rmse=wrong, max_abs=wrong, units=units), False
    if unit.columns:
        return _worst_column(name, found, truth, eager, unit)
    error = difference(found, truth, eager, threshold)
    units = max(in_units(error.rms, unit.rms), in_units(error.peak, unit.peak))
    return LeafError(name=name, rmse=error.rmse, max_abs=error.max_abs, units=units), error.misplaced > 0


def _worst_column(name: str, found: Tensor, truth: Tensor, eager: Tensor, unit: Unit) -> tuple[LeafError, bool]:
    errors = [
        leaf_error(
            name,
            columns.of(found),
            columns.of(truth),
            columns.of(eager),
            Unit(rms=columns.rms, peak=columns.peak),
            columns.threshold,
        )
        for columns in unit.columns
    ]
    return worst([error for error, _ in errors]), any(misplaced for _, misplaced in errors)


def worst(errors: Sequence[LeafError]) -> LeafError:
    """The largest of each measure, of errors of one output."""
    return LeafError(
        name=errors[0].name,
        rmse=max(error.rmse for error in errors),
        max_abs=max(error.max_abs for error in errors),
        units=max(error.units for error in errors),
    )


def error_in_units(found: Tensor, truth: Tensor, eager: Tensor, nudged: Sequence[Tensor] = ()) -> float:
    """Measure how far one output is from the truth, in units of plain eager's own error.

    All tensors have one shape. ``truth`` is in float64 (where there is none, eager itself); ``nudged`` are eager's
    outputs with weights and inputs moved by a rounding, which support the unit where an output has few numbers.
    Infinite where NaN, infinity or a sentinel stands where it must not, or is missing.
    """
    ((unit, _, threshold),) = measure_own_error([eager], [truth], [nudged])
    return leaf_error("", found, truth, eager, unit, threshold)[0].units
