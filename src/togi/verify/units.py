"""The unit of error: how far plain eager is from the truth, made robust for small tensors.

A candidate's error is judged in multiples of eager's own. That needs an estimate of eager's own error which is not
small by luck. So it is pooled over all inputs (the median of the relative errors), it never falls below a few roundings
of the output's own type, and where a leaf has few numbers in all, eager is also run with weights and inputs moved by
one rounding each: that samples the error that any order of evaluation may make.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.core.records import Record
from togi.decide.faithful import MISMATCH_FLOOR, in_units, unit_of_error
from togi.verify.compare import Difference, continuous, difference, mismatches, sentinel_threshold
from togi.verify.observe import Run

FEW = 256
"""Below this many numbers (over all inputs) eager's own error is also sampled by nudged runs. The root mean square of n
normal errors is below a quarter of its expectation with probability 2e-4 at n = 8 and never seen at n = 256; the
extreme of few numbers scatters far more than their mean square."""


class Unit(Record):
    """One unit of error for one output on one input, absolute. For integers and bools ``rms`` is a share of
    elements."""

    rms: float
    peak: float


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
    """For integers and bools: ``shares`` of elements on which eager and the truth disagree, per input."""
    found = [max([share, *more, MISMATCH_FLOOR]) for share, more in zip(shares, nudged, strict=True)]
    return [Unit(rms=share, peak=share) for share in found]


def error_in_units(found: Tensor, truth: Tensor, eager: Tensor, nudged: Sequence[Tensor] = ()) -> float:
    """How far one output is from the truth, in units of plain eager's own error.

    All tensors have one shape. ``truth`` is in float64 (where there is none, eager itself); ``nudged`` are eager's
    outputs with weights and inputs moved by a rounding, which support the unit where an output has few numbers.
    Infinite where NaN, infinity or a sentinel stands where it must not, or is missing.
    """
    if not continuous(eager):
        own, more = share(mismatches(eager, truth, truth), eager), [mismatches(n, truth, eager) for n in nudged]
        unit = discrete_units([own], [[share(count, eager) for count in more]])[0]
        return in_units(share(mismatches(found, truth, eager), eager), unit.rms)
    threshold = sentinel_threshold(eager)
    one = difference(eager, truth, eager, threshold)
    unit = units([one], [[difference(n, truth, eager, threshold) for n in nudged]], epsilon_of(eager))[0]
    error = difference(found, truth, eager, threshold)
    return max(in_units(error.rms, unit.rms), in_units(error.peak, unit.peak))


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
    run: Run, truths: list[list[Tensor]], nudges: list[list[list[Tensor]]], epsilon: float, known: bool
) -> list[list[Measured]]:
    """Per call and leaf: the unit, eager's own error, the sentinel threshold. Pooled per leaf name over all calls."""
    places: dict[str, list[tuple[int, int]]] = {}
    for c, seen in enumerate(run.seen):
        for i, (name, _) in enumerate(seen.leaves):
            places.setdefault(name, []).append((c, i))
    result: list[list[Any]] = [[None] * len(leaves) for leaves in run.leaves]
    for where in places.values():
        for (c, i), found in zip(where, _leaf_units(where, run, truths, nudges, epsilon, known), strict=True):
            result[c][i] = found
    return result


def _leaf_units(
    where: list[tuple[int, int]],
    run: Run,
    truths: list[list[Tensor]],
    nudges: list[list[list[Tensor]]],
    epsilon: float,
    known: bool,
) -> Iterator[Measured]:
    eager = [run.leaves[c][i] for c, i in where]
    truth = [truths[c][i] for c, i in where]
    moved = [
        [n[c][i] for n in nudges if i < len(n[c]) and n[c][i].shape == e.shape]
        for (c, i), e in zip(where, eager, strict=True)
    ]
    if not continuous(eager[0]):
        shares = [share(int((e != t).sum()), e) for e, t in zip(eager, truth, strict=True)]
        more = [[share(mismatches(m, t, e), e) for m in ms] for ms, t, e in zip(moved, truth, eager, strict=True)]
        yield from zip(discrete_units(shares, more), shares, [float("inf")] * len(where), strict=True)
        return
    thresholds = [sentinel_threshold(e) for e in eager]
    own = [difference(e, t, e, th) for e, t, th in zip(eager, truth, thresholds, strict=True)]
    if known and sum(d.count for d in own) >= FEW:
        moved = [[] for _ in eager]
    others = [
        [difference(m, t, e, th) for m in ms] for ms, t, e, th in zip(moved, truth, eager, thresholds, strict=True)
    ]
    found = units(own, others, max(epsilon, epsilon_of(eager[0])))
    yield from zip(found, own, thresholds, strict=True)
