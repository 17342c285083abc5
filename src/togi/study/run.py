"""One study from start to end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from togi.core.errors import SubjectError
from togi.core.records import Facts, Outcome, Study
from togi.decide.faster import BETWEEN_PROCESSES
from togi.journal import Journal, study_key
from togi.machine.describe import machine
from togi.machine.limits import available_bytes
from togi.search import Search
from togi.search.settings import Settings
from togi.study.finals import Decision, Finals, race_budget_s
from togi.study.parts import PartsTuner
from togi.study.progress import Progress
from togi.study.runner import StudyRunner, explore_s
from togi.subject.signature import Signature
from togi.techniques import all_techniques
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, TrialEnded

_SURVEY_TIMEOUT_S = 900.0
_PARTS_S = 900.0
"""The longest for all parts of a program where the study has no limit."""
_LIBRARY_ONLY = {"trial_timeout_s", "trial_memory_bytes"}
"""Settings that the command line does not have."""
FLEETING_SETTINGS = {"time_limit_s", "effort", "trial_timeout_s", "trial_memory_bytes", "only", "without"}
"""Settings that say how much to try, not what a trial shows: a study goes on under others."""


def run_study(
    subject: SubjectRef,
    name: str,
    settings: Settings,
    *,
    journal: Journal,
    keep: Path,
    resume: bool = True,
    progress: Progress,
) -> tuple[Study, Path | None]:
    """The study's record and the folder of the proven artifact (None where nothing was chosen or could be saved).

    Raises TogiError when the subject cannot be loaded or run. KeyboardInterrupt leaves what is finished in the journal.
    """
    started = time.monotonic()
    progress.message(f"loading {name}")
    with WorkerPool(subject, machine(settings.device), device=settings.device, seed=settings.seed) as pool:
        return _run(pool, name, settings, journal, keep, progress, started, resume=resume)


def _run(
    pool: WorkerPool,
    name: str,
    settings: Settings,
    journal: Journal,
    keep: Path,
    progress: Progress,
    started: float,
    *,
    resume: bool,
    is_part: bool = False,
) -> tuple[Study, Path | None]:
    """A study of what the pool works on: a subject, or a part of one (which is not cut again)."""
    facts, signature, fingerprint = _survey(pool, name, progress)
    tuned = None
    if not facts.exportable and not is_part:

        def tune(inner: WorkerPool, part: str, within: Settings, told: Progress) -> tuple[Study, Path | None]:
            now = time.monotonic()
            return _run(inner, part, within, journal, keep, told, now, resume=resume, is_part=True)

        tuner = PartsTuner(pool, name, facts, signature, settings, keep=pool.folder, tune=tune, progress=progress)
        tuned = tuner.run(min(explore_s(settings, started), _PARTS_S))
    facts = _make_truth(pool, name, facts, progress)
    header = Study(id="", subject=name, facts=facts, settings=settings.model_dump(mode="json"), started=_now())
    lasting = settings.model_dump(mode="json", exclude=FLEETING_SETTINGS)
    log = journal.study(study_key(name, facts, lasting, fingerprint), header, fresh=not resume)
    time_s = max(1.0, explore_s(settings, started, is_part=is_part))
    search = Search(facts, settings, all_techniques(), log.trials(), time_limit_s=time_s, original=not is_part)
    progress.surveyed(facts, search.remaining(), settings.limit_s)
    progress.resumed(log.trials(), settings.max_memory_bytes)
    runner = StudyRunner(
        pool, name, facts, signature, settings, log, search, progress, started, _trial_memory_bytes(settings)
    )
    runner.is_part = is_part
    runner.notes += log.notes
    try:
        if tuned is not None:
            runner.try_parts(tuned)
        runner.explore()
        finals = Finals(runner, keep)
        decision = finals.save_only() if is_part else finals.decide(race_budget_s(settings.limit_s, started))
    except TrialEnded as ended:  # the reference: everything else ends in a record
        raise SubjectError(
            f"{name} ran once, but its reference (eager under no_grad) did not: {ended}. Finished trials are kept"
        ) from None
    study = _conclude(runner, decision).model_copy(update={"program": tuned.tree if tuned is not None else None})
    log.decide(study)
    progress.finished(study)
    return study, decision.folder


def _survey(pool: WorkerPool, name: str, progress: Progress) -> tuple[Facts, Signature, str]:
    with _explained(name):
        return pool.survey(Limits(timeout_s=_SURVEY_TIMEOUT_S), lambda phase: progress.message(f"{phase} of {name}"))


def _make_truth(pool: WorkerPool, name: str, facts: Facts, progress: Progress) -> Facts:
    with _explained(name):
        limits = Limits(timeout_s=_SURVEY_TIMEOUT_S)
        return pool.make_truth(facts, limits, lambda phase: progress.message(f"{phase} of {name}"))


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """A subject that cannot be run is no trial that failed: there is nothing to tune."""
    try:
        yield
    except TrialEnded as ended:
        detail = f"\n{ended.ending.traceback}" if ended.ending.outcome is Outcome.CRASHED else ""
        raise SubjectError(
            f"{name} cannot be run on its own inputs, so there is nothing to tune: {ended.ending.reason}.{detail}"
        ) from None


def _conclude(runner: StudyRunner, decision: Decision) -> Study:
    trials, search = runner.log.trials(), runner.search
    chosen = decision.chosen.trial
    return runner.log.header.model_copy(
        update={
            "trials": (*trials, *search.excluded),
            "excluded": search.excluded,
            "finalists": decision.finalists,
            "best": None if chosen is None else chosen.recipe,
            "verdict": " ".join([_verdict(decision), *runner.notes]),
            "command": _command(runner.subject, runner.settings),
        }
    )


def _verdict(decision: Decision) -> str:
    """The choice in a sentence or two."""
    chosen = decision.chosen.trial
    if chosen is None:
        return f"Nothing could be chosen: {decision.chosen.reason}."
    if chosen.recipe.is_reference or chosen.timing is None:
        return "Nothing was faster than the original beyond doubt: keep it as it is, under torch.no_grad."
    speedup = chosen.timing.speedup_x
    faithful = chosen.error is None or chosen.error.faithful
    right = "as right as plain eager" if faithful else chosen.reason
    sentence = (
        f"{chosen.recipe.label} is {speedup.median:.2f} x as fast as the original (between {speedup.low:.2f} and "
        f"{speedup.high:.2f} x) and {right}."
    )
    if not BETWEEN_PROCESSES.faster(speedup):
        sentence += f" It is chosen for its memory: {decision.chosen.reason.rpartition('; ')[2]}."
    return sentence if decision.folder is not None else f"{sentence} It could not be saved."


def _command(subject: str, settings: Settings) -> str:
    """The command line with every setting that is not the default."""
    flags = []
    for name, field in Settings.model_fields.items():
        if name not in _LIBRARY_ONLY:
            value, default = getattr(settings, name), field.get_default(call_default_factory=True)
            values = value if isinstance(value, tuple) else () if value == default else (value,)
            flags += [f"{flag(name)} {shlex.quote(_said(each))}" for each in values]
    return " ".join(["togi tune", shlex.quote(subject), *flags])


def flag(setting: str) -> str:
    """``--time-limit`` of ``time_limit_s``: the option of the command line without the unit."""
    return "--" + setting.removesuffix("_s").removesuffix("_bytes").replace("_", "-")


def _said(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _trial_memory_bytes(settings: Settings) -> int:
    """What a trial may hold: the setting, else 80 % of what is free now, so that a runaway leaves the machine alive."""
    if settings.trial_memory_bytes is not None:
        return settings.trial_memory_bytes
    free = available_bytes()
    return int(0.8 * (machine().memory_bytes if free is None else free))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
