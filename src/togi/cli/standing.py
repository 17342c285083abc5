"""What is known of a running study right now: the state behind the live display and the plain lines."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from togi.core.quantities import plural
from togi.core.records import Facts, Interval, Outcome, Recipe, Study, Trial
from togi.decide.choose import acceptable, latest
from togi.study.progress import Progress

RECENT = 4
LEARNED = 3
ENOUGH_TO_PREDICT = 3
"""Trials after which the mean cost of one says something of the rest."""


class Standing:
    """``clock`` returns seconds and only ever grows."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_s = clock()
        self._phase_started_s = self._started_s
        self.planned: int | None = None
        self.time_limit_s: float | None = None
        self.recipe: Recipe | None = None
        self.phase = "looking at the subject"
        self.outcomes: Counter[Outcome] = Counter()
        self.best: Trial | None = None
        self.max_memory_bytes: int | None = None
        self.recent: deque[Trial] = deque(maxlen=RECENT)
        self.learned: deque[str] = deque(maxlen=LEARNED)
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

    def resume(self, trials: Sequence[Trial], max_memory_bytes: int | None) -> None:
        """What an earlier run of the study found counts for what is best, not for what ended now."""
        self.max_memory_bytes = max_memory_bytes
        for trial in latest(trials):
            self._lead(trial)

    def end(self, trial: Trial) -> bool:
        """Count it; whether it is the best so far."""
        self.outcomes[trial.outcome] += 1
        self.recent.append(trial)
        return self._lead(trial)

    def _lead(self, trial: Trial) -> bool:
        leads = acceptable(trial, self.max_memory_bytes) and _speedup(trial) > _speedup(self.best)
        if leads:
            self.best = trial
        return leads


class WatchedProgress(Progress):
    """Keeps a ``Standing`` up to date; displays override ``changed`` and what they want to say more of."""

    def __init__(self, subject: str, clock: Callable[[], float]) -> None:
        self.subject = subject
        self.standing = Standing(clock)

    def changed(self, line: str) -> None:
        """Something happened; ``line`` says it in plain text."""

    def message(self, text: str) -> None:
        self.changed(text)

    def surveyed(self, facts: Facts, planned: int, time_limit_s: float | None) -> None:
        self.standing.planned, self.standing.time_limit_s = planned, time_limit_s
        self.standing.enter("planning")
        self.changed(f"{facts.module_class} on {facts.device}: up to {planned} recipes to try")

    def resumed(self, trials: Sequence[Trial], max_memory_bytes: int | None) -> None:
        self.standing.resume(trials, max_memory_bytes)
        if trials:
            best = self.standing.best
            so_far = f"; the best of them: {best.recipe.label}, {ending(best)}" if best is not None else ""
            self.changed(f"{plural(len(latest(trials)), 'recipe')} known from an earlier run{so_far}")

    def trial_started(self, recipe: Recipe, number: int) -> None:
        self.standing.recipe = recipe
        self.standing.enter("start")
        self.changed("")

    def trial_phase(self, recipe: Recipe, phase: str) -> None:
        self.standing.recipe = recipe
        self.standing.enter(phase)
        self.changed("")

    def trial_ended(self, trial: Trial) -> None:
        leads = self.standing.end(trial)
        self.standing.recipe = None
        self.standing.enter("choosing the next")
        self.changed(f"{self.standing.ended}. {trial.recipe.label}: {ending(trial)}{' (best so far)' if leads else ''}")

    def learned(self, text: str) -> None:
        self.standing.learned.append(text)
        self.changed(f"learned: {text}")

    def race_round(self, number: int, standing: dict[Recipe, Interval]) -> None:
        if self.standing.race is None:
            self.changed(f"race of {len(standing)} finalists")
        self.standing.race = (number, standing)
        self.standing.recipe = None
        self.standing.phase = f"racing, round {number}"

    def saving(self, recipe: Recipe) -> None:
        self.standing.recipe = recipe
        self.standing.enter("saving")
        self.changed(f"saving {recipe.label}")

    def finished(self, study: Study) -> None:
        self.standing.enter("done")


def ending(trial: Trial) -> str:
    """``2.31x the speed``, or the outcome with its reason."""
    if trial.eligible and trial.timing is not None:
        approximate = trial.error is not None and not trial.error.faithful
        return f"{trial.timing.speedup_x.median:.2f}x the speed{', approximate' if approximate else ''}"
    return f"{trial.outcome.value}: {trial.reason}" if trial.reason else trial.outcome.value


def _speedup(trial: Trial | None) -> float:
    return trial.timing.speedup_x.median if trial is not None and trial.timing else 0.0
