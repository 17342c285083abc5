"""Positions of the marks of a study's figures, in percent of the figure's width and height; templates draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from togi.core.quantities import bounds, milliseconds, plural, seconds, significant, size, times
from togi.core.records import Interval, Timing
from togi.render.attribution import Effect
from togi.render.gains import Gain
from togi.render.html.axis import Axis, Tick, ticks
from togi.render.rows import Row

_MIB = 2**20
_REFERENCE = Interval(median=1.0, low=1.0, high=1.0)
"""The speed-up of the reference over itself."""
LEGEND = {
    "chosen": "chosen",
    "reference": "the original",
    "faithful": "faithful",
    "approximate": "approximate",
}


def kind(row: Row) -> str:
    """The class that colours and shapes a recipe in every figure."""
    if row.chosen:
        return "chosen"
    if row.reference:
        return "reference"
    return "approximate" if row.approximate else "faithful"


def hint(row: Row) -> str:
    """The text of a mark that is pointed at; lines separated by line feeds."""
    timing, footprint, error = row.trial.timing, row.trial.footprint, row.trial.error
    lines = [row.trial.recipe.label, row.verdict]
    if timing:
        beside = f", eager {milliseconds(row.eager_ms)} in the same rounds" if row.eager_ms else ""
        lines.append(f"{milliseconds(timing.latency_ms.median)}{'' if row.reference else beside}")
    if row.speedup_x:
        lines.append(f"{times(row.speedup_x.median)} the speed ({bounds(row.speedup_x)})")
    if footprint:
        lines.append(f"{size(footprint.idle_bytes)} idle + {size(footprint.peak_bytes)} peak")
    if error:
        lines.append(f"error {significant(error.units, 2)} x eager's own")
    return "\n".join(lines)


@dataclass(frozen=True)
class ChartPoint:
    """One recipe of the trade-off."""

    row: Row
    kind: str
    hint: str
    left: float
    bottom: float


@dataclass(frozen=True)
class TradeOff:
    """Speed-up against memory; ``front`` joins the recipes that nothing beats in both, as points of a polyline."""

    points: list[ChartPoint]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    front: str
    legend: dict[str, str]


def trade_off(rows: Sequence[Row]) -> TradeOff | None:
    """Place speed-up against memory. None when no recipe has both numbers."""
    shown = [row for row in rows if row.trial.eligible and row.trial.footprint]
    if not shown:
        return None
    x, y = Axis(_speedup(row).median for row in shown), Axis(_memory_mib(row) for row in shown)
    points = [
        ChartPoint(row, kind(row), hint(row), x.place(_speedup(row).median), y.place(_memory_mib(row)))
        for row in sorted(shown, key=lambda row: (row.chosen, row.reference))
    ]
    present = {point.kind for point in points}
    return TradeOff(
        points=points,
        x_ticks=ticks(x, "x"),
        y_ticks=ticks(y),
        front=_front([point for point in points if point.row.front]),
        legend={name: text for name, text in LEGEND.items() if name in present},
    )


def _front(points: Sequence[ChartPoint]) -> str:
    """A staircase: whoever wants more than the speed of one point needs the memory of the next."""
    corners: list[str] = []
    before: ChartPoint | None = None
    for point in sorted(points, key=lambda point: point.left):
        top = round(100 - point.bottom, 2)
        if before is not None:
            corners.append(f"{before.left},{top}")
        corners.append(f"{point.left},{top}")
        before = point
    return " ".join(corners) if len(points) > 1 else ""


@dataclass(frozen=True)
class GainStep:
    """A trial after which the best so far was faster."""

    trial: str
    hint: str
    left: float
    bottom: float


@dataclass(frozen=True)
class Staircase:
    """The best so far against time; ``line`` joins the steps, as points of a polyline."""

    steps: list[GainStep]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    line: str


def staircase(gains: Sequence[Gain]) -> Staircase | None:
    """Place the gains. None without one."""
    if not gains:
        return None
    x, y = Axis(gain.ended_s for gain in gains), Axis((1.0, *(gain.speedup_x for gain in gains)))
    steps = [
        GainStep(
            gain.trial.recipe.id,
            f"{gain.trial.recipe.label}\n{times(gain.speedup_x)} after {seconds(gain.ended_s)}",
            x.place(gain.ended_s),
            y.place(gain.speedup_x),
        )
        for gain in gains
    ]
    corners, height = [], y.place(1.0)
    for step in steps:
        corners += [(step.left, height), (step.left, step.bottom)]
        height = step.bottom
    path = [(0.0, corners[0][1]), *corners, (100.0, height)]
    line = " ".join(f"{left},{round(100 - bottom, 2)}" for left, bottom in path)
    return Staircase(steps, ticks(x), ticks(y, "x"), line)


@dataclass(frozen=True)
class Bar:
    """One line of a figure: a name, marks on a track, and the value in words."""

    name: str
    detail: str
    hint: str
    trial: str
    """Id of the recipe whose trial it leads to; empty where there is none."""
    whisker: tuple[float, float] | None
    """Left and width."""
    marks: list[tuple[str, float]]
    """Kind and place of each."""
    value: str
    small: str


@dataclass(frozen=True)
class Bars:
    """A figure of one line per item; a line stands at ``one``."""

    lines: list[Bar]
    ticks: list[Tick]
    one: float
    caption: str


def speedups(rows: Sequence[Row]) -> Bars | None:
    """Every measured recipe with the interval of its speed-up; a line stands at 1, plain eager."""
    measured = [row for row in rows if row.trial.eligible]
    if not measured:
        return None
    intervals = [_speedup(row) for row in measured]
    sure = [end for interval in intervals if interval.has_ends for end in (interval.low, interval.high)]
    axis = Axis([1.0, *sure, *(interval.median for interval in intervals)])
    return Bars(
        lines=[_speedup_bar(row, axis) for row in measured],
        ticks=ticks(axis, "x"),
        one=axis.place(1.0),
        caption="speed-up over eager; bars are 95 % confidence intervals",
    )


def whisker(axis: Axis, low: float, high: float) -> tuple[float, float]:
    """Left end and width of a line from ``low`` to ``high``."""
    left = axis.place(low)
    return left, round(axis.place(high) - left, 2)


def _speedup_bar(row: Row, axis: Axis) -> Bar:
    speedup = _speedup(row)
    return Bar(
        name=row.trial.recipe.label,
        detail="",
        hint=hint(row),
        trial=row.trial.recipe.id,
        whisker=whisker(axis, speedup.low, speedup.high) if speedup.has_ends else None,
        marks=[(kind(row), axis.place(speedup.median))],
        value=times(speedup.median) if row.speedup_x else "1",
        small=bounds(speedup) if row.speedup_x else "eager",
    )


def errors(effects: Sequence[Effect]) -> Bars | None:
    """Every technique with the error before and after it was added; a line stands at 1, eager's own error."""
    if not effects:
        return None
    axis = Axis([1.0, *(value for effect in effects for value in (effect.units, effect.units_before) if value)])
    return Bars(
        lines=[_error_bar(effect, axis) for effect in effects],
        ticks=ticks(axis),
        one=axis.place(1.0),
        caption="error in multiples of eager's own; the grey dot is without the technique",
    )


def _error_bar(effect: Effect, axis: Axis) -> Bar:
    error, before = effect.with_.error, effect.units_before
    marks = [("faithful" if error is None or error.faithful else "approximate", axis.place(effect.units))]
    moved, change, alone = None, significant(effect.units, 2), "only tried together with others: "
    if before is not None:
        moved, alone = whisker(axis, *sorted((before, effect.units))), ""
        marks.insert(0, ("without", axis.place(before)))
        change = f"{significant(before, 2)} to {change}"
    relative = f"{error.rmse:.1e} relative" if error else ""
    return Bar(
        name=effect.technique,
        detail=effect.stage.value,
        hint=f"{effect.technique} ({effect.stage.value})\n{alone}{effect.with_.recipe.label}\n{change} x eager's own, "
        f"{relative}",
        trial=effect.with_.recipe.id,
        whisker=moved,
        marks=marks,
        value=f"{change} x",
        small=relative,
    )


@dataclass(frozen=True)
class Rounds:
    """The speed-up in each round of a measurement as a small line, ``one`` being the height of eager."""

    width: ClassVar[int] = 240
    height: ClassVar[int] = 48
    points: str
    one: float
    said: str


def rounds(timing: Timing) -> Rounds | None:
    """Draw the rounds of a measurement. None when no raw rounds were kept."""
    ratios = [reference / candidate for reference, candidate in timing.rounds_ms if candidate > 0 and reference > 0]
    if len(ratios) < 2:
        return None
    low, high = min([1.0, *ratios]), max([1.0, *ratios])
    span, step = (high - low) or 1.0, Rounds.width / (len(ratios) - 1)

    def top(ratio: float) -> float:
        return round(2 + (Rounds.height - 4) * (1 - (ratio - low) / span), 1)

    return Rounds(
        points=" ".join(f"{round(number * step, 1)},{top(ratio)}" for number, ratio in enumerate(ratios)),
        one=top(1.0),
        said=f"{plural(len(ratios), 'round')}: {times(min(ratios))} to {times(max(ratios))}",
    )


def _speedup(row: Row) -> Interval:
    return row.speedup_x or _REFERENCE


def _memory_mib(row: Row) -> float:
    return row.trial.footprint.total_bytes / _MIB if row.trial.footprint else 0.0
