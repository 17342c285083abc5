"""How a study goes on: try recipes one by one beside the reference, race the best, save and prove the winner."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from togi.journal import StudyLog
from togi.judgement import judge
from togi.measure import compare
from togi.progress import Progress
from togi.records import Facts, Outcome, Recipe, Timing, Trial
from togi.search import Search
from togi.settings import Settings
from togi.study.stable import Stable
from togi.subject.signature import Signature
from togi.techniques import recipe, technique
from togi.trial.supervise import Limits, RunningTrial, TrialEnded

REFERENCE = {"no_grad": {}}
"""Plain eager under ``no_grad``: what every speed-up relates to."""
_STANDING = 4
_MEMORY_SHARE = 0.8
_TRIAL_TIMEOUT_S = 300.0
_COMPARE_BUDGET_S = 3.0
_RACE_SHARE = 0.2
_RACE_BUDGET_S = (8.0, 45.0)


@dataclass
class Course:
    """One study under way."""

    stable: Stable
    subject: str
    facts: Facts
    signature: Signature
    settings: Settings
    log: StudyLog
    search: Search
    progress: Progress
    started: float
    notes: list[str] = field(default_factory=list)
    _standing: dict[Recipe, RunningTrial] = field(default_factory=dict)
    _reference: RunningTrial | None = None

    def explore(self) -> None:
        """Try what the search suggests until it has nothing better, or the time for it is over."""
        while (left := self._explore_s()) > 0 and (next_recipe := self.search.next()) is not None:
            if not self.log.claim(next_recipe):
                self._catch_up()
                continue
            try:
                trial = self.attempt(next_recipe, min(left, self.trial_timeout_s))
            except BaseException:
                self.log.release(next_recipe)
                raise
            self.log.append(trial)
            self.search.tell(trial)
            self.progress.trial_ended(trial)

    def _catch_up(self) -> None:
        """Another process works on this study too: take over what it found; wait a moment if that is nothing."""
        news = self.log.news()
        for trial in news:
            self.search.tell(trial)
        if not news:
            time.sleep(0.5)

    def attempt(self, candidate: Recipe, timeout_s: float) -> Trial:
        """One trial from start to record. Never raises for what the trial's process does."""
        self.progress.trial_started(candidate, self.search.tried + 1)
        began = time.monotonic()
        try:
            reference = self.reference()
            running = self._start(candidate, timeout_s)
            trial = self._judged(running) or self._measured(running, reference)
        except TrialEnded as ended:
            if ended.trial is self._reference:
                self._reference = None
            trial = ended.record()
        return trial.model_copy(update={"cost_s": time.monotonic() - began})

    def reference(self) -> RunningTrial:
        """The standing reference; started (again) when there is none."""
        if self._reference is None:
            self._reference = self._start(recipe(**REFERENCE), self.trial_timeout_s)
            self._reference.warm()
        return self._reference

    def standing(self, candidate: Recipe) -> RunningTrial | None:
        """The candidate, built, verified and warm; built again if it stands no longer. None if it now fails."""
        if candidate not in self._standing:
            try:
                running = self._start(candidate, self.trial_timeout_s)
                running.warm()
            except TrialEnded as ended:
                self.notes.append(f"{candidate.label} could not be built again: {ended}")
                return None
            self._standing[candidate] = running
        return self._standing[candidate]

    def last(self, candidate: Recipe) -> Trial | None:
        """The last trial of a recipe in the journal."""
        return next((t for t in reversed(self.log.trials()) if t.recipe == candidate), None)

    def _start(self, candidate: Recipe, timeout_s: float) -> RunningTrial:
        limits = Limits(timeout_s=timeout_s, memory_bytes=int(_MEMORY_SHARE * self.facts.machine.memory_bytes))
        on_phase: Callable[[str], None] = lambda phase: self.progress.trial_phase(candidate, phase)  # noqa: E731
        return self.stable.start(candidate, self.facts, limits, on_phase)

    def _judged(self, running: RunningTrial) -> Trial | None:
        """The record of a candidate that is wrong, else None."""
        outcome, reason = self.verdict(running)
        if outcome is Outcome.OK:
            return None
        running.close()
        return self._record(running, outcome, reason)

    def verdict(self, running: RunningTrial) -> tuple[Outcome, str]:
        if running.error is None:
            return Outcome.FAILED, "it was not verified"
        exact = all(technique(choice.technique).exact for choice in running.recipe.choices)
        return judge(running.error, exact=exact, settings=self.settings)

    def _measured(self, running: RunningTrial, reference: RunningTrial) -> Trial:
        running.warm()
        self.progress.trial_phase(running.recipe, "measure")
        if running.recipe == reference.recipe:
            running.close()
            running = reference
        comparison = compare(reference, running, budget_s=_COMPARE_BUDGET_S, seed=self.settings.seed)
        footprint = running.footprint()
        outcome, reason = self.verdict(running)
        trial = self._record(running, outcome, reason).model_copy(
            update={"timing": self._timing(running, comparison.timing(running.name)), "footprint": footprint}
        )
        if running is not reference:
            self._keep(running, trial)
        return trial

    def _timing(self, running: RunningTrial, timing: Timing) -> Timing:
        return timing.model_copy(update={"first_call_ms": running.first_call_ms, "build_s": running.build_s})

    def _record(self, running: RunningTrial, outcome: Outcome, reason: str) -> Trial:
        return Trial(
            recipe=running.recipe,
            outcome=outcome,
            reason=reason,
            stage="" if outcome is Outcome.OK else "verify",
            error=running.error,
            phases_s=running.phases_s,
            notes=running.notes,
        )

    def _keep(self, running: RunningTrial, trial: Trial) -> None:
        """Leave the few fastest standing (paused) for the race; a rebuilt engine would cost its compilation again."""
        self._standing[running.recipe] = running
        ranked = [t.recipe for t in self.search.finalists(_STANDING)] if trial.eligible else []
        for candidate in [r for r in self._standing if r != running.recipe or not trial.eligible]:
            if candidate not in ranked and len(self._standing) > _STANDING:
                self._standing.pop(candidate).close()

    def _explore_s(self) -> float:
        limit = self.settings.limit_s
        if limit is None:
            return self.trial_timeout_s
        reserve = max(_RACE_BUDGET_S[0], min(_RACE_BUDGET_S[1], limit * _RACE_SHARE)) * 1.5
        return self.started + limit - reserve - time.monotonic()

    @property
    def trial_timeout_s(self) -> float:
        return self.settings.trial_timeout_s or _TRIAL_TIMEOUT_S
