"""``togi check SUBJECT``: module rules, and for a factory in a file also its source and one watched run.

Both run in children of their own (``togi.worker.call``): a subject that cannot be imported, crashes or hangs is a
problem in the result, and what else can be checked is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from togi.core.device import is_device
from togi.core.errors import TogiError, UnknownNameError
from togi.core.plain_files import read_plain
from togi.lint.calls import EXAMINE, WATCH, ModuleRequest, SubjectReport, TraceRequest
from togi.lint.check_paths import check_paths
from togi.lint.finding import CheckResult, FileReport, Finding, Ignore, Note, Problem
from togi.lint.roofline.devices import check_dtype, gpu
from togi.lint.rule import Kind
from togi.lint.selection import Selected, deduplicate, ignore_comments, select, selected_rules, together
from togi.lint.settings import CheckSettings, Overrides, SettingsFinder
from togi.lint.source_text import UndecodableError, decode
from togi.subject.locator import Spec, check_locator
from togi.worker.protocol import SubjectRef


@dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """Device, dtype and mode of a check. Raises UnknownNameError for an unknown one, before any child starts."""

    device: str = "cpu"
    """``cpu``, ``cuda[:N]``, or the name of a GPU that need not be here: costs are predicted for it."""
    dtype: str | None = None
    """Predict costs as if floating-point tensors were of this dtype."""
    measure: bool = False
    """Try the techniques that remove what was found, and say what they bring."""
    train: bool = False
    """The caller expects a training step: without one in the subject, a note says that a forward pass was watched."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_device(self.device):
            _check_gpu(self.device)
        if self.dtype is not None:
            check_dtype(self.dtype)

    @property
    def runs_on(self) -> str:
        """A GPU that is only named is not there: the run itself happens on the CPU."""
        return self.device if is_device(self.device) else "cpu"


def _check_gpu(name: str) -> None:
    try:
        gpu(name)
    except UnknownNameError as error:
        raise UnknownNameError(f"device: {error} To run on a device, give cpu, cuda or cuda:N.") from None


def check_subjects(
    result: CheckResult, subjects: Sequence[str], overrides: Overrides, options: SubjectOptions, *, cache: bool = True
) -> CheckResult:
    """``result`` joined with what is found in ``subjects``. Raises TogiError for what does not exist, and for settings
    that cannot be used."""
    for subject in subjects:
        result = result.joined(check_subject(subject, overrides, options, cache=cache))
    return result


def check_subject(spec: str, overrides: Overrides, options: SubjectOptions, *, cache: bool = True) -> CheckResult:
    """Check what a locator names. Raises TogiError when it names nothing, or for settings that cannot be used."""
    parsed = check_locator(spec)
    kinds: Sequence[Kind] = ("module", "trace") if parsed.form == "file" else ("module",)
    ref = SubjectRef.here("locator", spec)
    return check_reference(ref, spec, kinds, overrides, options, source=parsed, cache=cache)


def check_reference(
    ref: SubjectRef,
    name: str,
    kinds: Sequence[Kind],
    overrides: Overrides,
    options: SubjectOptions,
    *,
    source: Spec | None = None,
    cache: bool = True,
) -> CheckResult:
    """Module and trace rules on a subject; source rules too where ``source`` names a factory in a file."""
    finder = SettingsFinder(overrides)
    file = source.path.absolute() if source is not None and source.form == "file" else None
    settings = finder.of(file.parent if file is not None else Path.cwd())
    result = CheckResult()
    if file is not None and _rules("source", settings):
        result = check_paths([file], overrides, cache=cache)
    for kind in kinds:
        if rules := _rules(kind, settings):
            result = result.joined(_run(ref, name, kind, rules, options, settings))
    return deduplicate(result)


def _rules(kind: Kind, settings: CheckSettings) -> list[str]:
    """The selected rules of a kind; a kind of which none is selected does not run at all."""
    return sorted(selected_rules(settings.select, settings.ignore, kind))


def _run(
    ref: SubjectRef, name: str, kind: Kind, rules: list[str], options: SubjectOptions, settings: CheckSettings
) -> CheckResult:
    try:
        report = _report(ref, kind, tuple(rules), options)
    except TogiError as error:
        return CheckResult(problems=(Problem(path=name, message=str(error)),))
    chosen = together(_selected([finding for finding in report.findings if finding.rule in rules], settings))
    notes = tuple(Note(path=name, message=text) for text in report.notes)
    return chosen.model_copy(update={"tables": report.tables, "notes": notes})


def _report(ref: SubjectRef, kind: Kind, rules: tuple[str, ...], options: SubjectOptions) -> SubjectReport:
    if kind == "trace":
        watched = TraceRequest(device=options.runs_on, train=options.train, rules=rules)
        return WATCH(ref, watched, device=options.runs_on, seed=options.seed)
    examined = ModuleRequest(
        device=options.device, dtype=options.dtype, measure=options.measure, seed=options.seed, rules=rules
    )
    return EXAMINE(ref, examined, device=options.runs_on, seed=options.seed)


def _selected(findings: Sequence[Finding], settings: CheckSettings) -> Iterator[Selected]:
    """Comments in the user's source silence what was seen in a run, too."""
    by_file: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_file[finding.place.path if finding.place is not None else ""].append(finding)
    for path, in_file in by_file.items():
        report = FileReport(findings=tuple(in_file), ignores=_ignores(path))
        yield select(report, Path(path).absolute(), path, settings)


def _ignores(path: str) -> tuple[Ignore, ...]:
    if not path.endswith(".py"):
        return ()
    try:
        return ignore_comments(decode(read_plain(path, 2**30)).text)
    except (OSError, UndecodableError, SyntaxError):  # not there, or no Python: then nothing in it silences anything
        return ()
