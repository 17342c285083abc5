"""Figures of one line per item: speed-up intervals (a forest plot), and the error that each technique brings."""

from __future__ import annotations

from collections.abc import Sequence

from togi.core.quantities import bounds, significant, times
from togi.core.records import Interval
from togi.render.attribution import Effect
from togi.render.html.axis import Axis, tick_label
from togi.render.html.markup import Markup, element
from togi.render.html.pareto import hint, kind
from togi.render.rows import Row

ORIGINAL = Interval(median=1.0, low=1.0, high=1.0)
"""The reference relates to itself."""


def speedup_plot(found: Sequence[Row]) -> Markup | None:
    """Every measured recipe with the interval of its speed-up; a line stands at 1, the original."""
    measured = [(row, row.speedup_x or ORIGINAL) for row in found if row.trial.eligible]
    if not measured:
        return None
    intervals = [interval for _, interval in measured]
    axis = Axis([1.0, *(end for interval in intervals for end in (interval.low, interval.high))])
    lines = [
        element(
            "li",
            {"class": "bar", "data-hint": hint(row), "data-trial": row.trial.recipe.id},
            element("span", {"class": "name"}, row.trial.recipe.label),
            _track(axis, _whisker(axis, interval.low, interval.high), _mark(axis, interval.median, kind(row))),
            _value(times(interval.median), bounds(interval)) if row.speedup_x else _value("1", "original"),
        )
        for row, interval in measured
    ]
    return _figure(lines, axis, "speed-up over the original; bars are confidence intervals of paired rounds")


def error_plot(effects: Sequence[Effect]) -> Markup | None:
    """Every technique with the error before and after it was added; a line stands at 1, eager's own error."""
    if not effects:
        return None
    values = [value for effect in effects for value in (effect.units, effect.units_before) if value]
    axis = Axis([1.0, *values])
    lines = [_effect(effect, axis) for effect in effects]
    return _figure(lines, axis, "error in multiples of eager's own; the grey dot is without the technique")


def _effect(effect: Effect, axis: Axis) -> Markup:
    faithful = effect.with_.error is None or effect.with_.error.faithful
    before = effect.units_before
    marks = [_mark(axis, effect.units, "faithful" if faithful else "approximate")]
    if before is not None:
        marks = [_whisker(axis, *sorted((before, effect.units))), _mark(axis, before, "without"), *marks]
    rmse = f"{effect.with_.error.rmse:.1e} relative" if effect.with_.error else ""
    change = f"{_units(before)} to {_units(effect.units)}" if before is not None else _units(effect.units)
    alone = "" if before is not None else "only tried together with others: "
    described = (
        f"{effect.technique} ({effect.stage.value})\n{alone}{effect.with_.recipe.label}\n{change} x eager's own, {rmse}"
    )
    return element(
        "li",
        {"class": "bar", "data-hint": described, "data-trial": effect.with_.recipe.id},
        element("span", {"class": "name"}, effect.technique, element("small", None, f" {effect.stage.value}")),
        _track(axis, *marks),
        _value(f"{change} x", rmse),
    )


def _units(units: float | None) -> str:
    return significant(units or 0.0, 2)


def _figure(lines: Sequence[Markup], axis: Axis, caption: str) -> Markup:
    ticks = (element("b", {"style": f"left:{axis.place(tick)}%"}, tick_label(tick)) for tick in axis.ticks())
    scale = element("div", {"class": "bar scale", "aria-hidden": "true"}, element("span", {"class": "track"}, *ticks))
    return element(
        "figure", {"class": "bars"}, element("ul", None, *lines), scale, element("figcaption", None, caption)
    )


def _track(axis: Axis, *marks: Markup) -> Markup:
    grid = (element("i", {"class": "grid", "style": f"left:{axis.place(tick)}%"}) for tick in axis.ticks())
    one = element("i", {"class": "one", "style": f"left:{axis.place(1.0)}%"})
    return element("span", {"class": "track", "aria-hidden": "true"}, *grid, one, *marks)


def _whisker(axis: Axis, low: float, high: float) -> Markup:
    left, right = axis.place(low), axis.place(high)
    return element("i", {"class": "whisker", "style": f"left:{left}%;width:{round(right - left, 2)}%"})


def _mark(axis: Axis, value: float, kind: str) -> Markup:
    return element("i", {"class": f"mark {kind}", "style": f"left:{axis.place(value)}%"})


def _value(first: str, second: str) -> Markup:
    return element("span", {"class": "value"}, first, element("small", None, second))
