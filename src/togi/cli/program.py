"""The commands as one program: their options, help, completion, and what the parser says of wrong usage."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import togi
from togi.cli.output import DEBUG, say

_OTHERS_FOLLOW = {"run": {"allow_interspersed_args": False}}
"""Settings of commands whose last arguments are those of another program."""


def called(commands: Iterable[str], arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; the exit code. What the parser refuses is shown."""
    try:
        code = app_of(commands)(args=list(arguments), prog_name="togi", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except _ClickException as error:
        usage = io.StringIO()
        error.show(file=usage)
        say(usage.getvalue().rstrip())
        return int(error.exit_code)
    return code if isinstance(code, int) else 0


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


# Typer carries its own copy of click in newer versions: the class is found through what typer itself exports.
_ClickException: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
