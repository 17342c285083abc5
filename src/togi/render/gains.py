"""Gains of a study: how the best so far grew with time, once for all forms that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from togi.core.choices import Objective
from togi.core.quantities import milliseconds, plural, seconds, times
from togi.core.records import MeasuredTrial, Outcome, Recipe, Study, Trial, measured
from togi.decide.break_even import break_even
from togi.decide.budget import Budget
from togi.decide.choose import acceptable
from togi.decide.faster import BETWEEN_PROCESSES
from togi.render.rows import objective_of


@dataclass(frozen=True)
class Gain:
    """A trial after which the best so far was faster."""

    trial: Trial
    ended_s: float
    speedup_x: float
    """As it was measured then."""


def gains(study: Study) -> tuple[Gain, ...]:
    """List how the best so far grew. None where several commands made the study: each had a clock of its own."""
    so_far: list[Gain] = []
    first: dict[Recipe, MeasuredTrial] = {}  # race and proof come later
    for measurement in measured(study.trials):
        known = first.get(measurement.recipe)
        if known is None or known.outcome is Outcome.UNSTABLE:  # what was disturbed is measured again
            first.pop(measurement.recipe, None)
            first[measurement.recipe] = measurement
    timed = [(m.trial.ended_s, m) for m in first.values() if m.trial.ended_s is not None]
    clock = [ended_s for ended_s, _ in timed]
    if len(timed) < len(first) or clock != sorted(clock):
        return ()
    budget = Budget.of(study.settings)
    for ended_s, measurement in timed:
        best, speedup = so_far[-1].speedup_x if so_far else 1.0, measurement.speedup_x.median
        if acceptable(measurement, budget) and is_gain(measurement) and speedup > best:
            so_far.append(Gain(measurement.trial, ended_s, speedup))
    return tuple(so_far)


def pays_off(study: Study) -> str:
    """After how many calls the study has saved the time that it took; empty where it saves none beyond doubt."""
    found = break_even(study)
    if found is None:
        return ""
    what = {Objective.THROUGHPUT: "request", Objective.FIRST_CALL: "start"}.get(objective_of(study), "call")
    what = "step" if study.facts.train else what
    saved = f"{seconds(found.study_s)} for {milliseconds(found.saved_ms)} each"
    return f"this study pays for itself after {plural(found.calls, what)} ({saved})"


def is_gain(measurement: MeasuredTrial) -> bool:
    """Other than the original, and faster beyond doubt."""
    return bool(measurement.recipe.choices) and BETWEEN_PROCESSES.faster(measurement.speedup_x)


def nearly_all(gains: Sequence[Gain]) -> Gain:
    """The first of the gains that has 90 % of what the last one gained."""
    return next(gain for gain in gains if gain.speedup_x >= 1 + 0.9 * (gains[-1].speedup_x - 1))


def how_soon(gains: Sequence[Gain]) -> str:
    """When the first gain was there, and 90 % of the final one; empty where there was none."""
    if not gains:
        return ""
    first = gains[0]
    return (
        f"the first gain was measured {seconds(first.ended_s)} after the start ({first.trial.recipe.label}, "
        f"{times(first.speedup_x)}), 90 % of the final one after {seconds(nearly_all(gains).ended_s)}"
    )
