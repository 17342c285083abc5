"""``togi check PATH``: source rules over files and folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from togi.lint.cache import Cache, cache_folder, cache_key
from togi.lint.check_file import at_path, may_concern
from togi.lint.files import CheckedFile, discover
from togi.lint.pool import Task, check_all
from togi.lint.result import CheckResult, FileReport, Note, Problem, in_order
from togi.lint.selection import Selected, select
from togi.lint.settings import Overrides

CACHE_FILE = "check.sqlite"


def check_paths(paths: Sequence[str | Path], settings: Overrides | None = None, *, cache: bool = True) -> CheckResult:
    """Check files and folders; what cannot be checked is reported in ``problems`` and the rest goes on.

    Every file obeys the nearest pyproject.toml above it; ``settings`` come on top. Imports no torch, and executes
    nothing of what it reads.

    Raises SettingsError or UnknownNameError for settings that cannot be used; nothing was checked then.
    """
    found = discover([Path(path) for path in paths], settings or Overrides())
    store = Cache(cache_folder() / CACHE_FILE if cache else None)
    reports, cached = _reports(found.files, store)
    chosen = [
        select(report, file.path, file.shown, file.settings) for file, report in reports if _says_anything(report)
    ]
    problems = [problem for _, report in reports for problem in report.problems]
    notes = [Note(path=str(cache_folder()), message=store.problem)] if store.problem else []
    return _result(chosen, [*found.problems, *problems], notes, len(found.files), cached)


def _result(
    chosen: Sequence[Selected], problems: Sequence[Problem], notes: list[Note], files: int, cached: int
) -> CheckResult:
    return CheckResult(
        findings=in_order([finding for one in chosen for finding in one.findings]),
        suppressed=in_order([finding for one in chosen for finding in one.suppressed]),
        problems=tuple(problems),
        notes=(*(note for one in chosen for note in one.notes), *notes),
        files=files,
        cached=cached,
    )


def _says_anything(report: FileReport) -> bool:
    return bool(report.findings or report.ignores)


@dataclass(frozen=True)
class _Read:
    """A file that some framework is mentioned in."""

    file: CheckedFile
    data: bytes
    key: bytes


def _reports(files: Sequence[CheckedFile], store: Cache) -> tuple[list[tuple[CheckedFile, FileReport]], int]:
    """The report of each file, and how many of them were known."""
    done: list[tuple[CheckedFile, FileReport]] = []
    reads: list[_Read] = []
    for file in files:
        read = _read(file)
        if isinstance(read, _Read):
            reads.append(read)
        else:
            done.append((file, read))
    known = store.read([read.key for read in reads])
    new = [read for read in reads if read.key not in known]
    answers = check_all([Task(str(r.file.path), r.file.shown, r.data, r.file.settings.hot) for r in new])
    store.write({answer.key: answer.report for answer in answers if answer.key is not None})
    done += [(read.file, at_path(known[read.key], read.file.shown)) for read in reads if read.key in known]
    done += [(read.file, answer.report) for read, answer in zip(new, answers, strict=True)]
    return done, len(reads) - len(new)


def _read(file: CheckedFile) -> _Read | FileReport:
    """The bytes; or a report at once, where they cannot be had or no rule could find anything in them."""
    try:
        with file.path.open("rb") as opened:
            data = opened.read(_limit(file) + 1)
    except OSError as error:
        return _refused(file, f"cannot be read: {error.strerror or error}")
    if not may_concern(data):
        return FileReport()
    if len(data) > _limit(file):
        return _refused(
            file,
            f"is larger than {_limit(file):,} bytes, so it was generated rather than written: exclude it, or raise "
            "max-file-bytes in [tool.togi.check] of pyproject.toml",
        )
    return _Read(file, data, cache_key(str(file.path), data, file.settings.hot))


def _limit(file: CheckedFile) -> int:
    """Notebooks hold pictures beside their code."""
    return file.settings.max_file_bytes * (10 if file.path.suffix == ".ipynb" else 1)


def _refused(file: CheckedFile, message: str) -> FileReport:
    return FileReport(problems=(Problem(path=file.shown, message=message),))
