"""Runs the trials of a study: recipes that the search suggests, one by one, next to the reference."""

from __future__ import annotations

import functools
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from typing_extensions import Self

from togi.artifact.manifest import PARTS, Saved
from togi.artifact.save import write_manifest
from togi.core.choices import Objective
from togi.core.quantities import seconds
from togi.core.records import REFERENCE_RECIPE, Facts, Interval, Outcome, Recipe, Study, Timing, Trial, now
from togi.core.settings import Settings
from togi.decide.faithful import accept
from togi.decide.faster import BETWEEN_PROCESSES, CONFIDENCE, conclusive
from togi.journal import Journal, StudyLog, study_key
from togi.measure import call_ms_of, compare, median_interval, noise_of, rounds_needed, together, usable
from togi.search import Experience, Search
from togi.study.earlier import learned_before
from togi.study.failures import OutOfTime, explained, reference_failed
from togi.study.progress import Progress
from togi.subject.signature import Signature
from togi.techniques import all_techniques, is_exact
from togi.worker.launch import NoTimeLeft, ServerNotStarted
from togi.worker.pool import WorkerPool, environment_of
from togi.worker.protocol import Survey
from togi.worker.supervise import ASKED_S, Limits, RunningTrial, TrialEnded

SURVEY_TIMEOUT_S = 900.0
_KEPT_WARM = 4
_COMPARE_BUDGET_S = 3.0
_LONGER_X = 3.0
"""So much longer is measured what seems faster and is not so beyond doubt: still less than another trial takes."""
_REFERENCE_TURNS = 12
"""Of a slow one no more than its latency's interval needs."""
_LEAST_PASSES = 30
"""Of the original, in a study that tries nothing: counted for one sample."""
_ROUNDS = rounds_needed(1.0 - (1.0 - CONFIDENCE) / _KEPT_WARM) + 2
"""What gives an interval ends, and a few more: some may be slower than thought."""
_LONGEST_S = 120.0
_MORE_ATTEMPTS = 2
_QUIET_S = 2.0
_DISTURBED_X = 1.3
_DISTURBED_TODAY_X = 2.0
"""Against an earlier session of the study: the same machine may be somewhat slower for a whole day."""
_RACE_SHARE = 0.15
_RACE_BUDGET_S = (4.0, 45.0)
GRACE_S = 3.0
"""After the study's limit whatever is still asked of a child is ended; closing takes a moment more."""
_OWN_LIMIT_X = 3.0
"""So many times as long as truth, reference and its proof should take is the limit of an effort, where that is more."""
_OWN_LIMIT_TRIALS = 5.0
"""And so many times as long as the reference took, which a busy machine makes longer: one engine and a proof."""
_TRIAL_SHARE, _HANGS_X = 0.5, 3.0
_CLOCK_S = 0.1
"""A wait that was over by so much less ended by its limit."""
PROOF_BUDGET_S = 5.0
"""For timing what was saved."""
_LEAST_ASKED_S, _ASKED_X = 2.0, 4.0
"""Values beyond the samples are some forty calls of the original, and verification about ten."""
_ASKED_SHARE = 0.08
"""Of a study's limit, which asking them takes from what could be tried."""


@final
@dataclass
class StudyRunner:
    """A study under way: what it works with, what it learned, and the processes that are kept warm."""

    pool: WorkerPool
    subject: str
    facts: Facts
    signature: Signature
    settings: Settings
    log: StudyLog
    search: Search
    progress: Progress
    started: float
    notes: list[str] = field(default_factory=list)
    experience: Experience = field(default_factory=Experience)
    """What studies of other subjects in the journal taught."""
    tried: int = 0
    loaded: float | None = None
    """When the subject was: an effort's own limit begins then. None: with the study."""
    given_up: list[Trial] = field(default_factory=list)
    """Ended since the study has no more time for them: not kept, a study with more time tries them again."""
    composed: dict[Recipe, Path] = field(default_factory=dict)
    """Artifacts that stand for a recipe: a program's tuned parts, put together."""
    _warm: dict[Recipe, RunningTrial] = field(default_factory=dict)
    _reference: RunningTrial | None = None
    _reference_s: float = 0.0
    """What its trial took in this session."""
    _calm_ms: float = math.inf
    """The reference's latency, taking turns, when the machine was at its quietest in this session."""
    _earlier_ms: float = math.inf
    """The same of what the journal already had of this study."""

    @classmethod
    def open(
        cls,
        pool: WorkerPool,
        subject: str,
        survey: Survey,
        fingerprint: str,
        settings: Settings,
        journal: Journal,
        progress: Progress,
        *,
        started: float,
        loaded: float | None = None,
        resume: bool,
        firsts: Sequence[Recipe] | None = None,
    ) -> Self:
        """Go on with what the journal has of this study, and learn from its others; without ``resume`` neither.

        ``firsts``: what is tried before all else.
        """
        facts = survey.facts
        header = Study(id="", subject=subject, facts=facts, settings=settings.as_json(), started=now())
        key = study_key(subject, facts, settings.as_json(lasting=True), fingerprint)
        log = journal.study(key, header, fresh=not resume)
        trials = log.news()
        alone = [trial for trial in trials if trial.recipe.find(PARTS) is None]
        experience = learned_before(journal, log, facts, settings) if resume else Experience()
        search = Search(facts, settings, all_techniques(), alone, firsts=firsts, experience=experience)
        beside = [t.timing.reference_ms for t in trials if t.timing is not None and t.recipe != REFERENCE_RECIPE]
        return cls(
            pool,
            subject,
            facts,
            survey.signature,
            settings,
            log,
            search,
            progress,
            started,
            list(log.notes),
            experience=experience,
            loaded=loaded,
            _earlier_ms=min(beside, default=math.inf),
        )

    def make_truth(self) -> None:
        """What every trial is compared with. Raises SubjectError when the subject cannot be run."""
        with explained(self.subject):
            limits = Limits(timeout_s=SURVEY_TIMEOUT_S)
            told = self.progress.message
            self.facts = self.pool.make_truth(self.facts, limits, lambda phase: told(f"{phase} of {self.subject}"))

    @property
    def limits(self) -> Limits:
        """Of a trial, and of every process that is made of what it saved."""
        return Limits(timeout_s=self.settings.trial_timeout_s, memory_bytes=self.settings.trial_memory_bytes)

    def try_reference(self) -> None:
        """What everything relates to. Raises SubjectError where it fails twice."""
        self.explore(0.0)
        while (last := self.log.last(REFERENCE_RECIPE)) is None and not self.log.claim(REFERENCE_RECIPE):
            if self.left_s() <= 0:
                raise OutOfTime(
                    "the time limit was over while another process still worked on the original. Give a longer "
                    "--time-limit, or end the other one"
                )
            self._catch_up()  # another process tries it now
        if last is None or last.timing is None:  # now, or in an earlier study
            if not self._try(REFERENCE_RECIPE, self.settings.trial_timeout_s):
                raise OutOfTime(
                    f"the time limit was over while the original was still in {self.given_up[-1].stage}. Give a longer "
                    "--time-limit"
                )
            last = self.log.last(REFERENCE_RECIPE)
        if last is None or last.timing is None:
            raise reference_failed(self.subject, "" if last is None else last.reason)

    def explore(self, seconds: float, *, first_gain: bool = False, trials: int | None = None) -> None:
        """Try what the search suggests until it has nothing better, or the time for it is over, or (``first_gain``)
        something is faster beyond doubt, or so many ``trials`` have ended.

        The reference is tried in any case: without it there is nothing to relate to.
        """
        if first_gain and self.search.gained():
            return
        until, last = time.monotonic() + seconds, math.inf if trials is None else self.tried + trials
        self.search.allow(max(1.0, seconds))
        while self.tried < last and (next_recipe := self.search.next(self.log.claimed())) is not None:
            left = until - time.monotonic() if next_recipe != REFERENCE_RECIPE else self.settings.trial_timeout_s
            if left <= 0:
                return
            if not self.log.claim(next_recipe):
                self._catch_up()
                continue
            self.progress.message(self.search.why(next_recipe))
            if not self._try(next_recipe, left) or (first_gain and self.search.gained()):
                return
        if seconds > 0 and not first_gain and self.search.stopped:
            self.progress.message(self.search.stopped)

    def promises(self, seconds: float) -> float:
        """``Search.promises`` with so much time left."""
        self.search.allow(seconds)
        return self.search.promises(self.log.claimed())

    def _try(self, candidate: Recipe, left_s: float) -> bool:
        """One trial, told to everybody. False where the study's limit cut it off."""
        own_s, began = self.settings.trial_timeout_s, time.monotonic()
        left_s = min(left_s, self.pool.deadline.left_s)
        given_s = min(own_s, self._share_s(candidate, left_s))
        try:
            # its turns may last into the time for the proof
            with self.pool.deadline.within(math.inf if candidate == REFERENCE_RECIPE else left_s + self.proof_s()):
                trial = self.attempt(candidate, given_s)
        except BaseException:
            self.log.release(candidate)
            raise
        took_s = time.monotonic() - began
        if trial.outcome is Outcome.TIMED_OUT and given_s < own_s and took_s >= given_s - _CLOCK_S:
            self.log.release(candidate)  # by the study's limit, not by its own: another study may try it again
            self.given_up.append(trial)
            if left_s - took_s <= _CLOCK_S:
                self.progress.message(f"{candidate.label} was not finished within the time limit")
                return False
            self.progress.trial_ended(trial)
            if lesson := self.search.tell(trial):
                self.progress.learned(lesson)
            return True
        trial = trial.model_copy(update={"ended_s": time.monotonic() - self.started})
        if candidate == REFERENCE_RECIPE:
            self._allow_for(trial.cost_s)
        self.log.append(trial)
        self.tried += 1
        self.progress.trial_ended(trial)
        if lesson := self.search.tell(trial):
            self.progress.learned(lesson)
        self._prune()
        return True

    def _share_s(self, candidate: Recipe, left_s: float) -> float:
        """What one trial may take of the seconds that are left: half, or three times what was expected where that is
        more, so that one that hangs leaves something to others."""
        if candidate == REFERENCE_RECIPE or not math.isfinite(left_s):
            return left_s
        return min(left_s, max(left_s * _TRIAL_SHARE, _HANGS_X * self.search.cost_s(candidate)))

    def try_original(self) -> None:
        """As it is called today, where there is time for it and nobody tried it."""
        original, left_s = Recipe(), self.explore_s()
        wanted = original in self.search.space.originals and self.log.last(original) is None
        if wanted and left_s > 0 and self.log.claim(original):
            self.progress.message(self.search.why(original))
            self._try(original, left_s)

    def try_composed(self, composed: Recipe, folder: Path) -> Trial | None:
        """Try a program with its tuned parts in place. ``folder``: their artifact. None where no time is left."""
        self.composed[composed] = folder
        self.progress.message("the tuned parts in the program")
        if (before := self._warm.pop(composed, None)) is not None:
            before.close()
        left_s = self.explore_s(race=False)
        return self.log.last(composed) if left_s > 0 and self._try(composed, left_s) else None

    @property
    def limit_s(self) -> float | None:
        """Of the study, from its start: the one that was given; else the effort's own from when the subject was loaded,
        which a slow subject or machine makes longer."""
        own_s = self.settings.effort.time_limit_s
        if self.settings.time_limit_s is not None or own_s is None:
            return self.settings.time_limit_s
        loading_s = 0.0 if self.loaded is None else self.loaded - self.started
        return loading_s + max(own_s, _OWN_LIMIT_X * self.least_s(), _OWN_LIMIT_TRIALS * self._reference_s)

    def _allow_for(self, reference_s: float) -> None:
        """Say where an effort's own limit becomes longer than was announced."""
        before, self._reference_s = self.limit_s, reference_s
        self.keep_limit()
        if self.limit_s is not None and before is not None and self.limit_s > before:
            self.progress.message(
                f"trying the original took {seconds(reference_s)}, so the study may take {seconds(self.limit_s)} in "
                f"place of {seconds(before)}; --time-limit sets another limit"
            )

    def keep_limit(self) -> None:
        """From now on nothing is waited for beyond the study's limit, but for a moment in which a proof may end."""
        if self.limit_s is not None:
            self.pool.deadline.at = self.started + self.limit_s + GRACE_S

    def left_s(self) -> float:
        """Of the study's time limit."""
        limit_s = self.limit_s
        return math.inf if limit_s is None else self.started + limit_s - time.monotonic()

    def least_s(self) -> float:
        """About how long truth, reference and its proof take: no study is shorter, whatever it tries."""
        return _LEAST_PASSES * (self.facts.latency_ms or 0.0) * 1e-3

    def proof_s(self) -> float:
        """About how long it takes to prove what was saved, with values beyond the samples."""
        reference = self.log.last(REFERENCE_RECIPE)
        return _unasked_proof_s(reference) + _wanted_ask_s(reference, self.limit_s)

    def ask_s(self) -> float:
        """How long what is saved is asked for values beyond the samples: no longer than the rest of its proof leaves,
        since narrow bounds are better than no artifact."""
        reference = self.log.last(REFERENCE_RECIPE)
        left_s = self.left_s() - _unasked_proof_s(reference)
        return min(_wanted_ask_s(reference, self.limit_s), max(_LEAST_ASKED_S, left_s))

    def explore_s(self, *, race: bool = True) -> float:
        """Seconds left for trials: the study's limit less what the proof, and the race, will take."""
        if self.limit_s is None:
            return math.inf
        least_s, most_s = _RACE_BUDGET_S
        # in a short study values beyond the samples are asked at the cost of the race, not of trials
        asked_s = _wanted_ask_s(self.log.last(REFERENCE_RECIPE), self.limit_s)
        race_s = max(least_s, min(most_s, self.limit_s * _RACE_SHARE) - asked_s) if race else 0.0
        return self.left_s() - race_s - self.proof_s()

    def close(self) -> None:
        """End the processes that are kept."""
        for running in (*self._warm.values(), *filter(None, [self._reference])):
            running.close()
        self._warm, self._reference = {}, None

    def _prune(self) -> None:
        """Keep only the fastest (paused) for the race; rebuilding one would cost its compilation again."""
        wanted = self.search.finalists(_KEPT_WARM)
        for candidate in [kept for kept in self._warm if kept not in wanted]:
            self._warm.pop(candidate).close()

    def _catch_up(self) -> None:
        """Another process works on this study too: take over what it found; wait a moment if that is nothing."""
        news = [trial for trial in self.log.news() if trial.recipe.find(PARTS) is None]
        for trial in news:
            self.search.tell(trial)
        if not news:
            time.sleep(0.5)

    def attempt(self, candidate: Recipe, timeout_s: float) -> Trial:
        """One trial from start to record. Never raises for what the trial's process does."""
        self.progress.trial_started(candidate, self.tried + 1)
        began = time.monotonic()
        trial = self._ended_or_measured(candidate, timeout_s)
        # The original ran before, so someone may have killed its process; without it nothing can be chosen.
        killed = candidate == REFERENCE_RECIPE and trial.outcome is Outcome.CRASHED
        if killed or (trial.outcome is Outcome.OUT_OF_MEMORY and self.free_memory()):
            trial = self._ended_or_measured(candidate, timeout_s)
        return trial.model_copy(update={"cost_s": time.monotonic() - began})

    def free_memory(self) -> bool:
        """End the finalists that are kept, whose memory stays taken while they are paused: what did not fit next to
        them may fit alone. They are built again for the race. False where there are none to end, or where it was the
        user's limit that did not suffice."""
        kept = [running for running in self._warm.values() if running.ended is None]
        if not kept or (self.facts.device != "cuda" and self.settings.trial_memory_bytes is not None):
            return False
        for running in kept:
            running.close()
        self._warm = {}
        return True

    def _ended_or_measured(self, candidate: Recipe, timeout_s: float) -> Trial:
        try:
            return self._attempt(candidate, timeout_s)
        except NoTimeLeft as error:
            return Trial(recipe=candidate, outcome=Outcome.TIMED_OUT, reason=str(error), stage="start")
        except ServerNotStarted as error:  # one of its own: the environment that it wants, or where none can fork
            return Trial(recipe=candidate, outcome=Outcome.FAILED, reason=str(error), stage="start")
        except TrialEnded as ended:
            if ended.trial is self._reference:
                self._reference = None
            if ended.trial.recipe == REFERENCE_RECIPE != candidate:  # also where it could not be started again
                reason = f"the reference that took turns with it ended: {ended}"
                return Trial(recipe=candidate, outcome=Outcome.UNSTABLE, reason=reason, stage="measure")
            return ended.record()

    def _attempt(self, candidate: Recipe, timeout_s: float) -> Trial:
        reference = self.reference()
        if candidate == reference.recipe:
            if self.facts.callers > 1 and reference.error is not None and reference.error.problems:
                self.notes.append(
                    f"The original itself is not right for several callers: {reference.error.problems[0]}."
                )
            return self._measured(reference, reference)
        running = self._start(candidate, timeout_s)
        outcome, reason = self.accepted(running)
        if outcome is not Outcome.OK:
            running.close()
            return self._record(running, outcome, reason)
        self._warm[candidate] = running
        self.make_ready(running)
        return self._measured(running, reference)

    def reference(self) -> RunningTrial:
        """The reference's process; started (again) when there is none."""
        if self._reference is None or self._reference.ended is not None:
            self._reference = self._start(REFERENCE_RECIPE, self.settings.trial_timeout_s)
            self.make_ready(self._reference)
        return self._reference

    def warm(self, candidate: Recipe) -> RunningTrial | None:
        """The candidate, built, verified and warm; built again where it was not kept, or its process has ended since.
        None if it now fails."""
        if candidate not in self._warm or self._warm[candidate].ended is not None:
            try:
                running = self._start(candidate, self.settings.trial_timeout_s)
                self.make_ready(running)
            except (TrialEnded, NoTimeLeft) as ended:
                self.notes.append(f"{candidate.label} could not be built again: {ended}")
                return None
            self._warm[candidate] = running
        return self._warm[candidate]

    def make_ready(self, running: RunningTrial, folder: Path | None = None) -> None:
        """For its turns: warm, and where the first call is raced, with files to be started from.

        ``folder``: those it was loaded from; None: it is saved. Raises TrialEnded, also where it has no file form.
        """
        if self.settings.objective is not Objective.FIRST_CALL:
            running.warm()
            return
        files = folder
        if files is None:
            files = Path(tempfile.mkdtemp(prefix="start-", dir=self.pool.folder))
            saved = running.save(files, self.ask_s())
            if saved.unsaveable:
                reason = f"it has no file form that could be started from: {saved.unsaveable}"
                raise running.end(Outcome.REFUSED, reason, "save")
            self.write_manifest(files, Trial(recipe=running.recipe, outcome=Outcome.OK), saved)
        start = functools.partial(self.pool.start_artifact, files, running.recipe, self.facts, self.limits, check=False)
        running.take_starts(start, files if folder is None else None, self.facts.samples)

    def write_manifest(self, folder: Path, proof: Trial, saved: Saved) -> None:
        write_manifest(
            folder,
            subject=self.subject,
            recipe=proof.recipe,
            signature=self.signature.within(saved.domains),
            facts=self.facts,
            proof=proof,
            chain=saved.links,
            environment=environment_of(proof.recipe, self.facts),
            max_error=self.settings.max_error,
            max_drop=self.settings.max_drop,
            objective=self.settings.objective,
        )

    def trials(self) -> list[Trial]:
        """Those of the log from which can be chosen: what another process put together of a program's parts cannot be
        built here."""
        return [t for t in self.log.trials() if t.recipe in self.composed or t.recipe.find(PARTS) is None]

    def _start(self, candidate: Recipe, timeout_s: float) -> RunningTrial:
        limits = replace(self.limits, timeout_s=timeout_s)
        if candidate in self.composed:
            folder = self.composed[candidate]
            return self.pool.start_artifact(folder, candidate, self.facts, limits, check=True, name=candidate.label)
        return self.pool.start(candidate, self.facts, limits, lambda phase: self.progress.trial_phase(candidate, phase))

    def accepted(self, running: RunningTrial) -> tuple[Outcome, str]:
        if running.error is None:
            return Outcome.FAILED, "it was not verified"
        settings = self.settings
        exact = is_exact(running.recipe)
        return accept(running.error, exact=exact, max_error=settings.max_error, max_drop=settings.max_drop)

    def _measured(self, running: RunningTrial, reference: RunningTrial) -> Trial:
        self.progress.trial_phase(running.recipe, "measure")
        timing = self.time(running, reference, _COMPARE_BUDGET_S)
        footprint = running.footprint()
        if self.facts.device == "cuda":  # both stay, stopped, while other trials want the device's memory
            for kept in {running.name: running, reference.name: reference}.values():
                kept.rest()
        outcome, reason = (Outcome.OK, "") if running is reference else self.accepted(running)
        if doubt := self.doubt(timing):
            outcome, reason = Outcome.UNSTABLE, doubt
        return self._record(running, outcome, reason).model_copy(update={"timing": timing, "footprint": footprint})

    def time(self, running: RunningTrial, reference: RunningTrial, budget_s: float) -> Timing:
        """The paired measurement of a warm candidate, repeated in a quieter moment where the machine was busy, and
        continued where it seems faster and is not so beyond doubt.

        Raises TrialEnded when either of the two ends.
        """
        if running is not reference:
            budget_s = enough_s(budget_s, [running, reference])
        timing = self._time_once(running, reference, budget_s)
        for _ in range(_MORE_ATTEMPTS):
            if not self.doubt(timing) or self.left_s() < budget_s + _QUIET_S:
                break
            self.pause()
            timing = self._time_once(running, reference, budget_s)
        more_s = budget_s * (_LONGER_X - 1)
        if BETWEEN_PROCESSES.points_to_faster(timing.speedup_x) and self.left_s() > more_s:
            more = self._time_once(running, reference, more_s)
            timing = timing if self.doubt(more) else together(timing, more)
        if self.settings.objective is Objective.FIRST_CALL:
            timing = timing.model_copy(update={"start_ms": timing.latency_ms.median})
        if running is not reference:  # alone, without turns in between, it is faster than it can be in any comparison
            self._calm_ms = min(self._calm_ms, timing.reference_ms)
        return timing

    def doubt(self, timing: Timing) -> str:
        """Why nothing should be concluded from it, or nothing.

        Pairing does not help when a neighbour comes: one engine's threads wait for each other and lose a factor of ten,
        another's do not. The reference has run before, and tells.
        """
        if not usable(timing.noise) and not conclusive(timing.speedup_x):
            return f"too noisy to judge: {'; '.join(timing.noise.warnings)}"
        in_session_x, since_x = timing.reference_ms / self._calm_ms, timing.reference_ms / self._earlier_ms
        if in_session_x > _DISTURBED_X or since_x > _DISTURBED_TODAY_X:
            slower_x = max(in_session_x, since_x)
            return f"disturbed: the reference took {slower_x:.1f} times as long as at its best in this study"
        return ""

    @property
    def slowest_ms(self) -> float:
        """Of the reference: where it takes longer, something else is measured with it."""
        return min(_DISTURBED_X * self._calm_ms, _DISTURBED_TODAY_X * self._earlier_ms)

    def pause(self) -> None:
        """Until it may be quieter."""
        time.sleep(_QUIET_S)

    def _time_once(self, running: RunningTrial, reference: RunningTrial, budget_s: float) -> Timing:
        if running is reference:
            return self._reference_timing(reference, budget_s)
        result = compare(reference, running, budget_s=budget_s, seed=self.settings.seed)
        timing = result.timing(
            running.name,
            first_call_ms=running.first_call_ms,
            build_s=running.build_s,
            energy_mj=running.energy_mj,
            slowest_ms=self.slowest_ms,
        )
        if timing is None:
            ended = reference.ended or running.ended
            raise ended or running.end(Outcome.UNSTABLE, result.sentence, "measure")
        return timing

    def _reference_timing(self, reference: RunningTrial, budget_s: float) -> Timing:
        """The reference compared with itself: its latency, and a speed-up of exactly 1."""
        turns, until = [reference.turn(reference.passes)], time.monotonic() + budget_s
        while len(turns) < rounds_needed() or (len(turns) < _REFERENCE_TURNS and time.monotonic() < until):
            turns.append(reference.turn(reference.passes))
        times = [turn.pass_ms for turn in turns]
        return Timing(
            latency_ms=median_interval(times),
            speedup_x=Interval(median=1.0, low=1.0, high=1.0),
            rounds_ms=tuple((time_ms, time_ms) for time_ms in times),
            call_ms=call_ms_of(turns),
            first_call_ms=reference.first_call_ms,
            build_s=reference.build_s,
            energy_mj=reference.energy_mj,
            noise=noise_of(turns),
        )

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


def enough_s(budget_s: float, runners: Sequence[RunningTrial]) -> float:
    """The budget, or what enough rounds for an interval take, if that is more: a slow model needs its time."""
    return max(budget_s, min(_LONGEST_S, _ROUNDS * sum(running.turn_s for running in runners)))


def _unasked_proof_s(reference: Trial | None) -> float:
    """To start and verify what was saved, as the reference was, what it falls back on too, and to time it."""
    phases_s = {} if reference is None else reference.phases_s
    # its turns next to others count as "measure" too
    as_reference_s = sum(took_s for phase, took_s in phases_s.items() if phase != "measure")
    return PROOF_BUDGET_S + as_reference_s + phases_s.get("verify", 0.0)


def _wanted_ask_s(reference: Trial | None, limit_s: float | None) -> float:
    """By what verifying the original took, and by the study's limit."""
    verify_s = 0.0 if reference is None else reference.phases_s.get("verify", 0.0)
    most_s = ASKED_S if limit_s is None else min(ASKED_S, _ASKED_SHARE * limit_s)
    return max(_LEAST_ASKED_S, min(most_s, _ASKED_X * verify_s))
