"""The rounds of a paired measurement as a small line: speed-up per round, with the original's line at 1."""

from __future__ import annotations

from togi.core.quantities import plural, times
from togi.core.records import Timing
from togi.render.html.markup import Markup, element

WIDTH, HEIGHT = 240, 48


def rounds_line(timing: Timing) -> Markup | None:
    """None when no raw rounds were kept."""
    ratios = [reference / candidate for reference, candidate in timing.rounds_ms if candidate > 0 and reference > 0]
    if len(ratios) < 2:
        return None
    low, high = min([1.0, *ratios]), max([1.0, *ratios])
    span = (high - low) or 1.0

    def height(ratio: float) -> float:
        return round(2 + (HEIGHT - 4) * (1 - (ratio - low) / span), 1)

    step = WIDTH / (len(ratios) - 1)
    points = " ".join(f"{round(number * step, 1)},{height(ratio)}" for number, ratio in enumerate(ratios))
    said = f"{plural(len(ratios), 'round')}: {times(min(ratios))} to {times(max(ratios))}"
    one = str(height(1.0))
    svg = element(
        "svg",
        {
            "class": "rounds",
            "viewBox": f"0 0 {WIDTH} {HEIGHT}",
            "preserveAspectRatio": "xMinYMid",
            "role": "img",
            "aria-label": said,
        },
        element("line", {"x1": "0", "x2": str(WIDTH), "y1": one, "y2": one}),
        element("polyline", {"points": points}),
    )
    return element("div", None, svg, element("small", None, said))
