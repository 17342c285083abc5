"""The units of every answer of the truth: eager's own errors, pooled per output over all inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from togi.verify.answers import Run
from togi.verify.compare import continuous, difference, mismatches, sentinel_threshold
from togi.verify.units import FEW, Measured, discrete_units, epsilon_of, share, units


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
