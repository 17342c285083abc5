"""The study of one part of a program: its trials in processes of their own, what it saves, and its journal."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from typing_extensions import Self

from togi.artifact.save import write_manifest
from togi.core.recipe import REFERENCE, REFERENCE_RECIPE, Recipe, Stage
from togi.core.records import Outcome, Trial
from togi.core.settings import Settings
from togi.decide.choose import Chosen, latest
from togi.journal import Journal
from togi.program.parts import Part
from togi.study.conclusion import conclude
from togi.study.finals import Decision, Finals
from togi.study.open_study import OpenStudy
from togi.study.progress import PartProgress
from togi.study.runner import StudyRunner
from togi.study.tuned_subject import TunedSubject
from togi.techniques import all_techniques
from togi.worker.launch import NoTimeLeft
from togi.worker.pool import WorkerPool
from togi.worker.supervise import TrialEnded

RUINED = 0.5
"""The relative RMS error from which nobody need ask what the program makes of a part. EfficientNet in 8 bits errs by a
quarter, and answers 99 of 100 pictures as before."""


class PartRunner:
    """Runs the study of one part, as a subject of its own."""

    def __init__(self, whole: OpenStudy, part: Part, runner: StudyRunner, finals: Finals) -> None:
        """``whole``: the study of the program. ``runner`` and ``finals``: of the part's own."""
        self._whole, self._part = whole, part
        self._study, self._runner, self._finals = runner.study, runner, finals

    @classmethod
    def open(
        cls, whole: OpenStudy, journal: Journal, part: Part, firsts: Iterable[Recipe], limit_s: float, *, resume: bool
    ) -> Self:
        """Capture the part, make its truth and try its reference, in ``limit_s``. ``firsts``: recipes to try first.

        Raises SubjectError, TrialEnded or NoTimeLeft; then no process is left.
        """
        program = whole.subject
        with program.pool.deadline.within(limit_s), ExitStack() as undo:
            pool = _pool(program, part, part.key.path)
            undo.callback(pool.close)
            survey = pool.capture(part.survey, program.limits, _ignore)
            name, settings = f"{program.name}[{part.key.label}]", settings_of_parts(program.settings)
            study = OpenStudy.open(
                TunedSubject(pool, name, survey.facts, survey.signature, settings),
                f"{part.weights[part.key.path]} {survey.code}",
                journal,
                PartProgress(whole.progress, part.key.label),
                calibration=survey.calibration,
                started=whole.budget.started,
                loaded=whole.budget.loaded,
                resume=resume,
                firsts=(REFERENCE_RECIPE, *firsts),
                pace=whole.pace,
            )
            undo.callback(study.processes.close)
            study.make_truth()
            runner = StudyRunner(study)
            runner.try_reference()
            undo.pop_all()
        return cls(whole, part, runner, Finals(study, program.pool.folder))

    def trials(self) -> list[Trial]:
        return self._study.log.trials()

    @property
    def stopped(self) -> str:
        """Why nothing more is tried, in a sentence; empty where something may be."""
        return self._study.search.stopped

    def promises(self, seconds: float) -> float:
        """The share of its time, a second, that one more trial is expected to save."""
        return self._runner.promises(seconds)

    def explore(self, seconds: float, *, first_gain: bool = False, trials: int | None = None) -> None:
        self._runner.explore(seconds, first_gain=first_gain, trials=trials)

    def choice(self) -> Chosen:
        """What its trials choose now."""
        return self._finals.choice()

    def save(self, first: Recipe | None = None) -> Decision:
        """What its trials choose, or ``first`` if it can be, with its files."""
        decision = self._finals.save_only(first)
        for recipe in self.unusable:  # its files may have been found wrong where no sample is
            last = self._study.log.last(recipe)
            self._study.search.set_aside(recipe, wrong=last is not None and last.outcome is Outcome.WRONG)
        return decision

    def set_aside(self, recipe: Recipe, reason: str, *, wrong: bool) -> None:
        """``wrong``: the program is with it, or would be."""
        self._finals.set_aside(recipe, reason)
        self._study.search.set_aside(recipe, wrong=wrong)

    def dismiss(self, recipe: Recipe, reason: str) -> None:
        """Nothing with its engine is a choice any more, whatever it does alone."""
        self._study.search.dismiss(recipe)
        for trial in latest(self.trials()):
            if trial.eligible and trial.recipe.engine == recipe.engine:
                self.set_aside(trial.recipe, reason, wrong=False)

    def leave_approximate(self) -> None:
        """Faithful recipes alone are tried from now on."""
        self._study.search.leave_approximate()

    @property
    def unusable(self) -> Mapping[Recipe, str]:
        """What was set aside, and why."""
        return self._finals.unusable

    def copy(self, path: str, recipe: Recipe) -> Path | None:
        """Make the artifact of a module that is alike, with its own weights: built and verified, not measured again.

        None where it cannot be made, or where no more time is left than the proof of the program takes.
        """
        program, part, budget = self._whole.subject, self._part, self._whole.budget
        if budget.explore_s() < budget.proof_s:
            return None
        pool = _pool(program, part, path)
        folder = program.pool.folder / f"{path}#{part.key.form}-{recipe.id}.togi"
        try:
            survey = pool.capture(part.survey, program.limits, _ignore, rewrites=False)
            facts = pool.make_truth(survey.facts, program.limits, _ignore)
            with pool.start(recipe, facts, program.limits, _ignore) as running:
                if self._study.subject.accepted(running)[0] is not Outcome.OK:
                    return None
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                saved = running.save(folder, self._study.budget.ask_s)
                proof = Trial(recipe=recipe, outcome=Outcome.OK, error=running.error)
        except (TrialEnded, NoTimeLeft):
            return None
        finally:
            pool.close()
        if saved.unsaveable or saved.wrong:
            return None
        write_manifest(
            folder,
            subject=f"{program.name}[{path}]",
            recipe=recipe,
            signature=survey.signature.within(saved.domains),
            facts=facts,
            proof=proof,
            chain=saved.links,
            calibration=saved.calibration,
        )
        return folder

    def free_memory(self) -> bool:
        """End the processes that are kept of its trials. False where there are none."""
        return self._study.processes.free_memory()

    def conclude(self, decision: Decision) -> None:
        """Keep the study in the journal."""
        conclude(self._study, decision)

    def close(self) -> None:
        """End its processes."""
        self._study.processes.close()
        self._study.subject.pool.close()


def settings_of_parts(settings: Settings) -> Settings:
    """Without settings of a whole process or thread, and inference mode, whose tensors the Python round a part may not
    use. A bound on the metric is the program's, by whose trials it is judged: of a part alone only what is ruined is
    refused."""
    techniques = all_techniques().values()
    of_the_process = [remedy.id for remedy in techniques if remedy.stage is Stage.RUNTIME and remedy.id != REFERENCE]
    without = (*settings.without, *of_the_process)
    max_error = RUINED if settings.max_error is None and settings.judging is not None else settings.max_error
    judged: dict[str, None] = dict.fromkeys(("max_drop", "min_agreement", "metric", "better"))
    return dataclasses.replace(settings, without=without, max_error=max_error, **judged)  # type: ignore[arg-type]


def _pool(program: TunedSubject, part: Part, path: str) -> WorkerPool:
    pool = program.pool
    others = str(pool.folder / part.proof[path])
    return pool.part(part.entry(path).key, part.effects, pool.folder / part.inputs, part.survey, others)


def _ignore(_phase: str) -> None:
    """No progress is shown for it."""
