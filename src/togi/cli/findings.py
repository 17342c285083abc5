"""Shows what ``togi check`` found: on standard output or in a file, in the form that was asked for."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import assert_never

from togi.cli.output import for_readers, say
from togi.core.backports import StrEnum
from togi.core.printable import encodable

if TYPE_CHECKING:
    from togi.lint.finding import CheckResult
    from togi.lint.fix import FixResult
    from togi.render.findings.lines import Line

_PIPE_WIDTH = 120
"""Columns where there is no terminal and COLUMNS is not set."""
_TABLE_WIDTH = 200
"""Numbers broken over lines cannot be read: a narrow terminal wraps whole lines instead."""


class Form(StrEnum):
    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


def show_findings(result: CheckResult, form: Form, statistics: bool, file: Path | None) -> None:
    match form:
        case Form.JSON:
            from togi.render.json import dumps, findings_json

            _write(dumps(findings_json(result)), file)
        case Form.SARIF:
            from togi.render.findings.sarif import sarif
            from togi.render.json import dumps

            _write(dumps(sarif(result)), file)
        case Form.GITHUB:
            from togi.render.findings.github import workflow_commands

            _write("".join(f"{line}\n" for line in workflow_commands(result)), file)
        case Form.TEXT | Form.CONCISE:
            _show_text(result, form, statistics, file)
        case _:
            assert_never(form)


def show_diff(fixed: FixResult, file: Path | None) -> None:
    """The diff where results go; what is left, on standard error."""
    from togi.render.findings.lines import exact_text, plain
    from togi.render.findings.text import diff, summary

    if file is not None or not _coloured():
        _write(exact_text(diff(fixed.changes)), file)
    else:
        _write_lines(diff(fixed.changes), file)
    say(plain(summary(fixed.result)))
    for problem in fixed.result.problems:
        say(f"{problem.path}: {problem.message}")


def _show_text(result: CheckResult, form: Form, statistics: bool, file: Path | None) -> None:
    from togi.render.findings import text

    if statistics:
        _write_lines(text.statistics(result), file)
        return
    width = shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns
    _write_lines(text.full(result, width) if form is Form.TEXT else text.concise(result), file)
    if result.tables:
        _show_tables(result, file)


def _show_tables(result: CheckResult, file: Path | None) -> None:
    """Show below the findings what module and trace rules report besides them."""
    from togi.cli.output import print_text
    from togi.render.findings.text import tables
    from togi.render.terminal import SafeConsole

    if file is None:
        print_text(SafeConsole(width=_TABLE_WIDTH), tables(result))
        return
    with file.open("a", encoding="utf-8", errors="replace") as opened:
        print_text(SafeConsole(width=_TABLE_WIDTH, file=opened, color_system=None), tables(result))


def _write_lines(lines: Iterator[Line], file: Path | None) -> None:
    from togi.render.findings.lines import plain_text, print_lines

    if file is not None or not _coloured():
        _write(plain_text(lines), file)
        return
    from togi.cli.output import stdout

    print_lines(stdout(), lines)


def _coloured() -> bool:
    """Decide as rich does, without importing it where the answer is no: https://no-color.org, FORCE_COLOR."""
    if os.environ.get("NO_COLOR"):
        return False
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


def _write(text: str, file: Path | None) -> None:
    """Findings may quote what the terminal's encoding cannot say; lone surrogates come from file names."""
    if file is not None:
        file.write_bytes(text.encode("utf-8", errors="replace"))
        return
    with for_readers(sys.stdout):
        sys.stdout.write(encodable(text, sys.stdout))
