"""The state of a running study, as displays show it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from togi.core.records import Interval, MeasuredTrial, Outcome, Recipe, Trial, measured
from togi.decide.budget import Budget
from togi.decide.choose import acceptable, latest
from togi.render.gains import is_gain

RECENT = 4
LEARNED = 3
MESSAGES = 3
ENOUGH_TO_PREDICT = 3
"""Trials after which the mean cost of one says something of the rest."""


class RunState:
    """The state of a running study right now. ``clock`` returns seconds and only ever grows."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_s = clock()
        self._phase_started_s = self._started_s
        self.planned: int | None = None
        self.time_limit_s: float | None = None
        self.recipe: Recipe | None = None
        self.phase = "looking at the subject"
        self.outcomes: Counter[Outcome] = Counter()
        self.best: MeasuredTrial | None = None
        self.gains: list[tuple[float, float]] = []
        """After how many seconds something faster than all before was measured, and how fast it was."""
        self.before_x = 1.0
        """What an earlier run of the study had gained."""
        self.budget = Budget()
        self.recent: deque[Trial] = deque(maxlen=RECENT)
        self.learned: deque[str] = deque(maxlen=LEARNED)
        self.messages: deque[str] = deque(maxlen=MESSAGES)
        """Of a display that they do not scroll by."""
        self.done = False
        self.race: tuple[int, dict[Recipe, Interval]] | None = None

    @property
    def ended(self) -> int:
        return self.outcomes.total()

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started_s

    @property
    def phase_s(self) -> float:
        return self._clock() - self._phase_started_s

    @property
    def left_s(self) -> float | None:
        """The time limit, or what the planned trials would take at the mean so far, whichever is sooner."""
        guesses = []
        if self.time_limit_s is not None:
            guesses.append(max(0.0, self.time_limit_s - self.elapsed_s))
        if self.planned and self.ended >= ENOUGH_TO_PREDICT:
            guesses.append(max(0, self.planned - self.ended) * self.elapsed_s / self.ended)
        return min(guesses, default=None)

    def enter(self, phase: str) -> None:
        self.phase = phase
        self._phase_started_s = self._clock()

    def resume(self, trials: Sequence[Trial], budget: Budget) -> None:
        """Count what an earlier run of the study found for what is best, not for what ended now."""
        self.budget = budget
        for measurement in measured(latest(trials)):
            if self._lead(measurement) and is_gain(measurement):
                self.before_x = measurement.speedup_x.median

    def end(self, trial: Trial) -> bool:
        """Count it; whether it is the best so far."""
        self.outcomes[trial.outcome] += 1
        self.recent.append(trial)
        measurement = trial.measured
        if measurement is None or not self._lead(measurement):
            return False
        if is_gain(measurement):
            self.gains.append((self.elapsed_s, measurement.speedup_x.median))
        return True

    def _lead(self, measurement: MeasuredTrial) -> bool:
        best_x = 0.0 if self.best is None else self.best.speedup_x.median
        leads = acceptable(measurement, self.budget) and measurement.speedup_x.median > best_x
        if leads:
            self.best = measurement
        return leads
