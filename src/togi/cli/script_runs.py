"""The two kinds of runs of ``togi run``: the first, which finds and tunes, and later ones, with what was tuned."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.cli.output import say
from togi.core.errors import SubjectError, TogiError
from togi.core.quantities import first_line, plural, seconds
from togi.core.version import version
from togi.script.hook import when_torch_is_imported
from togi.script.main_module import INTERRUPTED, HowItEnded, ScriptEnd
from togi.script.report import ScriptReport

if TYPE_CHECKING:
    from togi.script.records import ScriptIndex, TunedModule
    from togi.script.report import ModuleCalls
    from togi.script.serving import ScriptService
    from togi.script.watched import WatchedModule
    from togi.script.watching import ScriptWatcher
    from togi.study.result import Best, StudyResult

LEAST_S = 20.0
"""A module is not tuned in less time: its processes would have started, and little else."""
_NO_TIME = "the time limit was over before anything was compared; give a longer one, or run it on a quieter machine"
_NOTHING_FASTER = "nothing was faster beyond doubt"
_INTERRUPTED = "tuning was interrupted"


class FirstRun:
    """Watches the script, then tunes the modules that took its time."""

    def __init__(self, folder: Path | None, script: str, *, time_limit_s: float, seed: int) -> None:
        """``folder``: where artifacts are written; None: nothing is tuned."""
        self.folder, self.script = folder, script
        self.time_limit_s, self.seed = time_limit_s, seed
        self.document: Callable[[], dict[str, Any]] | None = None
        """Makes what ``--json`` prints, after the script has ended."""
        self.code = 0
        """For a script that ended with 0."""
        self._watcher: ScriptWatcher | None = None

    def begin(self) -> None:
        when_torch_is_imported(self._watch)

    def _watch(self) -> None:
        from togi.script.watching import ScriptWatcher

        self._watcher = ScriptWatcher(holds=self.folder is not None)

    def finish(self, end: ScriptEnd) -> None:
        """Report, and tune if the script ended in a way after which that is expected."""
        records: list[tuple[WatchedModule, ModuleCalls]] = []
        report = ScriptReport(script=self.script, seconds=end.seconds)
        if self._watcher is not None:
            self._watcher.stop()
            records = self._watcher.records(end.seconds)
            report = self._watcher.report(self.script, end.seconds, records)
        self.document = lambda: _document(report)
        _show_report(report)
        worth = [watched for watched, calls in records if not calls.reason]
        if self.folder is None or not worth:
            return
        if end.how in (HowItEnded.RAISED, HowItEnded.INTERRUPTED):
            say(f"togi: nothing is tuned, since {end.how.value}. Run it again once it comes to its end")
            return
        shares = {id(watched): calls.share for watched, calls in records}
        try:
            tuned = self._tune(worth, shares)
        except TogiError as error:  # a full disk: the script has ended well all the same
            say(f"togi: {error}")
            self.code = 1
            return
        self.document = lambda: _document(report, folder=str(self.folder), tuned=tuned)
        _show_tuned(tuned, self.folder if _worth_writing(tuned) else None, self.script)

    def _tune(self, worth: Sequence[WatchedModule], shares: dict[int, float]) -> list[TunedModule]:
        """Tune one module after the other, and write what is there in the end, even if it is interrupted."""
        assert self.folder is not None
        limits = divided([watched.seconds for watched in worth], self.time_limit_s)
        for watched in worth[len(limits) :]:
            say(f"togi: no time is left to tune {watched.name}: give a longer --time-limit")
        tuned: list[TunedModule] = []
        with tempfile.TemporaryDirectory(prefix="togi-run-") as made_in:
            try:
                for watched, limit_s in zip(worth, limits, strict=False):
                    name = f"{len(tuned)}-{watched.name}.togi"
                    tuned.append(self._tune_one(watched, shares[id(watched)], limit_s, Path(made_in) / name))
            except KeyboardInterrupt:
                self.code = INTERRUPTED
                say(
                    f"togi: interrupted. {plural(len(tuned), 'module')} of {len(worth)} finished; finished trials are "
                    "in the journal, and 'togi run --again' goes on from there"
                )
                tuned += [
                    _undecided(watched, shares[id(watched)], _INTERRUPTED)
                    for watched in worth[len(tuned) : len(limits)]
                ]
            if _worth_writing(tuned):
                self._write(tuned, Path(made_in))
        return tuned

    def _tune_one(self, watched: WatchedModule, share: float, limit_s: float, out: Path) -> TunedModule:
        from togi import api
        from togi.artifact.manifest import read_manifest
        from togi.render.progress import watch
        from togi.script.records import TunedModule
        from togi.study.drop_in import device_of

        say(f"togi: tuning {watched.name} on {plural(len(watched.samples()), 'call')}, {seconds(limit_s)} at most")
        identity = watched.identity()
        with watch(watched.name) as progress:
            try:
                result = api.tune(
                    watched.live,
                    inputs=watched.samples(),
                    out=out,
                    device=device_of(watched.live),
                    time_limit_s=limit_s,
                    seed=self.seed,
                    progress=progress,
                )
            except (TogiError, OSError) as error:
                why_not, decided = first_line(error), _lies_in_the_module(error)
                return TunedModule(identity=identity, share=share, why_not=why_not, decided=decided)
        if result.artifact is None or result.best.recipe.is_reference:
            shutil.rmtree(out, ignore_errors=True)
            return TunedModule(identity=identity, share=share, why_not=_why_not(result), decided=_is_decided(result))
        return TunedModule(
            identity=identity,
            share=share,
            artifact=out.name,
            sha256=read_manifest(out).sha256,
            **_figures(result.best, watched.seconds),
        )

    def _write(self, tuned: Sequence[TunedModule], made_in: Path) -> None:
        from togi.artifact.save import written_whole
        from togi.core.records import now
        from togi.script.records import INDEX, ScriptIndex, check_replaceable

        assert self.folder is not None
        index = ScriptIndex(togi_version=version(), created=now(), script=self.script, modules=tuple(tuned))
        with written_whole(self.folder) as new:
            shutil.copytree(made_in, new)
            new.chmod(0o755)  # whoever may read the script may use it
            (new / INDEX).write_text(index.model_dump_json(indent=1), encoding="utf-8")
            check_replaceable(self.folder)  # again: the script, or somebody else, may have put something there


class LaterRun:
    """Runs the script with the artifacts of an earlier run."""

    def __init__(self, folder: Path, index: ScriptIndex, script: str) -> None:
        self.folder, self.index, self.script = folder, index, script
        self.document: Callable[[], dict[str, Any]] | None = None
        self.code = 0
        self._service: ScriptService | None = None
        self._artifacts = sum(bool(tuned.artifact) for tuned in index.modules)

    def begin(self) -> None:
        day = self.index.created[:10]
        undecided = f", and {', '.join(self.index.undecided)} undecided" if self.index.undecided else ""
        if not self._artifacts:
            say(
                f"togi: nothing was faster on {day}{undecided}, so the script runs as it is. 'togi run --again' tries "
                "again"
            )
            return
        modules = plural(self._artifacts, "module")
        say(f"togi: using {self.folder} ({modules}, tuned on {day}{undecided}). 'togi run --again' tunes anew")
        when_torch_is_imported(self._serve)

    def _serve(self) -> None:
        from togi.script.serving import ScriptService

        self._service = ScriptService(self.folder, self.index, lambda text: say(f"togi: {text}"))

    def finish(self, end: ScriptEnd) -> None:
        served = []
        if self._service is not None:
            self._service.stop()
            served = self._service.served()
        report = ScriptReport(script=self.script, seconds=end.seconds)
        self.document = lambda: _document(report, folder=str(self.folder), served=served)
        if self._artifacts and not served:
            say(f"togi: no artifact of {self.folder} was used: the originals served every call")
        for one in served:
            calls = one.engine_calls + one.original_calls
            why = f", the others by the original: {one.last_reason}" if one.original_calls and one.last_reason else ""
            say(f"togi: {one.module}: {one.engine_calls} of {plural(calls, 'call')} served by {one.recipe}{why}")


def _document(report: ScriptReport, **about: Any) -> dict[str, Any]:
    from togi.render.json import script_json  # it takes long to import

    return script_json(report, **about)


def divided(taken_s: Sequence[float], limit_s: float) -> list[float]:
    """The time for each module, by its share of the time that it took; the longest come first. The last get none if
    that would be less than ``LEAST_S``."""
    for count in range(len(taken_s), 1, -1):
        limits = [limit_s * part / sum(taken_s[:count]) for part in taken_s[:count]]
        if min(limits) >= LEAST_S:
            return limits
    return [limit_s] * min(1, len(taken_s))


def _figures(best: Best, seconds: float) -> dict[str, Any]:
    """What was chosen, and what it brings to a run that spends ``seconds`` in the module."""
    timing = best.trial.timing
    if timing is None:
        return {"recipe": best.recipe.label}
    return {
        "recipe": best.recipe.label,
        "speedup_x": timing.speedup_x,
        "saved_s": seconds * (1 - 1 / timing.speedup_x.median),
        "loading_s": None if timing.start_ms is None else timing.start_ms / 1e3,
    }


def _why_not(result: StudyResult) -> str:
    from togi.core.records import Outcome
    from togi.study.conclusion import unsaved

    if result.record.best is not None and not result.best.recipe.is_reference:
        return unsaved(result.best.trial)
    if _compared(result):
        return _NOTHING_FASTER
    passed = (Outcome.OK, Outcome.REFUSED, Outcome.MISSING)
    tried = (trial for trial in result.record.trials if not trial.recipe.is_reference)
    failed = [trial for trial in tried if trial.outcome not in passed]
    return f"nothing could be compared: {first_line(failed[-1].reason)}" if failed else _NO_TIME


def _compared(result: StudyResult) -> bool:
    """Whether anything but the original, under ``no_grad`` or as it is called, was measured."""
    others = (trial for trial in result.record.trials if trial.recipe.choices and not trial.recipe.is_reference)
    return any(trial.timing is not None for trial in others)


def _is_decided(result: StudyResult) -> bool:
    """Whether a study without an artifact of something faster came to its end."""
    if result.record.best is None or result.best.recipe.is_reference:
        return _compared(result)
    trial = result.best.trial  # faster; if it has no file form, that is its reason
    return trial.timing is not None and bool(trial.reason)


def _lies_in_the_module(error: Exception) -> bool:
    """Whether the module is why it cannot be tuned, and will be again."""
    from togi.study.failures import SubjectNotRun

    of_this_machine = isinstance(error, SubjectNotRun) or isinstance(error.__cause__, OSError | MemoryError)
    return isinstance(error, SubjectError) and not of_this_machine


def _undecided(watched: WatchedModule, share: float, why_not: str) -> TunedModule:
    from togi.script.records import TunedModule

    return TunedModule(identity=watched.identity(), share=share, why_not=why_not, decided=False)


def _worth_writing(tuned: Sequence[TunedModule]) -> bool:
    return any(one.decided for one in tuned)


def _show_report(report: ScriptReport) -> None:
    from togi.render.script_text import report_text

    say(report_text(report))


def _show_tuned(tuned: Sequence[TunedModule], folder: Path | None, script: str) -> None:
    from togi.cli.output import print_text, stderr
    from togi.render.script_text import tuned_text

    print_text(stderr(), tuned_text(tuned, None if folder is None else str(folder), script))
