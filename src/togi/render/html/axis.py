"""Axes of figures: where a value stands on one, and its ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from togi.core.quantities import significant

LOGARITHMIC_FROM = 3.0
"""Axes whose values span this factor or more are logarithmic."""
MARGIN = 0.06
"""Free room on both sides, as a share of the span."""
MOST_TICKS = 8
ENOUGH_TICKS = 4
_FACTORS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))


class Axis:
    """``values`` are positive and finite; others are ignored."""

    def __init__(self, values: Iterable[float]) -> None:
        usable = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
        low, high = min(usable), max(usable)
        self.logarithmic = high / low >= LOGARITHMIC_FROM
        start, end = self._scale(low), self._scale(high)
        room = MARGIN * (end - start) or (0.1 * abs(end) or 0.1)
        self._start, self._end = start - room, end + room

    def place(self, value: float) -> float:
        """Percent from the left (or the bottom), kept inside the axis."""
        if not math.isfinite(value) or value <= 0:
            return 100.0 if value > 0 else 0.0
        share = (self._scale(value) - self._start) / (self._end - self._start)
        return round(100 * min(1.0, max(0.0, share)), 2)

    def ticks(self) -> list[float]:
        """Round values inside the axis."""
        ticks = self._decades() if self.logarithmic else list(self._steps())
        return ticks[:: math.ceil(len(ticks) / MOST_TICKS)]

    def _scale(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value

    def _ends(self) -> tuple[float, float]:
        return (10**self._start, 10**self._end) if self.logarithmic else (self._start, self._end)

    def _decades(self) -> list[float]:
        """Powers of ten; with more values between them the fewer decades there are."""
        low, high = self._ends()
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factors in _FACTORS:
            ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
            inside = [tick for tick in ticks if low <= tick <= high]
            if len(inside) >= ENOUGH_TICKS:
                return inside
        return list(self._steps())

    def _steps(self) -> Iterator[float]:
        low, high = self._ends()
        raw = (high - low) / 5
        magnitude = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw)
        number = math.ceil(low / step)
        while number * step <= high:
            if number > 0:
                yield number * step
            number += 1


def tick_label(value: float) -> str:
    """``0.5``, ``20``, ``1,000``, ``100k``, ``2M``: short, and no digits that say nothing."""
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 10 * unit or (suffix != "k" and value >= unit):
            return f"{value / unit:,.4g}{suffix}"
    text = significant(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True)
class Tick:
    place: float
    label: str


def ticks(axis: Axis, unit: str = "") -> list[Tick]:
    return [Tick(axis.place(tick), tick_label(tick) + unit) for tick in axis.ticks()]
