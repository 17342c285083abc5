"""What ``togi run`` does, apart from the help of its options.

The parser of options takes longer to import than a short script can spare, as do records and tables. Nothing here
imports them before it needs them: a run that is only watched never does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from togi.cli.script_runs import FirstRun, LaterRun
from togi.core.errors import TogiError
from togi.core.needs_torch import need_torch
from togi.script.main_module import ScriptEnd, check_script, run_as_main

if TYPE_CHECKING:
    from togi.script.records import ScriptIndex

TIME_LIMIT_S = 60.0
SUFFIX = ".togi"
_FLAGS = {"--report": "report", "--again": "again", "--json": "json"}
_FOLDERS = {"--with": "using", "--out": "out"}


def plainly_given(arguments: Sequence[str]) -> dict[str, Any] | None:
    """The settings of ``run_script`` that togi's own arguments of ``togi run`` stand for. None where they need the
    parser: for help, for an option with a value that it reads, and for what it refuses."""
    given: dict[str, Any] = {}
    options = iter(arguments[:-1])
    for option in options:
        if option in _FLAGS:
            given[_FLAGS[option]] = True
        elif option in _FOLDERS and not (folder := next(options, "-")).startswith("-"):
            given[_FOLDERS[option]] = Path(folder)
        else:
            return None
    script = arguments[-1] if arguments else "-"
    return None if script.startswith("-") else {**given, "script": Path(script)}


def own_arguments(arguments: Sequence[str]) -> int:
    """How many of the arguments of ``togi run`` are togi's own: all up to the script. What follows is the script's,
    even ``--debug`` and ``--help``."""
    for number, argument in enumerate(arguments):
        if not argument.startswith("-") and (argument.endswith(".py") or os.path.isfile(argument)):
            return number + 1
    return len(arguments)


def run_script(
    script: Path,
    arguments: Sequence[str],
    *,
    report: bool = False,
    using: Path | None = None,
    out: Path | None = None,
    again: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
    json: bool = False,
    seed: int = 0,
) -> int:
    """Run the script, watched or with what was tuned; the exit code. The settings are those of the command."""
    need_torch("run")
    check_script(script)
    _check_options(report=report, using=using, out=out, again=again)
    folder = Path(os.path.abspath(using or out or f"{script}{SUFFIX}"))
    index = None if again or report else _index(folder, asked=using is not None)
    if index is not None and using is None and not index.settles:
        index = None  # the next try may end otherwise
    if index is None and not report:
        _check_replaceable(folder)
    work: FirstRun | LaterRun
    if index is not None:
        work = LaterRun(folder, index, str(script))
    else:
        work = FirstRun(None if report else folder, str(script), time_limit_s=time_limit_s, seed=seed)
    document = _for_the_document() if json else None

    def finish(end: ScriptEnd) -> int:
        work.finish(end)
        code = end.code or work.code
        if document is not None and work.document is not None:
            from togi.cli.output import print_json

            print_json({**work.document(), "exit_code": code}, document)
        return code

    work.begin()
    return run_as_main(script, arguments, finish)


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
    if not asked and not os.path.exists(folder):
        return None
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


def _check_replaceable(folder: Path) -> None:
    """Before the script runs: what is tuned can be written."""
    from togi.artifact.save import check_parent
    from togi.script.records import check_replaceable

    check_replaceable(folder)
    check_parent(folder)


def _for_the_document() -> TextIO:
    """With ``--json``, standard output is the document's alone. What the script prints goes to standard error from now
    on, also what it prints once Python ends."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return open(kept, "w", encoding="utf-8")
