"""How the best so far grew with time, and how soon the gain was there: the curve of a study, once for all its forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from togi.core.quantities import seconds, times
from togi.core.records import MeasuredTrial, Recipe, Study, Trial, measured
from togi.decide.budget import Budget
from togi.decide.choose import acceptable
from togi.decide.faster import BETWEEN_PROCESSES


@final
@dataclass(frozen=True)
class Gain:
    """A trial after which the best so far was faster."""

    trial: Trial
    ended_s: float
    speedup_x: float
    """As it was measured then."""


def gains(study: Study) -> tuple[Gain, ...]:
    """How the best so far grew with time. None where several commands made the study: each had a clock of its own."""
    found: list[Gain] = []
    first: dict[Recipe, MeasuredTrial] = {}  # race and proof come later
    for measurement in measured(study.trials):
        first.setdefault(measurement.recipe, measurement)
    timed = [(one.trial.ended_s, one) for one in first.values() if one.trial.ended_s is not None]
    clock = [ended_s for ended_s, _ in timed]
    if len(timed) < len(first) or clock != sorted(clock):
        return ()
    for ended_s, measurement in timed:
        best, speedup = found[-1].speedup_x if found else 1.0, measurement.speedup_x.median
        optimised = acceptable(measurement, Budget.of(study.settings)) and measurement.recipe.choices
        if optimised and BETWEEN_PROCESSES.faster(measurement.speedup_x) and speedup > best:
            found.append(Gain(measurement.trial, ended_s, speedup))
    return tuple(found)


def nearly_all(found: Sequence[Gain]) -> Gain:
    """The first of the gains that has 90 % of what the last one gained."""
    return next(gain for gain in found if gain.speedup_x >= 1 + 0.9 * (found[-1].speedup_x - 1))


def how_soon(found: Sequence[Gain]) -> str:
    """When the first gain was there, and 90 % of the last; empty where there was none."""
    if not found:
        return ""
    label = found[0].trial.recipe.label
    return (
        f"the first gain was measured {seconds(found[0].ended_s)} after the start ({label}, "
        f"{times(found[0].speedup_x)}), 90 % of the last after {seconds(nearly_all(found).ended_s)}"
    )
