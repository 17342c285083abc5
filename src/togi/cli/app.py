"""The ``togi`` program: collects the commands, turns errors into messages and exit codes. Only ``main`` does that.

Exit codes: 0 done; 1 nothing found or something missing (each command says when); 2 wrong usage, or a subject, file or
journal that cannot be used; 3 a defect of togi; 130 interrupted.
"""

from __future__ import annotations

import errno
import itertools
import os
import shlex
import sys
import traceback
from collections.abc import Sequence

from togi.cli.output import DEBUG, for_readers
from togi.core.errors import TogiError
from togi.core.needs_torch import need_torch
from togi.core.printable import printable

USAGE_ERROR = 2
DEFECT = 3
INTERRUPTED = 130
COMMANDS = tuple(
    "tune precision run check memory fit bench verify sign export fleet explain doctor report clean demo".split()
)
"""In the order of the help. Each is a function of its own name in a module of that name."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(command_line))


def run(given: Sequence[str]) -> int:
    """Run the command line; the exit code. Every error ends as a message on standard error."""
    own, others = _own_arguments(given)
    debug = DEBUG in own
    try:
        # Taken out here, because errors of the parser are shown too, and because it may stand behind the command.
        own = [argument for argument in own if argument != DEBUG]
        _check_options(own)
        code = _called(own, others)
        with for_readers(sys.stdout) as written:
            written.flush()
        return code
    except KeyboardInterrupt:
        return _fail(f"Interrupted: togi {shlex.join(given)}", INTERRUPTED, debug)
    except TogiError as error:
        return _fail(str(error), error.exit_code, debug)
    except OSError as error:
        return _fail(_file_problem(error), USAGE_ERROR, debug)
    except ModuleNotFoundError as error:
        return _module_missing(error, debug)
    except Exception as error:
        return _defect(error, debug)


def _called(own: Sequence[str], others: Sequence[str]) -> int:
    """Run the command; its exit code. ``others``: what follows the script of ``togi run``."""
    if own[:1] == ["run"]:
        from togi.cli.script_command import plainly_given, run_script

        if (given := plainly_given(own[1:])) is not None:
            return run_script(**given, arguments=others)
    from togi.cli.program import called

    # reading the options of a command takes longer than checking a file: those of the others are left out
    return called(own[:1] if own[:1] and own[0] in COMMANDS else COMMANDS, [*own, *others])


def _own_arguments(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of togi, and those of a script that it runs."""
    command = next((number for number, argument in enumerate(given) if argument != DEBUG), len(given))
    if given[command : command + 1] != ["run"]:
        return list(given), []
    from togi.cli.script_command import own_arguments

    count = command + 1 + own_arguments(given[command + 1 :])
    return list(given[:count]), list(given[count:])


def _check_options(arguments: Sequence[str]) -> None:
    """Refuses an option that is also a file here. A shell's ``*`` and pre-commit pass names of files, and who sends a
    change chooses these. Raises TogiError."""
    for argument in itertools.takewhile(lambda argument: argument != "--", arguments):
        if argument.startswith("-") and argument.strip("-") and os.path.lexists(argument):
            raise TogiError(
                f"{argument} is an option, and also a file in this folder, so togi cannot know which of them is meant. "
                f"Nothing was done. For the file, write ./{argument}, or '--' before all paths"
            )


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        _print(traceback.format_exc())
        if trace := getattr(sys.exc_info()[1], "child_traceback", ""):
            _print(f"It was raised in a child process:\n{trace}")
    _print(f"togi: {message}")
    return code


def _defect(error: Exception, debug: bool) -> int:
    lines = (
        f"{type(error).__name__}: {error}\nThis is a defect of togi, not of your model. Run it again with --debug, and "
        "report what it prints where you got togi."
    )
    return _fail(lines, DEFECT, debug)


def _module_missing(error: ModuleNotFoundError, debug: bool) -> int:
    """Code that needs torch asks for it before it begins. What forgot to ask is reported here."""
    try:
        need_torch("this")
    except TogiError as missing:
        return _fail(str(missing), missing.exit_code, debug)
    return _defect(error, debug)


def _print(text: str) -> None:
    with for_readers(sys.stderr) as written:
        print(printable(text), file=written)


_MENDS = {
    "ENOSPC": "Free space",
    "EDQUOT": "Free space",
    "ENOMEM": "End what else takes memory",
    "EAGAIN": "End some of the processes that run here",
    "EMFILE": "Allow more open files (ulimit -n)",
    "ENFILE": "End some of the processes that run here",
}
"""By the name of an error of the system, which some systems lack."""


def _file_problem(error: OSError) -> str:
    where = f": {error.filename}" if error.filename else ""
    otherwise = "Create the folder, or name another place" if where else "Mend what causes that"
    mend = _MENDS.get(errno.errorcode.get(error.errno or 0, ""), otherwise)
    return (
        f"{error.strerror or error}{where}. {mend}, then run the same command again: the trials that a study has "
        "finished are in its journal."
    )
