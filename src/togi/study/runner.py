"""Explores the recipes of a study: those that the search suggests, one by one, until the time for trials is over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from togi.core.records import Outcome, Recipe, Trial
from togi.decide.budget import Budget
from togi.decide.faster import BETWEEN_PROCESSES, conclusive
from togi.measure import undisturbed
from togi.study.attempts import Attempts
from togi.study.failures import OutOfTime, reference_failed
from togi.study.open_study import OpenStudy
from togi.study.time_budget import share_of_trial_s

_CLOCK_S = 0.1
"""A wait that was over by so much less ended by its limit."""
_AGAIN_X = 2.0
"""Measuring again takes so many times as long as a trial's turns, with the pauses for a quieter moment."""
_OTHERS_X = 5.0
"""Where others had the processor, they likely still have it: then only if so many times as much is left."""
_OTHERS_S = 0.5
"""How long another process that works on the same study is waited for at a time."""
_TOO_WIDE = "its interval is too wide to conclude anything from"


class Attempting(Protocol):
    def attempt(self, candidate: Recipe, timeout_s: float) -> Trial:
        """Try it for at most so long. Nothing that its process does is raised."""

    def measure_again(self, disturbed: Trial) -> Trial:
        """Measure what is still warm once more."""


class StudyRunner:
    """Tries recipes and keeps their trials."""

    def __init__(self, study: OpenStudy, attempts: Attempting | None = None) -> None:
        """``attempts``: who tries a recipe; None: the study's own processes."""
        self.study = study
        self.tried = 0
        self._disturbed: dict[Recipe, Trial] = {}
        """Trials that the machine disturbed, or whose intervals say nothing, and that were not measured again."""
        self._had_turn: set[Recipe] = set()
        """Whose trial ended in this session."""
        self._clock = study.clock
        self._attempts = attempts or Attempts(study)

    def try_reference(self) -> None:
        """What everything relates to. Raises SubjectError where it fails twice."""
        self.explore(0.0)
        log, budget, reference = self.study.log, self.study.budget, self.study.subject.reference
        while (last := log.last(reference)) is None and not log.claim(reference, self.study.settles):
            if budget.left_s <= 0:
                raise OutOfTime(
                    "the time limit was over while another process still worked on the original. Give a longer "
                    "--time-limit, or end the other one"
                )
            self._catch_up()  # another process tries it now
        if last is None or last.timing is None:  # now, or in an earlier study
            if not self._try(reference, self._timeout_s):
                raise OutOfTime(
                    f"the time limit was over while the original was still in {self.study.given_up[-1].stage}. Give a "
                    "longer --time-limit"
                )
            last = log.last(reference)
        if last is None or last.timing is None:
            why, outcome = ("", Outcome.UNSTABLE) if last is None else (last.reason, last.outcome)
            raise reference_failed(self.study.subject.name, why, outcome)
        budget.know_reference(last.phases_s)
        self.study.allow_for_best()  # of trials that the journal has

    def explore(
        self,
        seconds: float,
        *,
        first_gain: bool = False,
        trials: int | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Try what the search suggests until it has nothing better, or the time for it is over, or (``first_gain``)
        something is faster beyond doubt, or so many ``trials`` have ended, or ``stop`` says so after one of them.

        The reference is tried in any case: without it there is nothing to relate to.
        """
        search, log, progress = self.study.search, self.study.log, self.study.progress
        if first_gain and search.gained():
            return
        until, last = self._clock() + seconds, math.inf if trials is None else self.tried + trials
        budget, for_best_s = self.study.budget, self.study.budget.for_best_s
        ends = until
        search.allow(max(1.0, seconds))
        while self.tried < last:
            ends, before = until - (budget.for_best_s - for_best_s), ends
            if ends != before:  # the best has become one whose proof takes longer, or no longer is
                search.allow(max(1.0, ends - self._clock()))
            search.approximate_waits(self.study.subject.pool.rest_s)
            candidate = search.next(log.claimed())
            if self._measured_again(candidate, ends - self._clock()):
                if first_gain and search.gained():
                    return
                continue
            if candidate is None:
                break
            left_s = self._timeout_s if candidate.is_reference else ends - self._clock()
            if left_s <= 0:
                return
            if not log.claim(candidate, self.study.settles):
                self._catch_up()
                continue
            progress.message(search.why(candidate))
            if not self._try(candidate, left_s) or (first_gain and search.gained()) or stop():
                return
        if seconds > 0 and not first_gain and search.stopped:
            progress.message(search.stopped)

    def try_each(self, recipes: Iterable[Recipe]) -> None:
        """Try those that nobody tried, in their order, until the study's time is over; those that the machine disturbed
        in an earlier session again."""
        log = self.study.log
        for recipe in recipes:
            while not self._is_done(recipe) and (left_s := self.study.budget.left_s) > 0:
                if log.claim(recipe, self.study.settles):
                    self._try(recipe, left_s)
                    break
                self._catch_up()

    def _is_done(self, recipe: Recipe) -> bool:
        last = self.study.log.last(recipe)
        return last is not None and (self.study.settles(last) or recipe in self._had_turn)

    def promises(self, seconds: float) -> float:
        """``Search.promises`` with so much time left."""
        self.study.search.allow(seconds)
        return self.study.search.promises(self.study.log.claimed())

    def try_original(self) -> None:
        """As it is called today, where there is time for it and nobody tried it."""
        study, original, left_s = self.study, Recipe(), self.study.budget.explore_s()
        reference = study.log.last(study.subject.reference)
        takes_s = 0.0 if reference is None else reference.cost_s
        wanted = original in study.search.space.originals and not self._is_done(original)
        if wanted and left_s > takes_s and study.log.claim(original, study.settles):
            study.progress.message(study.search.why(original))
            self._try(original, left_s)

    def try_composed(self, composed: Recipe, folder: Path) -> Trial | None:
        """Try a program with its tuned parts in place. ``folder``: their artifact. None where no time is left."""
        self.study.processes.compose(composed, folder)
        self.study.progress.message("the tuned parts in the program")
        left_s = self.study.budget.explore_s(race=False)
        if left_s <= 0 or not self._try(composed, left_s):
            return None
        self._measured_again(None, self.study.budget.explore_s(race=False))
        if self.study.search.gained():
            self._know_race_and_proof(composed)
        return self.study.log.last(composed)

    def _know_race_and_proof(self, composed: Recipe) -> None:
        """How long they take of programs of parts, once there is one to prove: what is left of the time is for parts.
        Before, the original's own trial would have the first gain wait."""
        study = self.study
        running = study.processes.warm(composed) if study.processes.is_warm(composed) else None
        if running is not None:
            study.budget.know_race(study.stopwatch.enough_s(0.0, [study.processes.reference(), running, running]))
        if study.log.last(study.subject.reference) is None:
            self.try_reference()

    @property
    def _timeout_s(self) -> float:
        return self.study.subject.settings.trial_timeout_s

    def _try(self, candidate: Recipe, left_s: float) -> bool:
        """One trial, told to everybody. False where the study's limit cut it off."""
        study, deadline, began = self.study, self.study.subject.pool.deadline, self._clock()
        left_s = min(left_s, deadline.left_s)
        given_s = min(self._timeout_s, self._share_s(candidate, left_s))
        try:
            study.progress.trial_started(candidate, self.tried + 1)
            # its turns may last into the time for the proof
            with deadline.within(math.inf if candidate.is_reference else left_s + study.budget.proof_s):
                trial = self._attempts.attempt(candidate, given_s)
                over = deadline.left_s <= 0
        except BaseException:
            study.log.release(candidate)
            raise
        took_s = self._clock() - began
        over = over or took_s >= left_s - _CLOCK_S or (given_s < self._timeout_s and took_s >= given_s - _CLOCK_S)
        if trial.outcome is Outcome.TIMED_OUT and over:
            study.log.release(candidate)  # by the study's limit, not by its own: another study may try it again
            study.given_up.append(trial)
            if left_s - took_s <= _CLOCK_S:
                study.progress.message(f"{candidate.label} was not finished within the time limit")
                return False
            if study.processes.gave_way(candidate) and study.search.gave_way(trial):
                study.progress.trial_ended(trial)
            else:
                study.processes.end(candidate)
                self._tell(trial)
            return True
        whole_s = trial.cost_s + study.search.spent_s(candidate)
        trial = trial.model_copy(update={"ended_s": study.budget.elapsed_s, "cost_s": whole_s})
        if candidate.is_reference:
            self._allow_for(trial.cost_s)
        study.log.append(trial)
        study.budget.know_validation(trial.phases_s)
        self._had_turn.add(candidate)
        self.tried += 1
        self._tell(trial)
        study.allow_for_best()
        if self._may_say_more(trial) and study.processes.is_warm(candidate):
            self._disturbed[candidate] = trial
        self._prune()
        return True

    def _prune(self) -> None:
        study = self.study
        study.processes.prune((*study.search.finalists(study.pace.finalists), *self._disturbed))

    def _measured_again(self, candidate: Recipe | None, left_s: float) -> bool:
        """Whether one that the machine disturbed, or whose interval says nothing, was measured again: it is built, so
        this is sooner done than a trial that costs more. ``candidate``: what is tried next."""
        study, takes_s = self.study, _AGAIN_X * self.study.pace.trial_s
        if candidate is not None and (candidate.is_reference or study.search.cost_s(candidate) <= takes_s):
            return False
        disturbed = next((trial for recipe, trial in self._disturbed.items() if study.processes.is_warm(recipe)), None)
        if disturbed is None or left_s <= takes_s * (1 if _was_alone(disturbed) else _OTHERS_X):
            return False
        del self._disturbed[disturbed.recipe]
        study.progress.message(f"{disturbed.recipe.label} is measured again: {disturbed.reason or _TOO_WIDE}")
        trial = self._attempts.measure_again(disturbed)
        trial = trial.model_copy(update={"ended_s": study.budget.elapsed_s})
        study.log.append(trial)
        self._tell(trial)
        study.allow_for_best()
        self._prune()
        return True

    def _may_say_more(self, trial: Trial) -> bool:
        """Whether it may be faster and fits, and was disturbed, or its interval is too wide to conclude anything
        from."""
        known = trial.measured
        if known is None or not Budget.of(self.study.subject.settings).fits(known):
            return False
        if trial.outcome is Outcome.UNSTABLE:
            return known.speedup_x.high > 1
        faster = BETWEEN_PROCESSES.points_to_faster(known.speedup_x)
        return trial.outcome is Outcome.OK and faster and not conclusive(known.speedup_x)

    def _share_s(self, candidate: Recipe, left_s: float) -> float:
        search = self.study.search
        if candidate.is_reference:
            return left_s
        return share_of_trial_s(left_s, search.cost_s(candidate), modest=search.has_cheaper(candidate))

    def _tell(self, trial: Trial) -> None:
        self.study.progress.trial_ended(trial)
        if lesson := self.study.search.tell(trial):
            self.study.progress.learned(lesson)

    def _allow_for(self, reference_s: float) -> None:
        """From now on nothing is waited for beyond the study's limit, but for a moment in which a proof may end."""
        budget = self.study.budget
        longer = budget.lengthen(reference_s)
        if math.isfinite(budget.ends_at):
            self.study.subject.pool.deadline.at = budget.ends_at
        if longer:
            self.study.progress.message(longer)

    def _catch_up(self) -> None:
        """Another process works on this study too: take over what it found; wait a moment if that is nothing."""
        news = [trial for trial in self.study.log.news() if self.study.processes.can_start(trial.recipe)]
        for trial in news:
            self.study.search.tell(trial)
        if not news:
            time.sleep(_OTHERS_S)


def _was_alone(trial: Trial) -> bool:
    return trial.timing is not None and undisturbed(trial.timing.noise)
