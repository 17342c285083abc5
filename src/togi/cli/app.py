"""The ``togi`` program: collects the commands, turns errors into messages and exit codes. Only ``main`` does that.

Exit codes: 0 done; 1 nothing found or something missing (each command says when); 2 wrong usage, or a subject, file or
journal that cannot be used; 3 a defect of togi; 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import io
import itertools
import os
import shlex
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import togi
from togi.cli.output import for_readers
from togi.core.errors import TogiError
from togi.core.needs_torch import need_torch
from togi.core.printable import printable

USAGE_ERROR = 2
DEFECT = 3
INTERRUPTED = 130
DEBUG = "--debug"
COMMANDS = tuple(
    "tune precision run check memory fit bench verify sign export fleet explain doctor report clean demo".split()
)
"""In the order of the help. Each is a function of its own name in a module of that name."""
_OTHERS_FOLLOW = {"run": {"allow_interspersed_args": False}}
"""Settings of commands whose last arguments are those of another program."""


def _without_type(parameters: list[Any]) -> list[Any]:
    """Flags take no value, so help must not show ``<bool>`` next to them."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_type(super().get_params(ctx))


class _CommandGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_type(super().get_params(ctx))


def app_of(commands: Iterable[str]) -> typer.Typer:
    """The program with these commands; only their modules are imported."""
    app = typer.Typer(
        name="togi",
        cls=_CommandGroup,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    for name in commands:
        app.command(cls=_Command, context_settings=_OTHERS_FOLLOW.get(name))(
            getattr(importlib.import_module(f"togi.cli.{name}"), name)
        )
    app.callback()(togi_command)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"togi {togi.__version__}")
        raise typer.Exit


def togi_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error; stands anywhere.")] = False,
) -> None:
    """Make PyTorch models faster and make them fit: try what is known to help, prove it, keep the best."""


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
        arguments = [*own, *others]
        # reading the options of a command takes longer than checking a file: those of the others are left out
        app = app_of(arguments[:1] if arguments[:1] and arguments[0] in COMMANDS else COMMANDS)
        code = app(args=arguments, prog_name="togi", standalone_mode=False)
        with for_readers(sys.stdout) as written:
            written.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return _fail(f"Interrupted: togi {shlex.join(given)}", INTERRUPTED, debug)
    except TogiError as error:
        return _fail(str(error), error.exit_code, debug)
    except OSError as error:
        return _fail(_file_problem(error), USAGE_ERROR, debug)
    except ModuleNotFoundError as error:
        return _module_missing(error, debug)
    except _ClickException as error:
        usage = io.StringIO()
        error.show(file=usage)
        _print(usage.getvalue().rstrip())
        return int(error.exit_code)
    except Exception as error:
        return _defect(error, debug)


def _own_arguments(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of togi, and those of a script that it runs."""
    command = next((number for number, argument in enumerate(given) if argument != DEBUG), len(given))
    if given[command : command + 1] != ["run"]:
        return list(given), []
    from togi.cli.run import own_arguments

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


# Typer carries its own copy of click in newer versions: the class is found through what typer itself exports.
_ClickException: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


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


def _file_problem(error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    full = errno.errorcode.get(error.errno or 0) in ("ENOSPC", "EDQUOT")  # the latter is not known everywhere
    mend = "Free space" if full else "Create the folder, or name another place"
    return (
        f"{error.strerror or error}:{where}. {mend}, then run the same command again: the trials that a study has "
        "finished are in its journal."
    )
