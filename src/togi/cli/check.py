"""``togi check``: pitfalls of performance and memory, in source, in a module, and in a run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, assert_never

import typer

from togi.cli.options import Json, Seed, complete_rule, names, without_effect

if TYPE_CHECKING:
    from togi.lint.fix_paths import FixResult
    from togi.lint.result import CheckResult
    from togi.lint.settings import Overrides
    from togi.lint.subject_options import SubjectOptions
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


def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH|SUBJECT]...",
            help="Files, folders, or subjects (file.py:factory, timm:NAME, ...). Default: the working folder.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select", metavar="RULE", help="Only these rules or kinds, or 'all'.", autocompletion=complete_rule
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="RULE", help="Leave these rules out.", autocompletion=complete_rule),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="PATTERN", help="Leave these files and folders out, as in .gitignore."),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Rewrite source where that is safe.")] = False,
    unsafe_fixes: Annotated[
        bool, typer.Option("--unsafe-fixes", help="With --fix or --diff: also what may change results.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what --fix would change; write nothing.")] = False,
    statistics: Annotated[bool, typer.Option("--statistics", help="Only how often each rule found something.")] = False,
    output_format: Annotated[Form, typer.Option("--output-format", help="How findings are shown.")] = Form.TEXT,
    output_file: Annotated[
        Path | None, typer.Option("--output-file", metavar="FILE", help="Write there instead of standard output.")
    ] = None,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit with 0 in spite of findings.")] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Check every file anew.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Of a subject: try what mends findings, and say what it brings.")
    ] = False,
    train: Annotated[bool, typer.Option("--train", help="Of a subject: its training step is meant.")] = False,
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="DTYPE", help="Of a subject: predict costs for bfloat16, ...")
    ] = None,
    json: Json = False,
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="cpu|cuda[:N]|NAME", help="Of a subject: where it runs, or a GPU to predict costs for."
        ),
    ] = "cpu",
    seed: Seed = 0,
) -> int:
    """Find pitfalls of performance and memory: like a linter on paths, with a look inside and one run on subjects.

    Exit code 1 when something was found, 2 when something could not be checked.
    """
    from togi.lint.check_any import sorted_out
    from togi.lint.settings import overrides

    form = Form.JSON if json else output_format
    given = overrides(names(select), names(ignore), names(exclude))
    paths, subjects = sorted_out(targets or ["."])
    options = _subject_options(subjects, device=device, dtype=dtype, measure=measure, train=train, seed=seed)
    cache = not no_cache
    checked = _check_paths(paths, given, fix=fix, unsafe=unsafe_fixes, diff=diff, cache=cache)
    result = checked.result
    for subject in subjects:
        from togi.lint.check_subject import check_subject

        result = result.joined(check_subject(subject, given, options, cache=cache))
    if diff:
        _show_diff(checked, output_file)
    else:
        _show(result, form, statistics, output_file)
    return 0 if exit_zero and result.exit_code == 1 else result.exit_code


def _subject_options(
    subjects: list[str], *, device: str, dtype: str | None, measure: bool, train: bool, seed: int
) -> SubjectOptions:
    from togi.lint.subject_options import SubjectOptions

    if not subjects:
        given = {"device": device != "cpu", "dtype": dtype, "measure": measure, "train": train}
        without_effect("check", **{f"{option} without a subject": value for option, value in given.items()})
    return SubjectOptions(device=device, dtype=dtype, measure=measure, train=train, seed=seed)


def _check_paths(paths: list[str], given: Overrides, *, fix: bool, unsafe: bool, diff: bool, cache: bool) -> FixResult:
    from togi.lint.check_source import check_paths
    from togi.lint.fix_paths import FixResult, fix_paths

    if fix or diff:
        return fix_paths(paths, given, unsafe=unsafe, dry=diff, cache=cache)
    without_effect("check", **{"unsafe-fixes without --fix": unsafe})
    return FixResult(check_paths(paths, given, cache=cache), ())


def _show(result: CheckResult, form: Form, statistics: bool, file: Path | None) -> None:
    match form:
        case Form.JSON:
            from togi.render.findings.json import findings_json
            from togi.render.json import dumps

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


def _show_text(result: CheckResult, form: Form, statistics: bool, file: Path | None) -> None:
    from togi.render.findings import text
    from togi.render.findings.statistics import statistics as counted

    width = shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns
    if statistics:
        _write_lines(counted(result), file)
        return
    _write_lines(text.full(result, width) if form is Form.TEXT else text.concise(result), file)
    if result.tables:
        _show_tables(result, file)


def _show_tables(result: CheckResult, file: Path | None) -> None:
    """What module and trace rules have to say beside their findings: below them."""
    from rich.console import Console

    from togi.cli.output import print_text
    from togi.render.findings.tables import tables

    if file is None:
        print_text(Console(highlight=False, width=_TABLE_WIDTH), tables(result))
        return
    with file.open("a", encoding="utf-8", errors="replace") as opened:
        print_text(Console(highlight=False, width=_TABLE_WIDTH, file=opened, color_system=None), tables(result))


def _show_diff(checked: FixResult, file: Path | None) -> None:
    from togi.render.findings.diff import diff
    from togi.render.findings.lines import exact_text, plain
    from togi.render.findings.text import summary

    if file is not None or not _coloured():
        _write(exact_text(diff(checked.mended)), file)
    else:
        _write_lines(diff(checked.mended), file)
    typer.echo(plain(summary(checked.result)), err=True)
    for problem in checked.result.problems:
        typer.echo(f"{problem.path}: {problem.message}", err=True)


def _write_lines(lines: Iterator[Line], file: Path | None) -> None:
    from togi.render.findings.lines import plain_text, print_lines

    if file is not None or not _coloured():
        _write(plain_text(lines), file)
        return
    from togi.cli.output import stdout

    print_lines(stdout(), lines)


def _coloured() -> bool:
    """As rich decides it, without importing rich where the answer is no: https://no-color.org, FORCE_COLOR."""
    if os.environ.get("NO_COLOR"):
        return False
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


def _write(text: str, file: Path | None) -> None:
    """Findings may quote what the terminal's encoding cannot say; lone surrogates come from file names."""
    if file is not None:
        file.write_bytes(text.encode("utf-8", errors="replace"))
        return
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
