"""``--fix`` and ``--diff``: fixes applied to files, round after round until nothing is left to mend.

A file is replaced as a whole or not at all. It stays untouched, with a problem that says why, when the result could not
be parsed, could not be written in the file's own encoding, or did not settle.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from togi.lint.check_file import check_bytes
from togi.lint.decode import decode_exactly, unified
from togi.lint.files import CheckedFile
from togi.lint.finding import Finding, Fix
from togi.lint.fix import apply_fixes
from togi.lint.notebooks import SUFFIX, read_notebook, write_cells
from togi.lint.parsing import syntax_error
from togi.lint.result import Problem
from togi.lint.selection import select

MAX_ROUNDS = 20


@dataclass(frozen=True)
class Mended:
    """One file before and after; ``count`` fixes were applied."""

    file: CheckedFile
    before: bytes
    after: bytes
    count: int


class MendError(Exception):
    """The file stays as it is; the message says why."""


def mend(file: CheckedFile, *, unsafe: bool) -> Mended | Problem | None:
    """What fixes make of ``file``, without writing it. None when there is nothing to mend."""
    try:
        before = file.path.read_bytes()
        after, count = _rounds(file, before, unsafe)
    except (MendError, OSError) as error:
        return Problem(path=file.shown, message=f"was not fixed: {error}")
    return Mended(file, before, after, count) if count else None


def write(mended: Mended) -> Problem | None:
    """Replace the file in one step; its mode stays, and a symbolic link stays one."""
    path = Path(os.path.realpath(mended.file.path))
    try:
        if path.read_bytes() != mended.before:
            raise MendError("it was changed by somebody else meanwhile. Run the same command again")
        if not os.access(path, os.W_OK):
            raise MendError("it is write-protected")
        _replace(path, mended.after)
    except (MendError, OSError) as error:
        return Problem(path=mended.file.shown, message=f"was not fixed: {error}")
    return None


def _rounds(file: CheckedFile, data: bytes, unsafe: bool) -> tuple[bytes, int]:
    total = 0
    for _ in range(MAX_ROUNDS):
        report = check_bytes(data, file.shown, file.settings.hot)
        findings = select(report, file.path, file.shown, file.settings).findings
        fixable = [f for f in findings if f.fix is not None and (f.fix.safe or unsafe)]
        data, count = _apply(data, fixable, notebook=file.shown.endswith(SUFFIX))
        if not count:
            return data, total
        total += count
    raise MendError(f"its fixes did not settle after {MAX_ROUNDS} rounds, which is a defect of a rule")


def _apply(data: bytes, findings: Sequence[Finding], *, notebook: bool) -> tuple[bytes, int]:
    if not findings:
        return data, 0
    exact = decode_exactly(data)
    text, count = _in_cells(exact.text, findings) if notebook else _in_text(exact.text, _fixes(findings))
    try:
        return text.encode(exact.encoding), count
    except UnicodeEncodeError as error:
        raise MendError(f"the result cannot be written as {exact.encoding} ({error.reason})") from None


def _in_text(text: str, fixes: Sequence[Fix]) -> tuple[str, int]:
    new, count = apply_fixes(text, fixes)
    _check(new, fixes)
    return new, count


def _in_cells(text: str, findings: Sequence[Finding]) -> tuple[str, int]:
    total = 0
    changed: dict[int, str] = {}
    for cell in read_notebook(text).cells:
        inside = [finding for finding in findings if finding.place is not None and finding.place.cell == cell.number]
        new, count = apply_fixes(cell.code, _fixes(inside))
        if count:
            changed[cell.number] = new
            total += count
    result = write_cells(text, changed)
    broken = [cell.number for cell in read_notebook(result).cells if cell.error and cell.number in changed]
    if broken:
        raise MendError(f"cell {broken[0]} could not be parsed any more, which is a defect of a rule")
    return result, total


def _fixes(findings: Sequence[Finding]) -> list[Fix]:
    return [finding.fix for finding in findings if finding.fix is not None]


def _check(text: str, fixes: Sequence[Fix]) -> None:
    error = syntax_error(unified(text))
    if error is not None:
        titles = ", ".join(sorted({fix.title for fix in fixes}))
        raise MendError(f"the result could not be parsed ({error}) after: {titles}. That is a defect of a rule")


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
