"""Rewrites files: for ``--fix``, ``--add-ignores``, and ``--diff``, which writes nothing.

Fixes are applied round after round until nothing is left to do. A file is replaced as a whole or not at all. It stays
untouched, with a problem that says why, when the result could not be parsed, could not be written in the file's own
encoding, or did not settle.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from togi.core.plain_files import read_plain
from togi.lint.check_paths import check_paths, checked, largest, unsaved
from togi.lint.files import CheckedFile, discover, leads_out
from togi.lint.finding import CheckResult, Edit, Finding, Fix, Problem
from togi.lint.notebooks import SUFFIX, read_notebook, write_cells
from togi.lint.selection import select
from togi.lint.settings import Overrides
from togi.lint.source_text import decode_exactly, encode, syntax_error, unify_line_ends

MAX_ROUNDS = 20
_LINE_END = re.compile(r"\r\n|\r|\n")
Span = tuple[int, int]
Proposal = Callable[[str, Sequence[Finding]], Iterable[Fix]]
"""The fixes for the findings in a text (a file's, or that of one notebook cell)."""


@dataclass(frozen=True)
class FileChange:
    """One file before and after; ``count`` fixes were applied."""

    file: CheckedFile
    before: bytes
    after: bytes
    count: int


@dataclass(frozen=True)
class FixResult:
    """The findings, and the files that were changed for them."""

    result: CheckResult
    """What is left; with ``dry``, what there is."""
    changes: tuple[FileChange, ...]


class UnfixableError(Exception):
    """The file stays as it is; the message says why."""


def fix_paths(
    paths: Sequence[str | Path],
    settings: Overrides | None = None,
    *,
    unsafe: bool = False,
    dry: bool = False,
    cache: bool = True,
) -> FixResult:
    """Apply fixes to files (``dry``: to none of them). Files that cannot be fixed stay as they are, with a problem."""

    return rewrite_paths(paths, settings, _proposal(unsafe), "fixed", dry=dry, cache=cache)


def fixed_text(text: str, path: Path, settings: Overrides) -> str:
    """The text of a file that may not be saved yet after its safe fixes. Raises UnfixableError."""
    data = encode(text)
    if decode_exactly(data).text != text:
        raise UnfixableError("it holds characters that the encoding which it declares lacks")
    after, _ = _rounds(unsaved(str(path), settings), data, _proposal(unsafe=False))
    return decode_exactly(after).text


def _proposal(unsafe: bool) -> Proposal:
    """The fixes of the findings; ``unsafe``: also those that may change results."""

    def proposed(_: str, findings: Sequence[Finding]) -> Iterable[Fix]:
        return (finding.fix for finding in findings if finding.fix is not None and (finding.fix.safe or unsafe))

    return proposed


def rewrite_paths(
    paths: Sequence[str | Path],
    settings: Overrides | None,
    propose: Proposal,
    counter: str,
    *,
    dry: bool = False,
    cache: bool = True,
) -> FixResult:
    """Rewrite files by what ``propose`` says of their findings; ``counter`` is the field of the result that counts."""
    overrides = settings or Overrides()
    before = check_paths(paths, overrides, cache=cache)
    reported = {finding.place.path for finding in before.findings if finding.place is not None}
    files = [file for file in discover([Path(path) for path in paths], overrides).files if file.shown in reported]
    answers = [rewrite(file, propose) for file in files]
    changes = [answer for answer in answers if isinstance(answer, FileChange)]
    problems = [answer for answer in answers if isinstance(answer, Problem)]
    if dry:
        return FixResult(_with(before, problems), tuple(changes))
    outcomes = [(change, write(change)) for change in changes]
    problems += [problem for _, problem in outcomes if problem is not None]
    done = [change for change, problem in outcomes if problem is None]
    after = check_paths(paths, overrides, cache=cache) if done else before
    return FixResult(_with(after, problems, **{counter: sum(change.count for change in done)}), tuple(done))


def _with(result: CheckResult, problems: Sequence[Problem], **counted: int) -> CheckResult:
    return result.model_copy(update={"problems": (*result.problems, *problems), **counted})


def rewrite(file: CheckedFile, propose: Proposal) -> FileChange | Problem | None:
    """Applies the fixes that ``propose`` gives to ``file``, without writing it; None when nothing changes."""
    try:
        before = read_plain(file.path, largest(file))
        after, count = _rounds(file, before, propose)
    except (UnfixableError, OSError) as error:
        return Problem(path=file.shown, message=f"stays as it is: {error}")
    return FileChange(file, before, after, count) if count else None


def write(change: FileChange) -> Problem | None:
    """Replace the file in one step; its mode stays, and a symbolic link stays one."""
    path = Path(os.path.realpath(change.file.path))
    try:
        if leads_out(change.file.path):
            raise UnfixableError(f"a link leads out of this repository to it. To rewrite it, name {path}")
        if read_plain(path, len(change.before) + 1) != change.before:
            raise UnfixableError("it was changed by somebody else meanwhile. Run the same command again")
        if not os.access(path, os.W_OK):
            raise UnfixableError("it is write-protected")
        _replace(path, change.after)
    except (UnfixableError, OSError) as error:
        return Problem(path=change.file.shown, message=f"stays as it is: {error}")
    return None


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        shutil.copymode(path, name)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _rounds(file: CheckedFile, data: bytes, propose: Proposal) -> tuple[bytes, int]:
    total = 0
    for _ in range(MAX_ROUNDS):
        report = checked(file, data)
        findings = select(report, file.path, file.shown, file.settings).findings
        data, count = _rewritten(data, findings, propose, notebook=file.shown.endswith(SUFFIX))
        if not count:
            return data, total
        total += count
    raise UnfixableError(f"its fixes did not settle after {MAX_ROUNDS} rounds, which is a defect of a rule")


def _rewritten(data: bytes, findings: Sequence[Finding], propose: Proposal, *, notebook: bool) -> tuple[bytes, int]:
    if not findings:
        return data, 0
    exact = decode_exactly(data)
    text, count = (_in_cells if notebook else _in_text)(exact.text, findings, propose)
    try:
        return text.encode(exact.encoding), count
    except UnicodeEncodeError as error:
        raise UnfixableError(f"the result cannot be written as {exact.encoding} ({error.reason})") from None


def _in_text(text: str, findings: Sequence[Finding], propose: Proposal) -> tuple[str, int]:
    fixes = list(propose(text, findings))
    new, count = apply_fixes(text, fixes)
    error = syntax_error(unify_line_ends(new)) if count else None
    if error is not None:
        titles = ", ".join(sorted({fix.title for fix in fixes}))
        raise UnfixableError(f"the result could not be parsed ({error}) after: {titles}. That is a defect of a rule")
    return new, count


def _in_cells(text: str, findings: Sequence[Finding], propose: Proposal) -> tuple[str, int]:
    total = 0
    changed: dict[int, str] = {}
    by_cell: dict[int | None, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_cell[finding.place.cell if finding.place is not None else None].append(finding)
    for cell in read_notebook(text).cells:
        new, count = apply_fixes(cell.code, propose(cell.code, by_cell[cell.number]))
        if count:
            changed[cell.number] = new
            total += count
    result = write_cells(text, changed)
    broken = [cell.number for cell in read_notebook(result).cells if cell.error and cell.number in changed]
    if broken:
        raise UnfixableError(f"cell {broken[0]} could not be parsed any more, which is a defect of a rule")
    return result, total


def apply_fixes(text: str, fixes: Iterable[Fix]) -> tuple[str, int]:
    """``text`` after those of ``fixes`` that fit, and how many did.

    A fix is applied with all its edits or not at all. Where two overlap, or insert at the same place, the one that
    starts first is applied; the next round sees what became of the other. ``text`` keeps its line ends, and inserted
    lines get them too.
    """
    lines = _Lines(text)
    taken: list[tuple[Span, str]] = []
    count = 0
    for spans in sorted(filter(None, (lines.spans(fix) for fix in fixes))):
        if not any(_clash(new, old) for new, _ in spans for old, _ in taken):
            taken += spans
            count += 1
    for (start, end), replacement in sorted(taken, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text, count


class _Lines:
    """The starts of lines in a text with any line ends."""

    def __init__(self, text: str) -> None:
        ends = [match.span() for match in _LINE_END.finditer(text)]
        self._starts = [0, *(end for _, end in ends)]
        self._stops = [*(start for start, _ in ends), len(text)]
        self._line_end = text[slice(*ends[0])] if ends else "\n"

    def spans(self, fix: Fix) -> list[tuple[Span, str]] | None:
        """The spans of a fix with their new text; None where it does not fit this text."""
        spans: list[tuple[Span, str]] = []
        for edit in fix.edits:
            span = self._span(edit)
            if span is None or any(_overlap(span, taken) for taken, _ in spans):
                return None
            spans.append((span, edit.text.replace("\r\n", "\n").replace("\n", self._line_end)))
        return sorted(spans) or None

    def _span(self, edit: Edit) -> Span | None:
        start, end = self._offset(edit.line, edit.column), self._offset(edit.end_line, edit.end_column)
        return (start, end) if start is not None and end is not None and start <= end else None

    def _offset(self, line: int, column: int) -> int | None:
        if not 1 <= line <= len(self._starts) or column < 1:
            return None
        offset = self._starts[line - 1] + column - 1
        return offset if offset <= self._stops[line - 1] else None


def _overlap(first: Span, second: Span) -> bool:
    """Compares edits of one fix: side by side is fine, two insertions at one place are not."""
    return first == second or (first[0] < second[1] and second[0] < first[1])


def _clash(first: Span, second: Span) -> bool:
    """Compares edits of two fixes: they may not even touch where one inserts, because their order would matter."""
    if first[0] == first[1] or second[0] == second[1]:
        return first[0] <= second[1] and second[0] <= first[1]
    return first[0] < second[1] and second[0] < first[1]
