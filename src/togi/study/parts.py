"""The parts of a program, tuned one by one: what cannot be captured whole is made faster where it can be."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from togi.artifact.manifest import PARTS, Link, PartEntry
from togi.artifact.save import write_manifest
from togi.core.errors import SubjectError
from togi.core.quantities import plural
from togi.core.records import REFERENCE, Outcome, PartResult, ProgramTree, Recipe, Stage, Trial
from togi.journal import Journal
from togi.program.parts import CutRequest, Cuts, Part
from togi.search.settings import Settings
from togi.study.conclusion import NOTHING_FASTER, conclude
from togi.study.finals import Decision, Finals
from togi.study.progress import PartProgress
from togi.study.runner import REFERENCE_RECIPE, StudyRunner
from togi.techniques import all_techniques, recipe
from togi.techniques.base import Options
from togi.worker.call import ChildCall
from togi.worker.pool import WorkerPool
from togi.worker.supervise import Limits, TrialEnded

_CUT_TIMEOUT_S = 600.0
_LONGEST_S = 900.0
"""For all parts where the study has no limit."""
_LEAST_S = 6.0
"""Below it a study of a part does not get past its reference."""
_WHOLE_SHARE = 0.3
"""Of the time that is left when the program has been cut: for measuring and proving it whole."""
_WORTH_A_TRIAL = 0.1
"""The program is tried at once where its parts should save so much of its time: it should soon have a gain."""
_MOST_LEFT_OUT = 2
"""So many recipes of a part may make the program wrong before the original stays."""


CUT = ChildCall(function="togi.program.cuts:find_cuts", request=CutRequest, answer=Cuts, purpose="recorded")


def record_parts(pool: WorkerPool) -> Cuts:
    """The parts of the pool's program with their calls, on which artifacts of parts are proven from then on.

    Raises TogiError when the program cannot be recorded.
    """
    config = pool.config
    request = CutRequest(
        folder=str(pool.folder),
        device=config.device,
        seed=config.seed,
        machine=config.machine,
        callers=config.callers,
    )
    cuts = CUT.run(pool, request, Limits(timeout_s=_CUT_TIMEOUT_S))
    pool.prove_on((path, part.effects, pool.folder / file) for part in cuts.parts for path, file in part.proof.items())
    return cuts


@final
@dataclass
class _PartStudy:
    """A part with what came of it so far."""

    part: Part
    runner: StudyRunner | None = None
    finals: Finals | None = None
    decision: Decision | None = None
    best: Trial | None = None
    """The last trial of the recipe whose artifacts ``folders`` has."""
    folders: dict[str, Path] = field(default_factory=dict)
    """By path of the copy; empty where nothing was faster."""
    reason: str = ""
    left_out: set[Recipe] = field(default_factory=set)
    """With these the program was not right."""

    @property
    def label(self) -> str:
        """``encoder``; ``decoder#1`` for its second form of calls."""
        return self.part.path if self.part.form == 0 else f"{self.part.path}#{self.part.form}"

    @property
    def work(self) -> str:
        """``fold_batch_norm+openvino``: what is done to it, without runtime settings, and without options where only
        one choice of these was tried."""
        assert self.runner is not None
        assert self.best is not None
        chosen = self.best.recipe
        tried = {trial.recipe for trial in self.runner.log.trials() if _techniques(trial.recipe) == _techniques(chosen)}
        if len(tried) <= 1:
            return "+".join(_techniques(chosen))
        return "+".join(choice.label for choice in chosen.choices if choice.stage is not Stage.RUNTIME)

    @property
    def saves(self) -> float:
        """The share of the program's time that its best should save."""
        if self.best is None or self.best.timing is None:
            return 0.0
        return self.part.share * (1 - 1 / self.best.timing.speedup_x.median)

    def leave_out(self, reason: str) -> None:
        """Run the original again; what is second best may be right."""
        assert self.best is not None
        assert self.finals is not None
        self.left_out.add(self.best.recipe)
        self.finals.set_aside(self.best.recipe, reason)
        self.best, self.folders, self.reason = None, {}, reason

    def result(self) -> PartResult:
        return PartResult(
            **{name: getattr(self.part, name) for name in ("path", "module", "copies", "form", "calls", "share")},
            recipe=None if self.best is None else self.best.recipe,
            speedup_x=None if self.best is None or self.best.timing is None else self.best.timing.speedup_x,
            reason=self.reason,
        )


@final
class PartsTuner:
    """Cuts a program and tunes each part within its share of the time, twice: all parts to their first gain, so that
    the program is soon faster, then for whatever may be faster yet."""

    def __init__(self, whole: StudyRunner, journal: Journal, *, resume: bool) -> None:
        self.whole, self.journal, self.resume = whole, journal, resume
        self.pool, self.settings, self.progress = whole.pool, whole.settings, whole.progress
        self._tried: dict[str, Recipe] = {}
        """By part, the recipes with which the program was tried last."""

    def run(self, left_s: float) -> ProgramTree:
        """Raises TogiError when the program cannot be recorded, or does not run for its truth."""
        until = time.monotonic() + min(left_s, _LONGEST_S)
        self.progress.message(f"{self.whole.subject} cannot be captured whole: looking for its parts")
        cuts = record_parts(self.pool)  # beside the truth, which was begun with capturing
        self.whole.make_truth()
        studies = [_PartStudy(part) for part in cuts.parts]
        until -= (until - time.monotonic()) * _WHOLE_SHARE
        try:
            for first_gain in (True, False):
                for study, share_s in _shares(studies, until, keep=first_gain):
                    self._go_on(study, share_s, studies, first_gain=first_gain)
                    if first_gain and self._untried(studies) > _WORTH_A_TRIAL:
                        self._try_whole(studies)
                if not (first_gain and self._tried):
                    self._try_whole(studies)
        finally:
            for study in studies:
                if study.runner is not None:
                    study.runner.close()
                    study.runner.pool.close()
        for study in studies:
            if study.runner is not None and study.decision is not None:
                conclude(study.runner, study.decision)
        return cuts.tree.model_copy(
            update={"parts": tuple(study.result() for study in studies), "obstacles": cuts.obstacles}
        )

    def _go_on(self, study: _PartStudy, seconds: float, studies: Sequence[_PartStudy], *, first_gain: bool) -> None:
        """Explore it for some seconds, or to the first gain, and save what is then the best."""
        if study.runner is None and seconds < _LEAST_S:
            study.reason = f"only {max(0.0, seconds):.0f} s were left for it"
            return
        part = study.part
        self.progress.message(f"part {study.label}: {plural(part.calls, 'call')}, {part.share:.0%} of the time")
        try:
            if study.runner is None:
                study.runner = self._open(
                    study, {other.best.recipe: None for other in studies if other.best is not None}
                )
                study.finals = Finals(study.runner, self.pool.folder)
                study.runner.explore(0.0)  # the reference
            study.runner.explore(seconds, first_gain=first_gain)
        except (SubjectError, TrialEnded) as error:
            study.reason = str(error)
            return
        self._save(study)

    def _open(self, study: _PartStudy, winners: Iterable[Recipe]) -> StudyRunner:
        """``winners``: what was best for other parts is likely good for this one."""
        part = study.part
        pool = self._pool(part, part.path)
        try:
            runner = StudyRunner.open(
                pool,
                f"{self.whole.subject}[{study.label}]",
                pool.capture(part.survey, self.whole.limits, lambda _: None),
                part.weights[part.path],
                _for_parts(self.settings),
                self.journal,
                PartProgress(self.progress, study.label),
                started=time.monotonic(),
                resume=self.resume,
                firsts=(REFERENCE_RECIPE, *winners),
            )
            runner.make_truth()
        except BaseException:
            pool.close()
            raise
        return runner

    def _save(self, study: _PartStudy) -> None:
        if len(study.left_out) >= _MOST_LEFT_OUT:
            return
        assert study.finals is not None
        study.decision = decision = study.finals.save_only()
        trial = decision.chosen.trial
        if decision.folder is None or trial is None:
            study.reason = study.reason if study.left_out else NOTHING_FASTER
        elif study.best is None or study.best.recipe != trial.recipe:
            study.best, study.reason = trial, ""
            study.folders = {study.part.path: decision.folder}
            for path in study.part.copies:
                if path != study.part.path and (folder := self._copy(study, path, trial.recipe)) is not None:
                    study.folders[path] = folder

    def _pool(self, part: Part, path: str) -> WorkerPool:
        return self.pool.part(path, part.effects, self.pool.folder / part.inputs, part.survey)

    def _copy(self, study: _PartStudy, path: str, best: Recipe) -> Path | None:
        """The same recipe for a module that is alike, with its own weights: built and verified, not measured again."""
        pool, limits = self._pool(study.part, path), self.whole.limits
        folder = self.pool.folder / f"{path}-{best.id}.togi"
        try:
            survey = pool.capture(study.part.survey, limits, lambda _: None, rewrites=False)
            facts = pool.make_truth(survey.facts, limits, lambda _: None)
            with pool.start(best, facts, limits, lambda _: None) as running:
                if self.whole.accepted(running)[0] is not Outcome.OK:
                    return None
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                saved = running.save(folder)
                proof = Trial(recipe=best, outcome=Outcome.OK, error=running.error)
        except TrialEnded:
            return None
        finally:
            pool.close()
        if saved.unsaveable:
            return None
        write_manifest(
            folder,
            subject=f"{self.whole.subject}[{path}]",
            recipe=best,
            signature=survey.signature,
            facts=facts,
            proof=proof,
            chain=saved.links,
            environment={},
        )
        return folder

    def _untried(self, studies: Sequence[_PartStudy]) -> float:
        """The share of the program's time that parts should save which were not yet tried in it."""
        news = (each for each in studies if each.best is not None and self._tried.get(each.label) != each.best.recipe)
        return sum(study.saves for study in news)

    def _try_whole(self, studies: Sequence[_PartStudy]) -> None:
        """The program with all parts that became faster, unless it was tried so; where that is wrong, with what is
        second best for the one that errs most, and then without it, until it is right or the time is over."""
        while faster := [study for study in studies if study.folders]:
            recipes = {study.label: study.best.recipe for study in faster if study.best is not None}
            if recipes == self._tried:
                return
            self._tried = recipes
            options: Options = {study.label: study.work for study in faster}
            composed = recipe(**{PARTS: options, REFERENCE: {}})
            self.whole.try_composed(composed, self._composed(composed, faster))
            trial = self.whole.last(composed)
            if trial is None or trial.outcome not in (Outcome.WRONG, Outcome.FAILED):
                return
            worst = max(faster, key=lambda study: _units(study, trial))
            worst.leave_out(f"the program was not right with it: {trial.reason}")
            self._save(worst)
            if self.whole.explore_s() <= 0:
                return

    def _composed(self, composed: Recipe, faster: Sequence[_PartStudy]) -> Path:
        """One artifact of all parts that became faster."""
        folder = self.pool.folder / f"{composed.id}.togi"
        shutil.rmtree(folder, ignore_errors=True)
        entries: list[PartEntry] = []
        for study in faster:
            for path, source in study.folders.items():
                inside = str(len(entries))
                shutil.copytree(source, folder / PARTS / inside, copy_function=os.link)
                entries.append(
                    PartEntry(
                        path=path,
                        module=study.part.module,
                        folder=inside,
                        effects=study.part.effects,
                        weights=study.part.weights[path],
                    )
                )
        write_manifest(
            folder,
            subject=self.whole.subject,
            recipe=composed,
            signature=self.whole.signature,
            facts=self.whole.facts,
            proof=Trial(recipe=composed, outcome=Outcome.OK, reason="not yet proven as a whole"),
            chain=(
                Link(engine=PARTS, folder=PARTS, meta={"parts": [entry.model_dump(mode="json") for entry in entries]}),
            ),
            environment={},
        )
        return folder


def _shares(studies: Sequence[_PartStudy], until: float, *, keep: bool) -> Iterator[tuple[_PartStudy, float]]:
    """Each with its share of the seconds that are then left, by its share of the program's time; most worth first.

    ``keep``: those before leave theirs to a second round, and every part gets enough for a trial while there is time.
    """
    for position, study in enumerate(studies):
        left_s = until - time.monotonic()
        rest = sum(other.part.share for other in (studies if keep else studies[position:]))
        share_s = left_s * study.part.share / rest
        yield study, max(share_s, min(_LEAST_S, left_s / 4)) if keep else share_s


def _units(study: _PartStudy, composed: Trial) -> tuple[float, float]:
    """A part's error on the calls that the original makes, where these were looked at, and in its own trial."""
    forced = composed.error.forced if composed.error is not None else ()
    own = study.best.error.units if study.best is not None and study.best.error is not None else 0.0
    return max((each.units for each in forced if each.path in study.folders), default=0.0), own


def _techniques(of: Recipe) -> list[str]:
    return [choice.technique for choice in of.choices if choice.stage is not Stage.RUNTIME]


def _for_parts(settings: Settings) -> Settings:
    """Without settings of a whole process or thread, and inference mode, whose tensors the Python round a part may not
    use; and without a bound on the metric, which is the program's: it allows a part nothing."""
    of_the_process = [one.id for one in all_techniques().values() if one.stage is Stage.RUNTIME and one.id != REFERENCE]
    allow = settings.allow if settings.max_error is not None else ()
    without = (*settings.without, *of_the_process)
    return settings.model_copy(update={"without": without, "allow": allow, "max_drop": None})
