"""Chooses among regions and operations by bytes saved for each second of repeated work.

Every region has a curve: how many bytes it keeps against how many milliseconds it repeats. Steps along the lower convex
hulls of all curves, cheapest bytes first, are the optimal solutions of the fractional knapsack (Dantzig 1957); each
step is one more plan, a little smaller and a little slower. Pure: records in, plans out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from togi.budget.fit.plan import Action, Treatment
from togi.budget.fit.regions import Region


@dataclass(frozen=True)
class Choice:
    """One way to treat a region: which results it keeps. ``keeps`` is None where it is left alone."""

    bytes: int
    ms: float
    keeps: tuple[str, ...] | None = None
    action: Action = Action.RECOMPUTE


@dataclass(frozen=True)
class Draft:
    """A choice for each region of one partition."""

    regions: tuple[Region, ...]
    choices: tuple[Choice, ...]

    @property
    def ms(self) -> float:
        return sum(choice.ms for choice in self.choices)

    @property
    def bytes(self) -> int:
        return sum(choice.bytes for choice in self.choices)

    def with_choice(self, at: int, choice: Choice) -> Draft:
        return Draft(self.regions, (*self.choices[:at], choice, *self.choices[at + 1 :]))

    @property
    def treatments(self) -> tuple[Treatment, ...]:
        return tuple(
            Treatment(
                module=region.module,
                children=region.children,
                action=choice.action,
                keeps=choice.keeps,
                state=region.state,
                saved_bytes=region.kept_bytes - choice.bytes,
                recompute_ms=choice.ms,
            )
            for region, choice in zip(self.regions, self.choices, strict=True)
            if choice.keeps is not None
        )


def untouched(region: Region) -> Choice:
    return Choice(region.kept_bytes, 0.0)


def repeated(region: Region) -> Choice:
    """All of it is repeated."""
    return Choice(region.added_bytes, sum(ms for _, _, ms, _ in region.operations), ())


def compressed(region: Region, ms_per_byte: float) -> Choice:
    """Half the bytes, for the time of two casts. Masks and indices may shrink more or not at all."""
    return Choice(region.kept_bytes // 2, region.kept_bytes * ms_per_byte, (), Action.COMPRESS)


def curve(region: Region, cast_ms_per_byte: float | None = None) -> list[Choice]:
    """From untouched to wholly repeated, on the lower convex hull: every step costs more for each byte than the last.

    Compression takes part where the time of its casts is given.
    """
    large = [one for one in region.operations if one[3] and one[1] > 0]
    large.sort(key=lambda one: one[2] / one[1])
    bytes = region.added_bytes + sum(one[1] for one in large)
    ms = sum(one[2] for one in region.operations) - sum(one[2] for one in large)
    points = [untouched(region)]
    for dropped in range(len(large) + 1):
        points.append(Choice(bytes, ms, tuple(sorted(one[0] for one in large[dropped:]))))
        if dropped < len(large):
            bytes, ms = bytes - large[dropped][1], ms + large[dropped][2]
    if cast_ms_per_byte is not None and region.kept_bytes:
        points.append(compressed(region, cast_ms_per_byte))
    return _hull([point for point in points if point.bytes < region.kept_bytes or point.keeps is None])


def drafts(regions: Sequence[Region], cast_ms_per_byte: float | None = None) -> list[Draft]:
    """From nothing treated to everything repeated, one step of one region at a time."""
    curves = [curve(region, cast_ms_per_byte) for region in regions]
    steps = sorted(_steps(curves), key=lambda step: step[:2])
    found = [Draft(tuple(regions), tuple(points[0] for points in curves))]
    for _, at, choice in steps:
        found.append(found[-1].with_choice(at, choice))
    return found


def _steps(curves: Sequence[Sequence[Choice]]) -> Iterable[tuple[float, int, Choice]]:
    for at, points in enumerate(curves):
        for before, after in pairwise(points):
            yield _price(before, after), at, after


def _hull(points: Sequence[Choice]) -> list[Choice]:
    """``points`` by falling bytes; those above the lower convex hull left out."""
    hull: list[Choice] = []
    for point in sorted(points, key=lambda one: (-one.bytes, one.ms)):
        if hull and point.bytes == hull[-1].bytes:
            continue
        while len(hull) >= 2 and _price(hull[-2], hull[-1]) >= _price(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _price(before: Choice, after: Choice) -> float:
    """Milliseconds for each byte saved."""
    return (after.ms - before.ms) / (before.bytes - after.bytes)
