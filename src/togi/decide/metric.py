"""What is decided of the user's metric: whether it can judge, which values are better, and how far one dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence

from togi.core.choices import Direction
from togi.core.records import Record

ROUNDING = 2.0**-22
"""Of a metric's values, relative: twice what float32 rounds by, in which most are computed. 1 to 0.95 is a drop of
0.05, though neither float32 nor float64 holds 0.95."""
_SHOWN_DIGITS, _ALL_DIGITS = 4, 17


class MetricFacts(Record):
    """What the user's metric says of the original, and what was found of it."""

    value: float | None = None
    better: Direction | None = None
    """Which of its values are better. None: not known, since nothing is judged by it."""
    problem: str = ""
    """Why it cannot judge anything, in words that follow "the metric"; empty where it can."""


def judged(original: float, damaged: Sequence[float], declared: Direction | None) -> MetricFacts:
    """Which values of a metric are better, from what it says of models that were damaged on purpose.

    One that says the same of all cannot judge, nor one that was declared and is better for all that are damaged. Where
    nothing was declared most must be worse and none better: a metric that goes either way says nothing of this model.
    """
    low, high = sum(value < original for value in damaged), sum(value > original for value in damaged)
    found = None
    if not (low and high) and 2 * (low + high) > len(damaged):
        found = Direction.HIGHER if low else Direction.LOWER
    problem = ""
    if damaged and not (low or high):
        problem = f"it is {_text(original)} whether or not the model's weights are destroyed"
    elif declared is None and found is None:
        problem = _undecided(original, damaged)
    elif declared is not None and found not in (None, declared):
        problem = (
            f"it improves with damage, from {_text(original)} to {_between(damaged)} when the model's weights are "
            f"destroyed, if {declared} is better. Declare better='{found}', or correct the metric"
        )
    return MetricFacts(value=original, better=declared or found, problem=problem)


def drop(original: float, metric: float, better: Direction) -> float:
    """By how much it is worse than the original's; below zero where it is better."""
    return original - metric if better is Direction.HIGHER else metric - original


def within(original: float, metric: float, better: Direction, max_drop: float) -> bool:
    """It dropped by no more than ``max_drop``, but for how values round. A drop of nothing allows no rounding. NaN and
    infinity are not within."""
    if not math.isfinite(metric):
        return False
    rounding = ROUNDING * max(abs(original), abs(metric)) if max_drop > 0 else 0.0
    return drop(original, metric, better) <= max_drop + rounding


def shown(original: float, metric: float, better: Direction, max_drop: float) -> tuple[str, str]:
    """Both values with as many digits as it takes to see whether the drop is within."""
    answer = within(original, metric, better, max_drop)
    for digits in range(_SHOWN_DIGITS, _ALL_DIGITS):
        before, now = f"{original:.{digits}g}", f"{metric:.{digits}g}"
        if within(float(before), float(now), better, max_drop) is answer:
            return before, now
    return repr(original), repr(metric)


def _undecided(original: float, damaged: Sequence[float]) -> str:
    declare = "Declare which of its values are: better='higher' or better='lower'"
    if not damaged:
        return f"the model could not be damaged to find out which of its values are better. {declare}"
    return (
        f"damage does not tell which of its values are better: from {_text(original)} it goes to {_between(damaged)} "
        f"when the model's weights are destroyed, so the model may be no better than chance on these samples. {declare}"
    )


def _between(damaged: Sequence[float]) -> str:
    """``0.1``, or ``between 0.1 and 0.4``."""
    low, high = _text(min(damaged)), _text(max(damaged))
    return low if low == high else f"between {low} and {high}"


def _text(value: float) -> str:
    return f"{value:.{_SHOWN_DIGITS}g}"
