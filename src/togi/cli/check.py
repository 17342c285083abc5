"""``togi check``: pitfalls of performance and memory, in source, in a module, and in a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from togi.cli.findings import Form, show_diff, show_findings
from togi.cli.options import Json, Seed, complete_rule, with_permits, without_effect
from togi.core.errors import TogiError
from togi.core.needs_torch import need_torch
from togi.core.settings import names

if TYPE_CHECKING:
    from togi.lint.finding import CheckResult
    from togi.lint.fix import FixResult
    from togi.lint.settings import Overrides


STDIN = "-"
_CHANGES = "Changing files"
_OUTPUT = "Output"
_SUBJECTS = "Subjects only"


@with_permits
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
    server: Annotated[
        bool,
        typer.Option(
            "--server", help="Serve an editor (Language Server Protocol on standard input and output): [lsp]."
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
        typer.Option("--measure", help="Try what removes findings, and report its gain.", rich_help_panel=_SUBJECTS),
    ] = False,
    train: Annotated[
        bool,
        typer.Option("--train", help="Expect a training step: a note says if it has none.", rich_help_panel=_SUBJECTS),
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="DTYPE",
            help="Predict costs as if tensors had this type: bfloat16.",
            rich_help_panel=_SUBJECTS,
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="cpu|cuda[:N]|NAME",
            help="Where the subject runs, or a GPU to predict costs for: A100.",
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
    if server:
        return _serve(targets or subject, selection)
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
        show_diff(changed, output_file)
    else:
        show_findings(result, Form.JSON if json else output_format, statistics, output_file)
    return 0 if exit_zero and result.exit_code == 1 else result.exit_code


def _serve(named: list[str] | None, selection: Overrides) -> int:
    from togi.lint.server import serve

    if named:
        raise TogiError(
            f"--server checks what an editor opens, and {named[0]} was named: leave it out. --select, --ignore and "
            "--exclude apply to every file"
        )
    serve(selection)
    return 0


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
    from togi.lint.add_ignores import add_ignores as add

    return add(paths, selection, dry=dry, cache=cache)


def _check_stdin(name: str, selection: Overrides) -> CheckResult:
    from togi.lint.check_paths import check_stdin
    from togi.render.findings.lines import show_as

    data = sys.stdin.buffer.read()
    show_as(name or STDIN, data)
    return check_stdin(data, name, selection)
