"""``togi tune``: try, prove, choose, save."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from togi.cli.options import Journal, Json, with_options, with_permits
from togi.cli.output import say, tell
from togi.core.errors import TogiError
from togi.core.settings import OPTIONS

if TYPE_CHECKING:
    from togi.study.result import StudyResult


@with_permits
@with_options(OPTIONS)
def tune(
    subject: Annotated[
        str,
        typer.Argument(metavar="SUBJECT", help="file.py:factory, package.module:factory, timm:NAME, model.pt2, ..."),
    ],
    out: Annotated[Path | None, typer.Option("--out", metavar="NAME.togi", help="Save the chosen recipe here.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there already.")] = False,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write an HTML report.")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every recipe and every reason, not one screen.")
    ] = False,
    *,
    journal: Journal = None,
    json: Json = False,
    **settings: Any,
) -> int:
    """Find the fastest faithful way to run SUBJECT on this machine, prove it, save it.

    Exit code 1 when nothing could be chosen, not even the original, or when --out was not written.
    """
    from togi.cli.output import check_report_path

    if report is not None:
        check_report_path(report, force)
    result = _study(subject, out=out, force=force, journal=journal, **settings)
    _show(result, out=out, report=report, json=json, verbose=verbose)
    return 0 if result.record.best is not None and (out is None or result.artifact is not None) else 1


def _study(subject: str, **given: Any) -> StudyResult:
    from togi import api
    from togi.render.progress import watch

    with watch(subject) as progress, _ended_as_interrupted():
        try:
            return api.tune(subject, progress=progress, **given)
        except KeyboardInterrupt:
            raise _interrupted(progress.state.ended) from None


@contextmanager
def _ended_as_interrupted() -> Iterator[None]:
    """SIGTERM, with which a scheduler or a container ends a process, is taken as Ctrl-C: all is closed, and a line says
    how to go on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Interrupted(TogiError):
    """The user pressed Ctrl-C; the message says what was kept and how to go on."""

    exit_code = 130


def _interrupted(finished: int) -> Interrupted:
    again = f"togi {shlex.join(sys.argv[1:])}"
    if finished == 0:
        return Interrupted(f"interrupted before the first trial ended; nothing is lost. Start again with: {again}")
    return Interrupted(
        f"interrupted. {finished} finished trial{'s are' if finished > 1 else ' is'} kept in the journal. "
        f"The same command goes on from there: {again}"
    )


def _show(result: StudyResult, *, out: Path | None, report: Path | None, json: bool, verbose: bool) -> None:
    from togi.cli.output import print_json, print_text, stdout, write_report
    from togi.render.json import study_json
    from togi.render.study_screen import study_screen
    from togi.render.study_text import study_text
    from togi.study.conclusion import unsaved

    study = result.record
    saved = out if result.artifact is not None else None  # what else lies there is an earlier study's
    if json:
        print_json(study_json(study))
    else:
        console = stdout()
        artifact = str(saved) if saved is not None else None
        shown = study_text if verbose else study_screen
        print_text(console, shown(study, width=console.width, artifact=artifact))
    say_where = say if json else tell
    if saved is not None:
        say_where(f"artifact: {saved}")
    if report is not None:  # last: what else there is has been said where it cannot be written
        write_report(study, report)
        say_where(f"report: {report}")
    if out is not None and saved is None:
        nothing = "nothing was chosen (the verdict says why)"
        why = nothing if study.best is None else unsaved(result.best.trial)
        there = " What lies there is of an earlier study." if out.exists() else ""
        say(f"{out} was not written: {why.rstrip('.')}.{there}")
