"""The parts of a program, tuned one by one: what cannot be captured whole is made faster where it can be."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from togi.artifact.manifest import PARTS, Link, PartEntry
from togi.artifact.save import write_manifest
from togi.core.errors import SubjectError
from togi.core.quantities import plural
from togi.core.records import REFERENCE, Interval, Outcome, PartResult, ProgramTree, Recipe, Stage, Trial
from togi.decide.faster import BETWEEN_PROCESSES
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
_UNKNOWN = 0.3 / 20
"""Of its time, a second: what is expected of a part that nothing is known of."""
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
@dataclass(frozen=True)
class _Made:
    """A recipe of a part, and the artifacts that were made with it."""

    trial: Trial
    """The last of this recipe, of the part alone."""
    folders: dict[str, Path]
    """By path of the copy."""

    @property
    def recipe(self) -> Recipe:
        return self.trial.recipe

    @property
    def speedup_x(self) -> Interval | None:
        return None if self.trial.timing is None else self.trial.timing.speedup_x

    @property
    def time(self) -> float:
        """In that of the original."""
        return 1.0 if self.speedup_x is None else 1.0 / self.speedup_x.median


@final
@dataclass
class _Tried:
    """The program with parts in place."""

    made: dict[str, _Made]
    """By label."""
    trial: Trial | None = None

    @property
    def recipes(self) -> dict[str, Recipe]:
        return {label: each.recipe for label, each in self.made.items()}

    @property
    def speedup_x(self) -> float:
        """0 where it is not right, or was not timed."""
        right = self.trial is not None and self.trial.eligible and self.trial.timing is not None
        return self.trial.timing.speedup_x.median if right else 0.0  # type: ignore[union-attr]


@final
@dataclass
class _PartStudy:
    """A part with what came of it so far."""

    part: Part
    runner: StudyRunner | None = None
    finals: Finals | None = None
    decision: Decision | None = None
    best: _Made | None = None
    """None where nothing was faster."""
    reason: str = ""
    left_out: set[Recipe] = field(default_factory=set)
    """With these the program was not right."""
    ended: bool = False
    """It could not be opened, or its reference ended."""

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
    def time(self) -> float:
        """The share of the program's time that it should take with its best."""
        return self.part.share * (1.0 if self.best is None else self.best.time)

    @property
    def saves(self) -> float:
        """The share of the program's time that its best should save."""
        return self.part.share - self.time

    def promises(self, left_s: float) -> float:
        """The share of the program's time, a second, that one more trial is expected to save; 0 where none is left."""
        if self.ended or len(self.left_out) >= _MOST_LEFT_OUT:
            return 0.0
        if self.runner is None:
            return self.part.share * _UNKNOWN if left_s >= _LEAST_S else 0.0
        return self.time * self.runner.promises(left_s)

    def leave_out(self, reason: str) -> None:
        """Run the original again; what is second best may be right."""
        assert self.best is not None
        assert self.finals is not None
        self.left_out.add(self.best.recipe)
        self.finals.set_aside(self.best.recipe, reason)
        self.best, self.reason = None, reason

    def result(self, made: _Made | None) -> PartResult:
        """``made``: what is in its place."""
        reason = self.reason
        if made is None and self.best is not None:
            reason = f"{self.best.recipe.label} is faster alone, and the program was not faster with it"
        return PartResult(
            **{name: getattr(self.part, name) for name in ("path", "module", "copies", "form", "calls", "share")},
            recipe=None if made is None else made.recipe,
            speedup_x=None if made is None else made.speedup_x,
            reason=reason,
        )


@final
class PartsTuner:
    """Cuts a program and tunes its parts: all to their first gain, so that the program is soon faster, then always the
    one of which most is expected."""

    def __init__(self, whole: StudyRunner, journal: Journal, *, resume: bool) -> None:
        self.whole, self.journal, self.resume = whole, journal, resume
        self.pool, self.settings, self.progress = whole.pool, whole.settings, whole.progress
        self._cuts: Cuts | None = None
        self._studies: list[_PartStudy] = []
        self._tried: list[_Tried] = []

    def run(self, left_s: float) -> None:
        """Raises TogiError when the program cannot be recorded, or does not run for its truth."""
        until = time.monotonic() + min(left_s, _LONGEST_S)
        self.progress.message(f"{self.whole.subject} cannot be captured whole: looking for its parts")
        self._cuts = cuts = record_parts(self.pool)  # beside the truth, which was begun with capturing
        self.whole.make_truth()
        self._studies = studies = [_PartStudy(part) for part in cuts.parts]
        until -= (until - time.monotonic()) * _WHOLE_SHARE
        try:
            for study, share_s in _shares(studies, until):
                if share_s < _LEAST_S:
                    study.reason = f"only {max(0.0, share_s):.0f} s were left for it"
                    continue
                self._tell(study)
                self._explore(study, share_s, first_gain=True)
                self._save(study)
                if self._untried() > _WORTH_A_TRIAL:
                    self._try_whole()
            self._explore_most_promising(until)
            for study in studies:
                self._save(study)
            self._try_whole()
        finally:
            for study in studies:
                if study.runner is not None:
                    study.runner.close()
                    study.runner.pool.close()
        for study in studies:
            if study.runner is not None and study.decision is not None:
                conclude(study.runner, study.decision)

    def tree(self, chosen: Trial | None) -> ProgramTree:
        """The program's calls and parts, with what is in their places, or would be where it was never tried with them.
        ``chosen``: the trial of the program."""
        assert self._cuts is not None  # it was run
        made: Mapping[str, _Made | None] = {} if self._tried else {each.label: each.best for each in self._studies}
        for each in self._tried:
            if chosen is not None and each.trial is not None and each.trial.recipe == chosen.recipe:
                made = each.made
        parts = tuple(study.result(made.get(study.label)) for study in self._studies)
        return self._cuts.tree.model_copy(update={"parts": parts, "obstacles": self._cuts.obstacles})

    def _tell(self, study: _PartStudy) -> None:
        part = study.part
        self.progress.message(f"part {study.label}: {plural(part.calls, 'call')}, {part.share:.0%} of the time")

    def _explore_most_promising(self, until: float) -> None:
        """One trial after the other, of whichever part it is expected to save most."""
        told = None
        while self._studies and (left_s := until - time.monotonic()) > 0:
            study = max(self._studies, key=lambda each: each.promises(left_s))
            if study.promises(left_s) <= 0:
                break
            if study is not told:
                self._tell(study)
                told = study
            self._explore(study, left_s, trials=1)

    def _explore(
        self, study: _PartStudy, seconds: float, *, first_gain: bool = False, trials: int | None = None
    ) -> None:
        try:
            if study.runner is None:
                winners = {other.best.recipe: None for other in self._studies if other.best is not None}
                study.runner, study.reason = self._open(study, winners), ""
                study.finals = Finals(study.runner, self.pool.folder)
                study.runner.explore(0.0)  # the reference
            study.runner.explore(seconds, first_gain=first_gain, trials=trials)
        except (SubjectError, TrialEnded) as error:
            study.reason, study.ended = str(error), True

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
        """What is now its best."""
        if study.finals is None or study.ended or len(study.left_out) >= _MOST_LEFT_OUT:
            return
        study.decision = decision = study.finals.save_only()
        trial = decision.chosen.trial
        if decision.folder is None or trial is None:
            study.reason = study.reason if study.left_out else NOTHING_FASTER
        elif study.best is None or study.best.recipe != trial.recipe:
            folders = {study.part.path: decision.folder}
            for path in study.part.copies:
                if path != study.part.path and (folder := self._copy(study, path, trial.recipe)) is not None:
                    folders[path] = folder
            study.best, study.reason = _Made(trial, folders), ""

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

    def _untried(self) -> float:
        """The share of the program's time that parts should save which were not yet tried in it."""
        last = self._tried[-1].made if self._tried else {}
        return sum(study.saves for study in self._studies if study.best is not None and study.label not in last)

    def _try_whole(self) -> None:
        """The program with all parts that became faster, unless it was tried so. Where that is wrong, with what is
        second best for the one that errs most, and then without it; where it is slower than its parts by themselves
        promise, with what they had before: until it is right and fast, or the time is over."""
        while faster := [study for study in self._studies if study.best is not None]:
            now = _Tried({study.label: study.best for study in faster if study.best is not None})
            if any(each.recipes == now.recipes for each in self._tried):
                return
            self._tried.append(now)
            options: Options = {study.label: study.work for study in faster}
            composed = recipe(**{PARTS: options, REFERENCE: {}})
            self.whole.try_composed(composed, self._composed(composed, faster))
            now.trial = trial = self.whole.last(composed)
            if trial is not None and trial.outcome in (Outcome.WRONG, Outcome.FAILED):
                worst = max(faster, key=lambda study: _units(study, trial))
                worst.leave_out(f"the program was not right with it: {trial.reason}")
                self._save(worst)
            elif not self._go_back():
                return
            if self.whole.explore_s() <= 0:
                return

    def _go_back(self) -> bool:
        """To what parts had when the program was fastest, where those that joined since should have made it faster than
        it is: a part's trial is not its work in the program. False where there is nothing to go back to."""
        *earlier, now = self._tried
        before = max(earlier, key=lambda each: each.speedup_x, default=now)
        if not now.speedup_x or not before.speedup_x:
            return False
        joined = sum(study.saves for study in self._studies if study.label in now.made.keys() - before.made.keys())
        changed = {k: each for k, each in before.made.items() if now.recipes.get(k, each.recipe) != each.recipe}
        if not changed or not joined or BETWEEN_PROCESSES.band_x / now.speedup_x <= 1 / before.speedup_x - joined:
            return False
        for study in self._studies:
            study.best = changed.get(study.label, study.best)
        return True

    def _composed(self, composed: Recipe, faster: Sequence[_PartStudy]) -> Path:
        """One artifact of all parts that became faster."""
        folder = self.pool.folder / f"{composed.id}.togi"
        shutil.rmtree(folder, ignore_errors=True)
        entries: list[PartEntry] = []
        for study in faster:
            for path, source in study.best.folders.items() if study.best is not None else ():
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


def _shares(studies: Sequence[_PartStudy], until: float) -> Iterator[tuple[_PartStudy, float]]:
    """Each with its share of the seconds that are then left, by its share of the program's time, and enough for a trial
    while there is time; most worth first. What one leaves is for all."""
    every = sum(study.part.share for study in studies)
    for study in studies:
        left_s = until - time.monotonic()
        yield study, max(left_s * study.part.share / every, min(_LEAST_S, left_s / 4))


def _units(study: _PartStudy, composed: Trial) -> tuple[float, float]:
    """A part's error on the calls that the original makes, where these were looked at, and in its own trial."""
    assert study.best is not None
    forced = composed.error.forced if composed.error is not None else ()
    own = study.best.trial.error.units if study.best.trial.error is not None else 0.0
    return max((each.units for each in forced if each.path in study.best.folders), default=0.0), own


def _techniques(of: Recipe) -> list[str]:
    return [choice.technique for choice in of.choices if choice.stage is not Stage.RUNTIME]


def _for_parts(settings: Settings) -> Settings:
    """Without settings of a whole process or thread, and inference mode, whose tensors the Python round a part may not
    use; and without a bound on the metric, which is the program's: it allows a part nothing."""
    of_the_process = [one.id for one in all_techniques().values() if one.stage is Stage.RUNTIME and one.id != REFERENCE]
    allow = settings.allow if settings.max_error is not None else ()
    without = (*settings.without, *of_the_process)
    return settings.model_copy(update={"without": without, "allow": allow, "max_drop": None})
