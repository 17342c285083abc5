"""Measures what tuning the parts of a program claims: a short study of a program, in a journal of its own."""

from __future__ import annotations

import time
from collections.abc import Callable

from togi.claims.claim import ClaimVerdict, MeasuredClaim
from togi.claims.experiments import Experiment
from togi.claims.technique import experiment_of, limits, proof_of, run_experiment, untested
from togi.core.recipe import REFERENCE_RECIPE, ProgramRecipe
from togi.core.records import Outcome, ProgramTree, Trial, measured
from togi.core.settings import Settings
from togi.journal import Journal
from togi.study.open_study import OpenStudy
from togi.study.parts import PartsTuner
from togi.study.progress import Progress
from togi.study.runner import StudyRunner
from togi.study.tuned_subject import TunedSubject
from togi.techniques import Remedy
from togi.worker.pool import WorkerPool
from togi.worker.supervise import OnPhase

_SHARE = 0.6
"""Of the minute, for the studies of the parts: what is begun by then is still measured."""


def prove_parts(remedy: Remedy, *, on: str = "", device: str, seed: int, on_phase: OnPhase) -> MeasuredClaim:
    """Measure a program with its tuned parts next to the original. Arguments and errors are ``prove_technique``'s."""
    experiment, device = experiment_of(remedy, on, device)

    def tuned(pool: WorkerPool, left_s: Callable[[], float]) -> MeasuredClaim:
        return _prove(pool, remedy, experiment, left_s, on_phase)

    return run_experiment(remedy, experiment, tuned, device=device, seed=seed)


def _prove(
    pool: WorkerPool, remedy: Remedy, experiment: Experiment, left_s: Callable[[], float], on_phase: OnPhase
) -> MeasuredClaim:
    survey, fingerprint = pool.survey(limits(left_s()), on_phase)
    survey = pool.capture(survey, limits(left_s()), on_phase)
    if survey.facts.exportable:
        return untested(remedy, experiment, "it can be captured whole, so there is nothing to cut into parts")
    settings = Settings(seed=pool.config.seed, device=pool.config.device, time_limit_s=pool.deadline.left_s)
    with Journal.open(pool.folder / "journal.sqlite") as journal:
        subject = TunedSubject(pool, experiment.about, survey.facts, survey.signature, settings)
        study = OpenStudy.open(subject, fingerprint, journal, Progress(), started=time.monotonic(), resume=False)
        try:
            parts = PartsTuner(study, StudyRunner(study).try_composed, journal, resume=False)
            parts.run(left_s() * _SHARE)
        finally:
            study.processes.close()
        programs = [trial for trial in study.log.trials() if isinstance(trial.recipe, ProgramRecipe)]
    if not programs:
        return untested(remedy, experiment, _why_none(parts.tree(None)))
    fastest = max(measured(reversed(programs)), key=lambda timed: timed.speedup_x.median, default=None)
    return _proof(remedy, experiment, programs[-1] if fastest is None else fastest.trial)


def _why_none(tree: ProgramTree | None) -> str:
    reasons = [f"{part.key.path}: {part.reason}" for part in tree.parts] if tree is not None else []
    return "; ".join(reasons) or "no part can be captured"


def _proof(remedy: Remedy, experiment: Experiment, trial: Trial) -> MeasuredClaim:
    if trial.error is None or trial.timing is None:
        ended = untested(remedy, experiment, f"{trial.recipe.label}: {trial.reason}", trial.fix)
        wrong = {"verdict": ClaimVerdict.REFUTED, "right": False}
        return ended.model_copy(update=wrong) if trial.outcome is Outcome.WRONG else ended
    return proof_of(remedy, experiment, (REFERENCE_RECIPE, trial.recipe), trial.error, trial.timing)
