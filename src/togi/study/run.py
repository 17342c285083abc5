"""One study from start to end."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path

from togi.core.choices import Objective
from togi.core.errors import SubjectError
from togi.core.quantities import seconds
from togi.core.records import REFERENCE_RECIPE, Outcome, Study, Trial
from togi.core.settings import Settings
from togi.decide.choose import Budget, Chosen, choose
from togi.journal import Journal
from togi.machine.describe import machine
from togi.study.conclusion import conclude
from togi.study.failures import OutOfTime, explained, reference_failed
from togi.study.finals import Decision, Finals
from togi.study.parts import PartsTuner
from togi.study.progress import Progress
from togi.study.runner import GRACE_S, SURVEY_TIMEOUT_S, StudyRunner
from togi.worker.deadline import Deadline
from togi.worker.launch import NoTimeLeft
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, TrialEnded

_LEAST_S = 10.0
_LOADING_X = 10.0


def run_study(
    subject: SubjectRef,
    name: str,
    settings: Settings,
    *,
    journal: Journal,
    keep: Path,
    resume: bool = True,
    progress: Progress,
    started: float | None = None,
) -> tuple[Study, Path | None]:
    """The study's record and the folder of the proven artifact (None where nothing was chosen or could be saved).

    ``started``: when the time of the study began, by ``time.monotonic``; None: now.

    Raises TogiError when the subject cannot be loaded or run. KeyboardInterrupt leaves what is finished in the journal.
    """
    if started is None:
        started = time.monotonic()
    progress.message(f"loading {name}")
    here = machine(settings.device)
    callers = settings.callers_on(here.cpu_cores)
    from_host = settings.objective is Objective.END_TO_END

    def told(phase: str) -> None:
        progress.message(f"{phase} of {name}")

    deadline = Deadline(started + _longest_s(settings), progress.message)
    with WorkerPool(
        subject,
        here,
        device=settings.device,
        seed=settings.seed,
        callers=callers,
        from_host=from_host,
        nan_differences=settings.nan_differences,
        deadline=deadline,
    ) as pool:
        with explained(name):
            limits = Limits(timeout_s=SURVEY_TIMEOUT_S)
            survey, fingerprint = pool.survey(limits, told)
            loaded = time.monotonic()
            with suppress(NoTimeLeft):  # the study then ends with what is known
                survey = pool.capture(survey, limits, told)
        runner = StudyRunner.open(
            pool, name, survey, fingerprint, settings, journal, progress, started=started, loaded=loaded, resume=resume
        )
        if settings.time_limit_s is None:  # else it holds already
            deadline.at = max(deadline.at, loaded + _longest_s(settings))
        progress.surveyed(runner.facts, runner.search.remaining(), runner.limit_s)
        progress.resumed(runner.log.trials(), Budget.of(settings))
        possible = {each.technique.id for each in runner.search.space.configurations}
        if learned := runner.experience.sentence(possible):
            progress.learned(learned)
        if settings.objective is Objective.FIRST_CALL and not runner.facts.exportable:
            raise SubjectError(
                f"the first call is that of an artifact loaded from its files, and {name} has no file form: "
                f"{runner.facts.export_error}. Tune it for latency"
            )
        if from_host and runner.facts.device == "cpu":
            runner.notes.append("On the CPU nothing is copied, so end-to-end is the same as latency.")
        parts = None if runner.facts.exportable else PartsTuner(runner, journal, resume=resume)
        if (needed_s := runner.least_s()) > runner.left_s() and not runner.log.trials():
            nothing = _as_it_is(needed_s, settings)
            why = f"Nothing could be tried: {nothing.reason}"
            return conclude(runner, Decision(nothing, None, ()), untried=why), None
        try:
            if parts is None:
                runner.make_truth()
            else:
                parts.run(runner.explore_s())
            runner.try_reference()  # how long it takes tells what race and proof will
            if parts is not None and runner.search.gained():  # no setting of the whole comes on top of its parts
                runner.try_original()
            else:
                for first_gain in (True, False):  # a single gain need not race
                    runner.explore(runner.explore_s(race=not first_gain), first_gain=first_gain)
                    if parts is not None:
                        parts.try_settings()
            decision = Finals(runner, keep).decide()
        except (OutOfTime, NoTimeLeft, TrialEnded) as late:
            if isinstance(late, TrialEnded) and not late.cut_off:
                raise reference_failed(name, late) from None
            if runner.log.last(REFERENCE_RECIPE) is None:
                nothing = _unmeasured(settings, str(late))
                return conclude(runner, Decision(nothing, None, ()), untried=f"Nothing could be tried: {late}"), None
            runner.notes.append(f"The time limit was over in the race or the proof: {late}. Trials decide, unproven.")
            decision = Decision(choose(runner.trials(), Budget.of(settings)), None, ())
        tree = None if parts is None else parts.tree(decision.chosen.trial)
        return conclude(runner, decision, tree), decision.folder


def _longest_s(settings: Settings) -> float:
    """Until the original was tried. A limit that was given holds from the start, with what it takes to load torch; an
    effort's own begins when the subject is loaded, and is longer for a slow one."""
    if settings.time_limit_s is not None:
        return max(settings.time_limit_s, _LEAST_S) + GRACE_S
    return math.inf if settings.limit_s is None else _LOADING_X * settings.limit_s


def _as_it_is(needed_s: float, settings: Settings) -> Chosen:
    reason = (
        f"running the original, proving and timing it takes about {seconds(needed_s)} more before anything else is "
        f"tried, and the time limit of {settings.limit_s:g} s does not leave them. Give a longer --time-limit"
    )
    return _unmeasured(settings, reason)


def _unmeasured(settings: Settings, reason: str) -> Chosen:
    """The original as what it is, where the time is too short for anything: not measured, and so nothing where limits
    would have to be kept."""
    original = None if Budget.of(settings).limited else Trial(recipe=REFERENCE_RECIPE, outcome=Outcome.OK)
    return Chosen(trial=original, reason=reason)
