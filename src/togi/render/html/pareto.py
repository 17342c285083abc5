"""Latency against memory: every measured recipe is a point, and the best trade-offs are joined."""

from __future__ import annotations

from collections.abc import Sequence

from togi.core.quantities import milliseconds, significant, size, times
from togi.render.html.axis import Axis, tick_label
from togi.render.html.markup import Markup, element, join
from togi.render.rows import Row

MIB = 1024**2
LEGEND = {
    "chosen": "chosen",
    "reference": "original (eager, no_grad)",
    "faithful": "faithful",
    "approximate": "approximate",
}


def pareto_plot(found: Sequence[Row]) -> Markup | None:
    """None when no recipe has both numbers."""
    points = [row for row in found if row.trial.eligible and row.trial.footprint]
    if not points:
        return None
    x, y = Axis(_latency(row) for row in points), Axis(_memory(row) for row in points)
    area = element(
        "div",
        {"class": "area"},
        *(_tick("x", x.place(tick), tick_label(tick)) for tick in x.ticks()),
        *(_tick("y", y.place(tick), tick_label(tick)) for tick in y.ticks()),
        _front([row for row in points if row.front], x, y),
        *(_point(row, x, y) for row in sorted(points, key=lambda row: (row.chosen, row.reference))),
        *(_tag(row, x, y) for row in points if row.chosen or row.reference),
    )
    present = {kind(row) for row in points}
    legend = (
        element("li", None, element("i", {"class": f"mark {name}"}), text)
        for name, text in LEGEND.items()
        if name in present
    )
    return element(
        "figure",
        {"class": "pareto"},
        element("figcaption", {"class": "axis-y"}, "memory, MiB (idle + peak of a call)"),
        area,
        element("p", {"class": "axis-x"}, "latency, ms per sample"),
        element(
            "ul", {"class": "legend"}, *legend, element("li", None, element("i", {"class": "line"}), "best trade-offs")
        ),
    )


def kind(row: Row) -> str:
    """The class that colours and shapes a recipe in every figure."""
    if row.chosen:
        return "chosen"
    if row.reference:
        return "reference"
    return "approximate" if row.approximate else "faithful"


def hint(row: Row) -> str:
    """What a point says when it is pointed at; lines separated by line feeds."""
    timing, footprint, error = row.trial.timing, row.trial.footprint, row.trial.error
    lines = [row.trial.recipe.label, row.verdict]
    if timing:
        speed = f", {times(row.speedup_x.median)} the speed" if row.speedup_x else ""
        lines.append(f"{milliseconds(timing.latency_ms.median)}{speed}")
    if footprint:
        lines.append(f"{size(footprint.idle_bytes)} idle + {size(footprint.peak_bytes)} peak")
    if error:
        lines.append(f"error {significant(error.units, 2)} x eager's own")
    return "\n".join(lines)


def _point(row: Row, x: Axis, y: Axis) -> Markup:
    return element(
        "button",
        {
            "class": f"point mark {kind(row)}",
            "type": "button",
            "style": f"left:{x.place(_latency(row))}%;bottom:{y.place(_memory(row))}%",
            "data-hint": hint(row),
            "data-trial": row.trial.recipe.id,
            "aria-label": hint(row).replace("\n", ", "),
        },
    )


def _tag(row: Row, x: Axis, y: Axis) -> Markup:
    left, bottom = x.place(_latency(row)), y.place(_memory(row))
    side = "before" if left > 60 else "after"
    text = "chosen" if row.chosen else "original"
    attributes = {"class": f"tag {side}", "style": f"left:{left}%;bottom:{bottom}%", "aria-hidden": "true"}
    return element("span", attributes, text)


def _tick(axis: str, place: float, label: str) -> Markup:
    style = f"left:{place}%" if axis == "x" else f"bottom:{place}%"
    return element("span", {"class": f"tick {axis}", "style": style}, element("b", None, label))


def _front(front: Sequence[Row], x: Axis, y: Axis) -> Markup:
    """A staircase: between two points, the memory of the faster one is what that latency costs."""
    corners: list[str] = []
    ordered = sorted(front, key=_latency)
    for row, following in zip(ordered, [*ordered[1:], None], strict=True):
        left, top = x.place(_latency(row)), round(100 - y.place(_memory(row)), 2)
        corners.append(f"{left},{top}")
        if following is not None:
            corners.append(f"{x.place(_latency(following))},{top}")
    line = element("polyline", {"points": " ".join(corners), "vector-effect": "non-scaling-stroke"})
    attributes = {"class": "front", "viewBox": "0 0 100 100", "preserveAspectRatio": "none", "aria-hidden": "true"}
    return element("svg", attributes, line) if len(ordered) > 1 else join()


def _latency(row: Row) -> float:
    return row.trial.timing.latency_ms.median if row.trial.timing else 0.0


def _memory(row: Row) -> float:
    return row.trial.footprint.total_bytes / MIB if row.trial.footprint else 0.0
