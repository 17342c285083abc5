"""One study from start to end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from togi.core.choices import Objective
from togi.core.errors import SubjectError
from togi.core.judging import Judging
from togi.core.quantities import seconds
from togi.core.records import Facts, Outcome, ProgramTree, Recipe, Study, Trial, reference_recipe
from togi.core.settings import Settings
from togi.decide.budget import Budget
from togi.decide.choose import Chosen
from togi.journal import Journal
from togi.machine.describe import machine
from togi.machine.load import crowded, too_many_threads
from togi.study.conclusion import conclude
from togi.study.failures import OutOfTime, explained, reference_failed
from togi.study.finals import Decision, Finals
from togi.study.open_study import OpenStudy
from togi.study.pace import USUAL, Pace
from togi.study.parts import PartsTuner
from togi.study.progress import Progress
from togi.study.runner import StudyRunner
from togi.study.time_budget import GRACE_S
from togi.study.tuned_subject import SURVEY_TIMEOUT_S, TunedSubject
from togi.techniques import all_techniques
from togi.worker.deadline import Deadline
from togi.worker.launch import NoTimeLeft
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, TrialEnded

_LOADING_X = 10.0
_LISTED = "of listed recipes"
"""Part of the key of a study in which these alone are tried: what it judges by is not what a choice is judged by."""


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
    pace: Pace = USUAL,
) -> tuple[Study, Path | None]:
    """The study's record and the folder of the proven artifact (None where nothing was chosen or could be saved).

    ``started``: when the time of the study began, by ``time.monotonic``; None: now.

    Raises TogiError when the subject cannot be loaded or run. KeyboardInterrupt leaves what is finished in the journal.
    """
    with opened_study(
        subject, name, settings, journal=journal, resume=resume, progress=progress, started=started, pace=pace
    ) as study:
        _announce(study)
        if (needed_s := study.budget.least_s) > study.budget.left_s and not study.log.trials():
            nothing = _as_it_is(needed_s, settings)
            why = f"Nothing could be tried: {nothing.reason}"
            return conclude(study, Decision(nothing, None, ()), untried=why), None
        return _explored_and_decided(study, journal, keep, resume=resume)


@contextmanager
def opened_study(
    subject: SubjectRef,
    name: str,
    settings: Settings,
    *,
    journal: Journal,
    resume: bool,
    progress: Progress,
    started: float | None,
    pace: Pace = USUAL,
    judging: Judging | None = None,
    listed: Callable[[Facts], Collection[Recipe]] | None = None,
) -> Iterator[OpenStudy]:
    """The study with its processes, the subject surveyed and captured. Raises as ``run_study``.

    Args:
        judging: by what approximate results are judged; None: as the settings say.
        listed: all that may be tried, as of ``OpenStudy.open``; a study of its own in the journal.
    """
    if started is None:
        started = time.monotonic()
    progress.message(f"loading {name}")
    here = machine(settings.device)
    for warning in filter(None, (too_many_threads(here), crowded(here))):
        progress.message(warning)

    def tell(phase: str) -> None:
        progress.message(f"{phase} of {name}")

    deadline = Deadline(started + _longest_s(settings, pace), progress.message)
    with WorkerPool(
        subject,
        here,
        device=settings.device,
        seed=settings.seed,
        callers=settings.callers_on(here.cpu_cores),
        from_host=settings.objective is Objective.END_TO_END,
        nan_differences=settings.nan_differences,
        judging=judging or settings.judging,
        data=settings.data or "",
        calibration=settings.calibration or "",
        calibrates=_may_calibrate(settings),
        train=settings.train,
        deadline=deadline,
    ) as pool:
        with explained(name):
            limits = Limits(timeout_s=SURVEY_TIMEOUT_S)
            survey, fingerprint = pool.survey(limits, tell)
            loaded = time.monotonic()
            with suppress(NoTimeLeft):  # the study then ends with what is known
                if not settings.train:  # a step is not captured: it is Python code round the module
                    survey = pool.capture(survey, limits, tell)
        tuned = TunedSubject(pool, name, survey.facts, survey.signature, settings)
        study = OpenStudy.open(
            tuned,
            fingerprint if listed is None else f"{fingerprint} {_LISTED}",
            journal,
            progress,
            calibration=survey.calibration,
            started=started,
            loaded=loaded,
            resume=resume,
            listed=listed,
            pace=pace,
        )
        if settings.time_limit_s is None:  # else it holds already
            deadline.at = max(deadline.at, loaded + _longest_s(settings, pace))
        yield study


def _may_calibrate(settings: Settings) -> bool:
    calibrated = [technique.id for technique in all_techniques().values() if technique.calibrates]
    return any(settings.allows(id) and id not in settings.without for id in calibrated)


def _announce(study: OpenStudy) -> None:
    """What is known before the first trial. Raises SubjectError where the objective cannot be reached."""
    facts, settings, progress = study.subject.facts, study.subject.settings, study.progress
    progress.surveyed(facts, study.search.remaining(), study.budget.limit_s)
    progress.resumed(study.log.trials(), Budget.of(settings))
    possible = {configuration.technique.id for configuration in study.search.space.configurations}
    if learned := study.experience.sentence(possible):
        progress.learned(learned)
    if settings.objective is Objective.FIRST_CALL and not facts.exportable:
        raise SubjectError(
            f"the first call is that of an artifact loaded from its files, and {study.subject.name} has no file form: "
            f"{facts.export_error}. Tune it for latency"
        )
    if settings.objective is Objective.END_TO_END and facts.device == "cpu":
        study.notes.append("On the CPU nothing is copied, so end-to-end is the same as latency.")


def _explored_and_decided(study: OpenStudy, journal: Journal, keep: Path, *, resume: bool) -> tuple[Study, Path | None]:
    settings, runner = study.subject.settings, StudyRunner(study)
    exploration = Exploration(runner, PartsTuner(study, runner.try_composed, journal, resume=resume))
    finals = Finals(study, keep)
    try:
        exploration.run()
        decision = finals.decide()
    except (OutOfTime, NoTimeLeft, TrialEnded) as late:
        if isinstance(late, TrialEnded) and not late.cut_off:
            raise reference_failed(study.subject.name, late, late.ending.outcome) from None
        decision = finals.in_time()
        if decision.chosen.trial is None and study.log.last(study.subject.reference) is None:
            nothing = _unmeasured(settings, str(late))
            return conclude(study, Decision(nothing, None, ()), untried=f"Nothing could be tried: {late}"), None
        unproven = ", unproven" if decision.folder is None else ""
        study.notes.append(f"The time limit was over before race and proof had ended: {late}. Trials decide{unproven}.")
    return conclude(study, decision, exploration.tree(decision.chosen.trial)), decision.folder


class Exploration:
    """What a study tries before race and proof: the whole, or its parts where it cannot be captured whole, or where
    engines of the whole disagree about what it finds or decides."""

    def __init__(self, runner: StudyRunner, parts: PartsTuner) -> None:
        self._runner, self._study, self._parts = runner, runner.study, parts
        self._cut = False

    def run(self) -> None:
        """Raises as the trials of the reference and the parts do."""
        study, runner = self._study, self._runner
        if study.subject.facts.exportable:
            study.make_truth()
        else:
            self._run_parts()
        runner.try_reference()  # how long it takes tells what race and proof will
        if not self._cut:
            left_s = study.budget.explore_s(race=False)
            runner.explore(left_s, first_gain=True, stop=lambda: bool(self._disagreement()))
            if (why := self._disagreement()) and not study.search.gained():
                self._run_parts(why)
        if self._cut and study.search.gained():  # no setting of the whole comes on top of its parts
            runner.try_original()
            return
        for first_gain in (True, False):
            race = not first_gain or study.search.points_to_gain()  # a single gain need not race, if it is one
            runner.explore(study.budget.explore_s(race=race), first_gain=first_gain)
            if self._cut:
                self._parts.try_settings()

    def tree(self, chosen: Trial | None) -> ProgramTree | None:
        """The calls and parts of what was cut, else None."""
        return self._parts.tree(chosen) if self._cut else None

    def _run_parts(self, *why: str) -> None:
        self._cut = True
        self._parts.run(self._study.budget.explore_s(), *why)

    def _disagreement(self) -> str:
        """Why what can be captured is cut as well; empty where no engine for the whole gave cause. One that rounds
        otherwise decides otherwise, and a tie is known from a fault only in a part."""
        errors = [error for trial in self._study.log.trials() if (error := trial.error) is not None]
        if any(error.other_sizes for error in errors):
            return "decides by values how much it finds, and an engine for the whole finds another number"
        if any(error.other_decisions and not error.faithful for error in errors):
            return "decides by values, and an engine for the whole decides otherwise in a few places"
        return ""


def _longest_s(settings: Settings, pace: Pace) -> float:
    """Until the original was tried. A limit that was given holds from the start, with what it takes to load torch; an
    effort's own begins when the subject is loaded, and is longer for a slow one."""
    if settings.time_limit_s is not None:
        return max(settings.time_limit_s, pace.least_limit_s) + GRACE_S
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
    original = None
    if not Budget.of(settings).limited:
        original = Trial(recipe=reference_recipe(train=settings.train), outcome=Outcome.OK)
    return Chosen(trial=original, reason=reason)
