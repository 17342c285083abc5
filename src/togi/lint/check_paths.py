"""``togi check PATH``: source rules over files, folders and standard input."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from togi.core.caches import cache_folder
from togi.core.plain_files import read_plain
from togi.lint.cache import Cache, cache_key
from togi.lint.check_file import at_path, check_bytes
from togi.lint.files import CheckedFile, discover
from togi.lint.finding import CheckResult, FileReport, Note, Problem
from togi.lint.notebooks import SUFFIX
from togi.lint.pool import FileRequest, Task, check_all
from togi.lint.selection import select, together
from togi.lint.settings import Overrides, SettingsFinder
from togi.lint.source.model import concerns_torch

CACHE_FILE = "check.sqlite"


def check_paths(paths: Sequence[str | Path], settings: Overrides | None = None, *, cache: bool = True) -> CheckResult:
    """Check files and folders; what cannot be checked is reported in ``problems`` and the rest goes on.

    Every file obeys the nearest pyproject.toml above it; ``settings`` come on top. Imports no torch, and executes
    nothing of what it reads.

    Raises SettingsError or UnknownNameError for settings that cannot be used; nothing was checked then.
    """
    discovery = discover([Path(path) for path in paths], settings or Overrides())
    store = Cache(cache_folder() / CACHE_FILE if cache else None)
    reports, cached = _reports(discovery.files, store)
    result = _result(reports, len(discovery.files), cached)
    notes = [*discovery.notes, *([Note(path=str(cache_folder()), message=store.problem)] if store.problem else [])]
    return result.model_copy(
        update={"problems": (*discovery.problems, *result.problems), "notes": (*result.notes, *notes)},
    )


def check_stdin(data: bytes, name: str, settings: Overrides | None = None) -> CheckResult:
    """Check source that came from standard input as if it were the file ``name`` (empty: a file in this folder).

    The name decides which pyproject.toml applies, ``per-file-ignores``, and whether it is a notebook; the file itself
    need not exist and is not read. Raises as ``check_paths`` does.
    """
    file = unsaved(name, settings or Overrides())
    return _result([(file, _refused(file, data) or checked(file, data))], 1, 0)


def unsaved(name: str, settings: Overrides) -> CheckedFile:
    """The file that a text would be if it were saved under ``name``. Raises SettingsError or UnknownNameError."""
    path = Path(os.path.abspath(name or "stdin.py"))
    return CheckedFile(path, name or "-", SettingsFinder(settings).of(path.parent))


def checked(file: CheckedFile, data: bytes) -> FileReport:
    """The findings in these bytes of a file, in this process."""
    return check_bytes(data, file.shown, file.settings.hot, judged=file.judged)


def _result(reports: Sequence[tuple[CheckedFile, FileReport]], files: int, cached: int) -> CheckResult:
    chosen = together(
        select(report, file.path, file.shown, file.settings)
        for file, report in reports
        if report.findings or report.ignores
    )
    problems = tuple(problem for _, report in reports for problem in report.problems)
    notes = (*(note for _, report in reports for note in report.notes), *chosen.notes)
    return chosen.model_copy(update={"problems": problems, "notes": notes, "files": files, "cached": cached})


@dataclass(frozen=True)
class _ReadFile:
    """A file that has to do with PyTorch."""

    file: CheckedFile
    data: bytes
    key: bytes


def _reports(files: Sequence[CheckedFile], store: Cache) -> tuple[list[tuple[CheckedFile, FileReport]], int]:
    """The report of each file, and how many of them were known."""
    done: list[tuple[CheckedFile, FileReport]] = []
    reads: list[_ReadFile] = []
    for file in files:
        read = _read(file)
        if isinstance(read, _ReadFile):
            reads.append(read)
        else:
            done.append((file, read))
    cached = store.read([read.key for read in reads])
    new = [read for read in reads if read.key not in cached]
    answers = check_all([Task(_request(read.file), read.data) for read in new])
    store.write({answer.key: answer.report for answer in answers if answer.key is not None})
    done += [(read.file, at_path(cached[read.key], read.file.shown)) for read in reads if read.key in cached]
    done += [(read.file, answer.report) for read, answer in zip(new, answers, strict=True)]
    return done, len(reads) - len(new)


def _request(file: CheckedFile) -> FileRequest:
    return FileRequest(str(file.path), file.shown, file.judged, file.settings.hot, largest(file))


def _read(file: CheckedFile) -> _ReadFile | FileReport:
    """The bytes; or a report at once, where it cannot be read or no rule could find anything in them."""
    try:
        data = read_plain(file.path, largest(file) + 1)
    except OSError as error:
        return _problem(file, f"cannot be read: {error.strerror or error}")
    return _refused(file, data) or _ReadFile(file, data, cache_key(file.judged, data, file.settings.hot))


def _refused(file: CheckedFile, data: bytes) -> FileReport | None:
    """The report of what is not looked at any closer: nothing could be found in it, or it is too large."""
    if not concerns_torch(data):
        return FileReport()
    if len(data) > largest(file):
        return _problem(
            file,
            f"is larger than {largest(file):,} bytes, so it was generated rather than written: exclude it, or raise "
            "max-file-bytes in [tool.togi.check] of pyproject.toml",
        )
    return None


def largest(file: CheckedFile) -> int:
    """The bytes that are read of a file. Notebooks hold pictures besides their code."""
    return file.settings.max_file_bytes * (10 if file.path.suffix == SUFFIX else 1)


def _problem(file: CheckedFile, message: str) -> FileReport:
    return FileReport(problems=(Problem(path=file.shown, message=message),))
