"""``togi check``: pitfalls of performance and memory, in source, in a module, and in a run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typing_extensions import assert_never

from togi.cli.options import Json, Seed, complete_rule, without_effect
from togi.cli.output import say
from togi.core.backports import StrEnum
from togi.core.errors import TogiError
from togi.core.needs_torch import need_torch
from togi.core.settings import names

if TYPE_CHECKING:
    from togi.lint.finding import CheckResult
    from togi.lint.fix import FixResult
    from togi.lint.settings import Overrides
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


STDIN = "-"
_CHANGES = "Changing files"
_OUTPUT = "Output"
_SUBJECTS = "Subjects only"


def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH|SUBJECT",
            help="Files, folders, '-' for standard input, or subjects (file.py:factory, timm:NAME, ...). "
            "Default: the working folder.",
            show_default=False,
        ),
    ] = None,
    subject: Annotated[
        list[str] | None,
        typer.Option("--subject", metavar="SUBJECT", help="Also run and check this. Alone, no option is needed."),
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
    stdin_filename: Annotated[
        str | None,
        typer.Option("--stdin-filename", metavar="FILE", help="The name of what '-' reads: for settings and messages."),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Check every file again.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Rewrite source where that is safe.", rich_help_panel=_CHANGES)
    ] = False,
    unsafe_fixes: Annotated[
        bool,
        typer.Option(
            "--unsafe-fixes", help="With --fix or --diff: also what may change results.", rich_help_panel=_CHANGES
        ),
    ] = False,
    add_ignores: Annotated[
        bool,
        typer.Option(
            "--add-ignores", help="Add an ignore comment for everything that is found.", rich_help_panel=_CHANGES
        ),
    ] = False,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff", help="Show what --fix or --add-ignores would change; write nothing.", rich_help_panel=_CHANGES
        ),
    ] = False,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Only how often each rule found something.", rich_help_panel=_OUTPUT)
    ] = False,
    output_format: Annotated[
        Form,
        typer.Option(
            "--output-format", metavar="|".join(Form), help="How findings are shown.", rich_help_panel=_OUTPUT
        ),
    ] = Form.TEXT,
    output_file: Annotated[
        Path | None,
        typer.Option(
            "--output-file", metavar="FILE", help="Write there instead of standard output.", rich_help_panel=_OUTPUT
        ),
    ] = None,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit with 0 in spite of findings.", rich_help_panel=_OUTPUT)
    ] = False,
    json: Json = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Try what removes findings, and say what it brings.", rich_help_panel=_SUBJECTS),
    ] = False,
    train: Annotated[
        bool, typer.Option("--train", help="A note says so when it has no training step.", rich_help_panel=_SUBJECTS)
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="DTYPE", help="Predict costs for bfloat16, ...", rich_help_panel=_SUBJECTS),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="cpu|cuda[:N]|NAME",
            help="Where it runs, or a GPU to predict costs for.",
            rich_help_panel=_SUBJECTS,
        ),
    ] = "cpu",
    seed: Seed = 0,
) -> int:
    """Find pitfalls of performance and memory: like a linter on paths, with a look inside and one run on subjects.

    Exit code 1 when something was found, 2 when something could not be checked.
    """
    from togi.lint.check_paths import check_paths
    from togi.lint.settings import overrides

    selection = overrides(names(select or (), "select"), names(ignore or (), "ignore"), names(exclude or (), "exclude"))
    paths, subjects = _named(targets or ([] if subject else ["."]), subject or [])
    if subjects:
        need_torch(f"checking the subject {subjects[0]}")
        from togi.lint.check_subject import SubjectOptions, check_subjects

        options = SubjectOptions(device=device, dtype=dtype, measure=measure, train=train, seed=seed)
    else:
        for_subjects = {"device": device != "cpu", "dtype": dtype, "measure": measure, "train": train}
        without_effect("check", **{f"{option} without a subject": value for option, value in for_subjects.items()})
    without_effect("check", **{"unsafe-fixes without --fix": unsafe_fixes and not (fix or diff)})
    without_effect("check", **{"stdin-filename without '-'": stdin_filename if paths != [STDIN] else None})
    cache = not no_cache
    changed = None
    if fix or diff or add_ignores:
        changed = _change(
            paths, selection, fix=fix, unsafe=unsafe_fixes, add_ignores=add_ignores, dry=diff, cache=cache
        )
        result = changed.result
    elif paths == [STDIN]:
        result = _check_stdin(stdin_filename or "", selection)
    else:
        result = check_paths(paths, selection, cache=cache)
    if subjects:
        result = check_subjects(result, subjects, selection, options, cache=cache)
    if diff and changed is not None:
        _show_diff(changed, output_file)
    else:
        _show_findings(result, Form.JSON if json else output_format, statistics, output_file)
    return 0 if exit_zero and result.exit_code == 1 else result.exit_code


def _named(targets: list[str], subjects: list[str]) -> tuple[list[str], list[str]]:
    from togi.lint.targets import paths_and_subjects

    if targets == [STDIN]:
        return targets, subjects
    if STDIN in targets:
        raise TogiError(
            "'-' reads one file from standard input, so nothing can be named besides it. Nothing was checked"
        )
    return paths_and_subjects(targets, subjects)


def _change(
    paths: list[str], selection: Overrides, *, fix: bool, unsafe: bool, add_ignores: bool, dry: bool, cache: bool
) -> FixResult:
    from togi.lint.fix import fix_paths

    if paths == [STDIN]:
        raise TogiError("standard input cannot be rewritten: name the file instead of '-'. Nothing was changed")
    if not add_ignores:
        return fix_paths(paths, selection, unsafe=unsafe, dry=dry, cache=cache)
    if fix:
        raise TogiError(
            "--fix and --add-ignores cannot run at once: run --fix first, then --add-ignores for what is left. "
            "Nothing was changed"
        )
    from togi.lint.fix import add_ignores as add

    return add(paths, selection, dry=dry, cache=cache)


def _check_stdin(name: str, selection: Overrides) -> CheckResult:
    from togi.lint.check_paths import check_stdin
    from togi.render.findings.lines import show_as

    data = sys.stdin.buffer.read()
    show_as(name or STDIN, data)
    return check_stdin(data, name, selection)


def _show_findings(result: CheckResult, form: Form, statistics: bool, file: Path | None) -> None:
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


def _show_diff(fixed: FixResult, file: Path | None) -> None:
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
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
