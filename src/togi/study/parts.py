"""The parts of a program, tuned one by one: what cannot be captured whole is made faster where it can be."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from togi.artifact.manifest import PARTS, Link, PartEntry
from togi.artifact.save import write_manifest
from togi.core.errors import SubjectError
from togi.core.quantities import plural
from togi.core.records import REFERENCE, Facts, Outcome, PartResult, ProgramTree, Recipe, Stage, Study, Trial
from togi.program.parts import CutRequest, Cuts, Part
from togi.search.settings import Settings
from togi.study.progress import Progress
from togi.subject.signature import Signature
from togi.techniques import all_techniques, recipe
from togi.techniques.base import Options
from togi.worker.call import ChildCall
from togi.worker.pool import WorkerPool
from togi.worker.supervise import Limits, TrialEnded

_CUT_TIMEOUT_S = 600.0
_LEAST_S = 6.0
"""Below it a study of a part does not get past its reference."""
_WHOLE_SHARE = 0.3
"""Of the time that is left when the program has been cut: for measuring and proving it whole."""


CUT = ChildCall(function="togi.program.cuts:find_cuts", request=CutRequest, answer=Cuts, purpose="recorded")

TunePart = Callable[[WorkerPool, str, Settings, Progress], tuple[Study, Path | None]]
"""A study of a part: pool, name, settings, progress."""


@final
@dataclass(frozen=True)
class TunedProgram:
    """What the parts came to."""

    tree: ProgramTree
    recipe: Recipe | None = None
    folder: Path | None = None
    """The artifact of all tuned parts, not yet proven as a whole; None where no part became faster."""


@final
@dataclass(frozen=True)
class _Done:
    """A part with what came of it."""

    part: Part
    study: Study | None = None
    folders: tuple[tuple[str, Path], ...] = ()
    """Path and artifact of each copy; none where nothing was faster."""
    reason: str = ""

    def result(self) -> PartResult:
        best = self.study.best if self.study is not None and self.folders else None
        trial = self.study.trial(best) if self.study is not None and best is not None else None
        return PartResult(
            **{name: getattr(self.part, name) for name in ("path", "module", "copies", "form", "calls", "share")},
            recipe=best,
            speedup_x=None if trial is None or trial.timing is None else trial.timing.speedup_x,
            reason=self.reason,
        )


@final
class PartsTuner:
    """Cuts a program and tunes each part within its share of the time."""

    def __init__(
        self,
        pool: WorkerPool,
        name: str,
        facts: Facts,
        signature: Signature,
        settings: Settings,
        *,
        keep: Path,
        tune: TunePart,
        progress: Progress,
    ) -> None:
        """``keep`` takes the artifact; ``tune`` runs the study of a part."""
        self.pool, self.name, self.facts, self.signature, self.settings = pool, name, facts, signature, settings
        self.keep, self.tune, self.progress = keep, tune, progress

    def run(self, left_s: float) -> TunedProgram:
        """Raises TogiError when the program cannot be recorded."""
        until = time.monotonic() + left_s
        self.progress.message(f"{self.name} cannot be captured whole: looking for its parts")
        request = CutRequest(folder=str(self.pool.folder), device=self.settings.device, seed=self.settings.seed)
        cuts = CUT.run(self.pool, request, Limits(timeout_s=_CUT_TIMEOUT_S))
        left_s = (until - time.monotonic()) * (1.0 - _WHOLE_SHARE)
        done = []
        for position, part in enumerate(cuts.parts):
            began = time.monotonic()
            done.append(self._part(part, left_s * part.share / sum(each.share for each in cuts.parts[position:])))
            left_s -= time.monotonic() - began
        tree = cuts.tree.model_copy(
            update={"parts": tuple(each.result() for each in done), "obstacles": cuts.obstacles}
        )
        return self._composed(tree, [each for each in done if each.folders])

    def _part(self, part: Part, share_s: float) -> _Done:
        if share_s < _LEAST_S:
            return _Done(part, reason=f"only {max(0.0, share_s):.0f} s were left for it")
        self.progress.message(f"part {label(part)}: {plural(part.calls, 'call')}, {part.share:.0%} of the time")
        without = (*self.settings.without, *_of_the_process())
        settings = self.settings.model_copy(update={"time_limit_s": share_s, "without": without})
        name = f"{self.name}[{label(part)}]"
        try:
            study, folder = self.tune(self._pool(part, part.path), name, settings, self.progress)
        except SubjectError as error:
            return _Done(part, reason=str(error))
        if folder is None or study.best is None or study.best.is_reference:
            return _Done(part, study, reason=study.verdict)
        copies = [(path, self._copy(part, path, study)) for path in part.copies if path != part.path]
        return _Done(part, study, ((part.path, folder), *((path, copy) for path, copy in copies if copy is not None)))

    def _pool(self, part: Part, path: str) -> WorkerPool:
        return self.pool.part(path, part.effects, self.pool.folder / part.inputs)

    def _copy(self, part: Part, path: str, study: Study) -> Path | None:
        """The same recipe for a module that is alike, with its own weights: built and verified, not measured again."""
        assert study.best is not None
        pool, limits = self._pool(part, path), Limits(timeout_s=self.settings.trial_timeout_s)
        folder = self.keep / f"{self.pool.folder.name}-{path}.togi"
        try:
            facts, signature, _ = pool.survey(limits, lambda _: None)
            facts = pool.make_truth(facts, limits, lambda _: None)
            with pool.start(study.best, facts, limits, lambda _: None) as running:
                if running.error is None or not running.error.faithful:
                    return None
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                saved = running.save(folder)
                proof = Trial(recipe=study.best, outcome=Outcome.OK, error=running.error)
        except TrialEnded:
            return None
        if saved.unsaveable:
            return None
        write_manifest(
            folder,
            subject=f"{self.name}[{path}]",
            recipe=study.best,
            signature=signature,
            facts=facts,
            proof=proof,
            chain=saved.links,
            environment={},
        )
        return folder

    def _composed(self, tree: ProgramTree, faster: Sequence[_Done]) -> TunedProgram:
        """One artifact of all parts that became faster."""
        if not faster:
            return TunedProgram(tree)
        options: Options = {label(e.part): _work(e.study.best) for e in faster if e.study and e.study.best}
        whole = recipe(**{PARTS: options, REFERENCE: {}})
        folder = self.keep / f"{self.pool.folder.name}-{whole.id}.togi"
        shutil.rmtree(folder, ignore_errors=True)
        entries: list[PartEntry] = []
        for each in faster:
            for path, source in each.folders:
                inside = str(len(entries))
                shutil.copytree(source, folder / PARTS / inside)
                entries.append(
                    PartEntry(
                        path=path,
                        module=each.part.module,
                        folder=inside,
                        effects=each.part.effects,
                        weights=each.part.weights[path],
                    )
                )
        write_manifest(
            folder,
            subject=self.name,
            recipe=whole,
            signature=self.signature,
            facts=self.facts,
            proof=Trial(recipe=whole, outcome=Outcome.OK, reason="not yet proven as a whole"),
            chain=(
                Link(engine=PARTS, folder=PARTS, meta={"parts": [entry.model_dump(mode="json") for entry in entries]}),
            ),
            environment={},
        )
        return TunedProgram(tree, whole, folder)


def _work(best: Recipe) -> str:
    """``fold_batch_norm+openvino``: what is done to a part, without options and runtime settings."""
    return "+".join(choice.technique for choice in best.choices if choice.stage is not Stage.RUNTIME)


def _of_the_process() -> list[str]:
    """Settings of a whole process or thread, and inference mode, whose tensors the Python round a part may not use."""
    return [one.id for one in all_techniques().values() if one.stage is Stage.RUNTIME and one.id != REFERENCE]


def label(part: Part) -> str:
    """``encoder``; ``decoder#1`` for its second form of calls."""
    return part.path if part.form == 0 else f"{part.path}#{part.form}"
