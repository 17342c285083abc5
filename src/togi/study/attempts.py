"""One trial from start to record: built and verified, measured next to the reference, or ended in whatever way."""

from __future__ import annotations

from collections.abc import Callable

from togi.core.records import Footprint, Outcome, Recipe, Timing, Trial
from togi.study.open_study import OpenStudy
from togi.worker.launch import NoTimeLeft, ServerNotStarted
from togi.worker.supervise import GaveWay, RunningTrial, TrialEnded


class Attempts:
    """Tries recipes. Nothing that a trial's process does is raised: it becomes the trial's outcome."""

    def __init__(self, study: OpenStudy) -> None:
        self._study, self._processes = study, study.processes

    def attempt(self, candidate: Recipe, timeout_s: float) -> Trial:
        """Try it, and once more where that may end otherwise."""
        if (unproven := self._without_truth(candidate)) is not None:
            return unproven
        began = self._study.clock()  # what others need as well is none of its costs

        def built() -> Trial:
            return self._built_and_measured(candidate, timeout_s)

        trial = self._ended_or_measured(candidate, built)
        # The original ran before, so someone may have killed its process; without it nothing can be chosen.
        killed = candidate.is_reference and trial.outcome is Outcome.CRASHED
        if killed or (trial.outcome is Outcome.OUT_OF_MEMORY and self._processes.free_memory()):
            trial = self._ended_or_measured(candidate, built)
        return trial.model_copy(update={"cost_s": self._study.clock() - began})

    def _without_truth(self, candidate: Recipe) -> Trial | None:
        """How its trial ends where what it is compared with cannot be made; None where that is there."""
        subject, deadline = self._study.subject, self._study.subject.pool.deadline
        try:
            with deadline.within(deadline.left_s - self._study.budget.proof_s):  # not in the time that the proof needs
                subject.complete_truth(candidate, self._study.progress.message)
        except NoTimeLeft as error:
            return Trial(recipe=candidate, outcome=Outcome.TIMED_OUT, reason=str(error), stage="start")
        except TrialEnded as ended:
            return ended.record().model_copy(update={"recipe": candidate})
        return None

    def measure_again(self, disturbed: Trial) -> Trial:
        """One that the machine disturbed, or whose interval says nothing, whose process is warm. What the machine did
        not disturb counts in any case."""
        candidate, began = disturbed.recipe, self._study.clock()
        before = disturbed.timing if disturbed.outcome is Outcome.OK else None

        def measured() -> Trial:
            running = self._processes.warm(candidate)
            if running is None:
                return disturbed
            return self._measured(running, self._processes.reference(), again=True, before=before)

        trial = self._ended_or_measured(candidate, measured)
        if before is not None and self._says_nothing(trial):
            trial = disturbed
        return trial.model_copy(update={"cost_s": disturbed.cost_s + self._study.clock() - began})

    def _says_nothing(self, again: Trial) -> bool:
        """It was disturbed, or the time was over: what was measured before stays as it is."""
        late = again.outcome is Outcome.TIMED_OUT and self._study.subject.pool.deadline.left_s <= 0
        return late or again.outcome is Outcome.UNSTABLE

    def _ended_or_measured(self, candidate: Recipe, measured: Callable[[], Trial]) -> Trial:
        try:
            return measured()
        except NoTimeLeft as error:
            return Trial(recipe=candidate, outcome=Outcome.TIMED_OUT, reason=str(error), stage="start")
        except ServerNotStarted as error:  # one of its own: the environment that it wants, or where none can fork
            return Trial(recipe=candidate, outcome=Outcome.FAILED, reason=str(error), stage="start")
        except GaveWay as paused:
            return Trial(recipe=candidate, outcome=Outcome.TIMED_OUT, reason=str(paused), stage=paused.trial.phase)
        except TrialEnded as ended:
            if ended.trial.recipe.is_reference and not candidate.is_reference:  # also where it could not start again
                reason = f"the reference that took turns with it ended: {ended}"
                outcome = Outcome.TIMED_OUT if ended.cut_off else Outcome.UNSTABLE
                return Trial(recipe=candidate, outcome=outcome, reason=reason, stage="measure")
            return ended.record()

    def _built_and_measured(self, candidate: Recipe, timeout_s: float) -> Trial:
        reference = self._processes.reference()
        if candidate.is_reference:
            if self._study.subject.facts.callers > 1 and reference.error is not None and reference.error.problems:
                problem = reference.error.problems[0]
                self._study.notes.append(f"The original itself is not right for several callers: {problem}.")
            return self._measured(reference, reference)
        running = self._processes.start(candidate, timeout_s)
        outcome, reason = self._study.subject.accepted(running)
        if outcome is not Outcome.OK:
            running.close()
            return _record(running, outcome, reason)
        self._processes.keep(running)
        self._processes.make_ready(running)
        return self._measured(running, reference)

    def _measured(
        self, running: RunningTrial, reference: RunningTrial, *, again: bool = False, before: Timing | None = None
    ) -> Trial:
        self._study.progress.trial_phase(running.recipe, "measure")
        study, limit_bytes = self._study, self._study.subject.settings.max_memory_bytes
        footprint = None if limit_bytes is None else self._footprint(running)
        outcome, reason = (Outcome.OK, "") if running is reference else study.subject.accepted(running)
        fits = limit_bytes is None or footprint is None or footprint.total_bytes <= limit_bytes
        if not fits and running is not reference:
            timing = study.stopwatch.glance(running, reference)
        else:
            timing = study.stopwatch.time(running, reference, study.pace.trial_s, again=again, before=before)
            if doubt := study.stopwatch.doubt(timing, again=again):
                outcome, reason = Outcome.UNSTABLE, doubt
            footprint = self._footprint(running, footprint)
        self._rest(running, reference)
        return _record(running, outcome, reason).model_copy(update={"timing": timing, "footprint": footprint})

    def _footprint(self, running: RunningTrial, known: Footprint | None = None) -> Footprint | None:
        """``known``: from before it was timed. The larger counts, as a loop of steps takes more the longer it runs.
        None where its time was over when it had been measured, and its memory decides nothing."""
        subject = self._study.subject
        decides = subject.settings.max_memory_bytes is not None and known is None
        if not decides and running.ended is None and subject.pool.deadline.left_s <= 0:
            return known  # who is asked now is ended
        try:
            found = running.footprint()
        except TrialEnded as ended:
            if not ended.cut_off or decides:
                raise
            return known
        return found if known is None else max(known, found, key=lambda footprint: footprint.total_bytes)

    def _rest(self, *both: RunningTrial) -> None:
        """On a device: they stay, stopped, while others want its memory. What was measured stands if it is late."""
        subject = self._study.subject
        if subject.facts.device != "cuda" or subject.pool.deadline.left_s <= 0:
            return
        try:
            for paused in {running.name: running for running in both}.values():
                paused.rest()
        except TrialEnded as ended:
            if not ended.cut_off:
                raise


def _record(running: RunningTrial, outcome: Outcome, reason: str) -> Trial:
    return Trial(
        recipe=running.recipe,
        outcome=outcome,
        reason=reason,
        stage="" if outcome is Outcome.OK else "verify",
        error=running.error,
        phases_s=running.phases_s,
        notes=running.notes,
    )
