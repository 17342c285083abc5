"""Memory over time as stacked areas, one for each category. The script reads a moment's values from the same data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from togi.core.quantities import size
from togi.render.html.axis import tick_label
from togi.render.html.markup import Markup, element

_MIB = 2**20
_TICKS = 5


class Layers(Protocol):
    """What is stacked: an account's categories, or a snapshot's layers."""

    @property
    def ms(self) -> Sequence[float]: ...

    @property
    def bytes(self) -> Mapping[Any, Sequence[int]]: ...


def timeline_figure(timeline: Layers, *, what: str = "memory alive, MiB", unit: str = "ms, watched") -> Markup:
    """Categories that hold the most at the bottom; the top edge is everything alive."""
    order = sorted(timeline.bytes, key=lambda category: -min(timeline.bytes[category], default=0))
    totals = [sum(point) for point in zip(*timeline.bytes.values(), strict=True)]
    top = max(totals, default=0) or 1
    last = timeline.ms[-1] or 1.0
    lower = [0] * len(totals)
    areas: list[Markup] = []
    for category in order:
        upper = [below + here for below, here in zip(lower, timeline.bytes[category], strict=True)]
        areas.append(_area(category, timeline.ms, lower, upper, last, top))
        lower = upper
    svg = element("svg", {"viewBox": "0 0 1000 100", "preserveAspectRatio": "none", "aria-hidden": "true"}, *areas)
    data = {"ms": timeline.ms, "series": {c.value: timeline.bytes[c] for c in reversed(order)}}
    area = element(
        "div",
        {"class": "area", "tabindex": "0", "role": "img", "aria-label": f"The peak is {size(top)}"},
        *(_line(tick / top * 100, tick_label(tick / _MIB)) for tick in _ticks(top)),
        svg,
        element("i", {"class": "cursor", "hidden": "hidden"}),
    )
    compact = json.dumps(data, separators=(",", ":"))
    return element(
        "figure",
        {"class": "timeline", "data-timeline": compact},
        element("figcaption", {"class": "axis-y"}, what),
        area,
        element("p", {"class": "axis-x"}, f"{last:,.0f} {unit}"),
        legend(order),
    )


def legend(categories: Sequence[StrEnum]) -> Markup:
    """What the colours mean."""
    marks = (element("li", None, element("i", {"class": f"swatch {css(c)}"}), c.value) for c in categories)
    return element("ul", {"class": "legend"}, *marks)


def css(category: StrEnum) -> str:
    """The class that colours a category in every figure."""
    return f"c-{re.sub(r'[^a-z]+', '-', category.value)}"


def _area(
    category: StrEnum, ms: Sequence[float], lower: Sequence[int], upper: Sequence[int], last: float, top: int
) -> Markup:
    """A staircase: memory changes at once."""
    edge: list[str] = []
    for bounds, forth in ((upper, True), (lower, False)):
        corners: list[tuple[float, float]] = []
        for number, when in enumerate(ms):
            y = round(100 - bounds[number] / top * 100, 2)
            if number:
                corners.append((round(when / last * 1000, 1), corners[-1][1]))
            corners.append((round(when / last * 1000, 1), y))
        edge += [f"{x},{y}" for x, y in (corners if forth else reversed(corners))]
    return element("polygon", {"class": css(category), "points": " ".join(edge)})


def _ticks(top: int) -> list[int]:
    """Round numbers of MiB below the top."""
    raw = top / _TICKS / _MIB
    step = next((f * 10**e for e in range(-4, 9) for f in (1, 2, 5) if f * 10**e >= raw), raw)
    return [round(number * step * _MIB) for number in range(1, _TICKS + 2) if number * step * _MIB <= top]


def _line(bottom: float, label: str) -> Markup:
    return element("span", {"class": "tick y", "style": f"bottom:{bottom:.2f}%"}, element("b", None, label))
