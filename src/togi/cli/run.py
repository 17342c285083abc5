"""``togi run``: an unchanged script; what took its time; its modules tuned; and the script with what was tuned."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from togi.cli.options import DURATION, Device, Json, Seed, without_effect
from togi.core.errors import TogiError
from togi.core.needs_torch import need_torch

if TYPE_CHECKING:
    from togi.script.main_module import ScriptEnd
    from togi.script.records import ScriptIndex

TIME_LIMIT_S = 60.0
SUFFIX = ".togi"


def run(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", help="A Python file. Whatever follows are its own arguments.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(show_default=False)] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Show what takes the time of the script, and tune nothing.")
    ] = False,
    using: Annotated[
        Path | None,
        typer.Option("--with", metavar="FOLDER", help="Run it with what was tuned and written there."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where artifacts are kept. Default: SCRIPT.togi next to it."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Tune anew, and replace what the folder holds.")] = False,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="TIME",
            parser=DURATION,
            help="Tune for so long, all modules together: 90s, 5m. Divided by their share of the time.",
        ),
    ] = TIME_LIMIT_S,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """Run SCRIPT unchanged, then tune the modules that took its time; run it with them from then on.

    The first run finds the modules, tunes them on the calls that the script made, and writes one artifact for each into
    SCRIPT.togi. Later runs use these. The exit code is that of the script; 1 if it is 0 and what was tuned could not
    be written.
    """
    need_torch("run")
    without_effect("run", device=device != "cpu")  # each module is tuned for the one that it is on
    from togi.cli.script_runs import FirstRun, LaterRun
    from togi.script.main_module import check_script, run_as_main
    from togi.script.records import check_replaceable

    check_script(script)
    _check_options(report=report, using=using, out=out, again=again)
    folder = Path(os.path.abspath(using or out or f"{script}{SUFFIX}"))
    index = None if again or report else _index(folder, asked=using is not None)
    if index is not None and using is None and not index.settles:
        index = None  # the next try may end otherwise
    if index is None and not report:
        check_replaceable(folder)
        _check_parent(folder)
    work: FirstRun | LaterRun
    if index is not None:
        work = LaterRun(folder, index, str(script))
    else:
        work = FirstRun(None if report else folder, str(script), time_limit_s=time_limit, seed=seed)
    document = _for_the_document() if json else None

    def finish(end: ScriptEnd) -> int:
        work.finish(end)
        code = end.code or work.code
        if document is not None and work.document is not None:
            from togi.cli.output import print_json

            print_json({**work.document(), "exit_code": code}, document)
        return code

    work.begin()
    return run_as_main(script, arguments or (), finish)


def own_arguments(arguments: Sequence[str]) -> int:
    """How many of the arguments of ``togi run`` are togi's own: all up to the script. What follows is the script's,
    even ``--debug`` and ``--help``."""
    for number, argument in enumerate(arguments):
        if not argument.startswith("-") and (argument.endswith(".py") or os.path.isfile(argument)):
            return number + 1
    return len(arguments)


def _check_options(*, report: bool, using: Path | None, out: Path | None, again: bool) -> None:
    others = {"--report": report, "--out": out is not None, "--again": again}
    if using is not None and (given := [option for option, is_given in others.items() if is_given]):
        raise TogiError(
            f"--with runs the script with what was tuned earlier, and {given[0]} is for finding or tuning it: give one "
            "of them"
        )
    if report and again:
        raise TogiError("--report tunes nothing, and --again tunes anew: give one of them")


def _index(folder: Path, *, asked: bool) -> ScriptIndex | None:
    """What was tuned; None if nothing was yet. Raises TogiError for a folder that cannot be used."""
    from togi.core.caches import check_own
    from togi.script.records import is_script_folder, not_own, read_index

    if not asked and not is_script_folder(folder):
        return None
    if not asked:  # engines' files are programs: one that somebody else put there is not run unasked
        try:
            check_own(folder)
        except OSError as error:
            or_again = "" if not_own(folder) else ", or --again to replace it"
            raise TogiError(
                f"{error}, so it was not used: it may hold programs. Give '--with {folder}' if you trust it{or_again}"
            ) from None
    return read_index(folder)


def _check_parent(folder: Path) -> None:
    """Before the script runs: what is tuned can be written."""
    from togi.artifact.save import check_parent

    check_parent(folder)


def _for_the_document() -> TextIO:
    """With ``--json``, standard output is the document's alone. What the script prints goes to standard error from now
    on, also what it prints once Python ends."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return open(kept, "w", encoding="utf-8")
