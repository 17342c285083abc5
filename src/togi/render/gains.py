"""Gains of a study: how the best so far grew with time, once for all forms that show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from togi.core.quantities import seconds, times
from togi.core.records import Recipe, Study, Timing, Trial
from togi.decide.choose import Budget, acceptable
from togi.decide.faster import BETWEEN_PROCESSES


@dataclass(frozen=True)
class Gain:
    """A trial after which the best so far was faster."""

    trial: Trial
    ended_s: float
    speedup_x: float
    """As it was measured then."""


def gains(study: Study) -> tuple[Gain, ...]:
    """List how the best so far grew with time. None where several commands made the study: each had a clock of its
    own."""
    so_far: list[Gain] = []
    first: dict[Recipe, tuple[Trial, Timing]] = {}  # race and proof come later
    for trial in study.trials:
        if trial.timing is not None:
            first.setdefault(trial.recipe, (trial, trial.timing))
    timed = [(trial.ended_s, trial, timing) for trial, timing in first.values() if trial.ended_s is not None]
    clock = [ended_s for ended_s, _, _ in timed]
    if len(timed) < len(first) or clock != sorted(clock):
        return ()
    budget = Budget.of(study.settings)
    for ended_s, trial, timing in timed:
        best = so_far[-1].speedup_x if so_far else 1.0
        if acceptable(trial, budget) and is_gain(trial) and (speedup := timing.speedup_x.median) > best:
            so_far.append(Gain(trial, ended_s, speedup))
    return tuple(so_far)


def is_gain(trial: Trial) -> bool:
    """Other than the original, and faster beyond doubt."""
    return bool(trial.recipe.choices and trial.timing and BETWEEN_PROCESSES.faster(trial.timing.speedup_x))


def nearly_all(gains: Sequence[Gain]) -> Gain:
    """The first of the gains that has 90 % of what the last one gained."""
    return next(gain for gain in gains if gain.speedup_x >= 1 + 0.9 * (gains[-1].speedup_x - 1))


def how_soon(gains: Sequence[Gain]) -> str:
    """When the first gain was there, and 90 % of the last; empty where there was none."""
    if not gains:
        return ""
    first = gains[0]
    return (
        f"the first gain was measured {seconds(first.ended_s)} after the start ({first.trial.recipe.label}, "
        f"{times(first.speedup_x)}), 90 % of the last after {seconds(nearly_all(gains).ended_s)}"
    )
