"""The progress of a running study, told to an object that is passed in. The library prints nothing."""

from __future__ import annotations

from collections.abc import Sequence

from togi.core.records import Facts, Interval, Recipe, Study, Trial
from togi.decide.budget import Budget


class Progress:
    """Does nothing; the command line's display overrides what it shows. All times in seconds."""

    def message(self, text: str) -> None:
        """Something that happened, in a sentence."""

    def surveyed(self, facts: Facts, planned: int, time_limit_s: float | None) -> None:
        """The subject is known; ``planned`` recipes could be tried."""

    def resumed(self, trials: Sequence[Trial], budget: Budget) -> None:
        """``trials`` are known from an earlier run of this study; what is best is chosen among those that fit."""

    def trial_started(self, recipe: Recipe, number: int) -> None: ...

    def trial_phase(self, recipe: Recipe, phase: str) -> None:
        """build, verify, warm, measure, ..."""

    def trial_ended(self, trial: Trial) -> None: ...

    def learned(self, text: str) -> None:
        """What the search concluded from the trials so far, in a sentence."""

    def race_round(self, number: int, speedups_x: dict[Recipe, Interval]) -> None:
        """The finalists' race: speed-up over the reference so far."""

    def saving(self, recipe: Recipe) -> None: ...

    def finished(self, study: Study) -> None: ...


class PartProgress(Progress):
    """Of a part of a program, told to the program's in sentences: trials of a part are none of the program."""

    def __init__(self, whole: Progress, part: str) -> None:
        self.whole, self.part = whole, part

    def message(self, text: str) -> None:
        self.whole.message(f"{self.part}: {text}")

    def trial_ended(self, trial: Trial) -> None:
        self.message(f"{trial.recipe.label}: {ending(trial)}")

    def learned(self, text: str) -> None:
        self.message(f"learned: {text}")


def ending(trial: Trial) -> str:
    """``2.31x the speed``, or the outcome with its reason."""
    if (measurement := trial.measured) is not None and measurement.eligible:
        approximate = trial.error is not None and not trial.error.shown_right
        return f"{measurement.speedup_x.median:.2f}x the speed{', approximate' if approximate else ''}"
    return f"{trial.outcome.value}: {trial.reason}" if trial.reason else trial.outcome.value
