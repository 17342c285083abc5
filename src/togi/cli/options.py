"""Options that commands share, so that they are called and explained the same everywhere."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from togi.cli.output import say
from togi.core.device import parse_device
from togi.core.errors import TogiError
from togi.core.options import Option
from togi.core.permits import Permit, permitting
from togi.core.quantities import parse_counts, parse_drop, parse_duration, parse_share, parse_size
from togi.core.settings import OPTIONS

Parsed = TypeVar("Parsed")


def argument(parse: Callable[[Any, str], Parsed]) -> Callable[[Any], Parsed]:
    """``parse`` for the command line, which names the option in its message: usage errors, exit code 2."""

    @functools.wraps(parse)
    def parsed(given: Any) -> Parsed:
        try:
            return parse(given, "")
        except TogiError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


SIZE = argument(parse_size)
DURATION = argument(parse_duration)
SHARE = argument(parse_share)
DROP = argument(parse_drop)
COUNTS = argument(parse_counts)


def complete_technique(incomplete: str) -> list[str]:
    from togi.techniques import all_techniques

    return [id for id in all_techniques() if id.startswith(incomplete)]


def complete_rule(incomplete: str) -> list[str]:
    from togi.lint.rule import rule_kinds

    return [id for id in rule_kinds() if id.startswith(incomplete.replace("_", "-"))]


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


@functools.cache
def shown(option: Option) -> Any:
    """A described option as typer shows and reads it."""
    if isinstance(option.default, bool):
        return typer.Option(option.flag, help=option.help)
    if isinstance(option.default, Enum):
        return typer.Option(option.flag, metavar=option.metavar, help=option.help)
    if option.repeated:
        return typer.Option(option.flag, metavar=option.metavar, help=option.help, autocompletion=complete_technique)
    return typer.Option(option.flag, metavar=option.metavar, parser=argument(option.parse), help=option.help)


def with_options(options: Iterable[Option]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """The command takes ``options`` too, in place of its ``**settings``; help shows them before what it takes by
    keyword alone."""
    added = []
    for option in options:
        default = None if option.repeated else option.default
        kind = (
            list[str] | None if option.repeated else type(default) if isinstance(default, Enum | bool) else str | None
        )
        annotation = Annotated[kind, shown(option)]  # type: ignore[valid-type]
        added.append(inspect.Parameter(option.name, _KEYWORD, default=default, annotation=annotation))

    def taking(command: Callable[..., int]) -> Callable[..., int]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        before = [p for p in own if p.kind is not _KEYWORD]
        parameters = [*before, *added, *own[len(before) :]]
        taken: Any = command
        taken.__signature__ = signature.replace(parameters=parameters)
        taken.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
        return command

    return taking


_PERMITS = {
    Permit.DOWNLOAD: "Fetch a model that is named and not here from where it is published.",
    Permit.REMOTE_CODE: "Run the code that comes with a model of the Hub, if nothing else can build it.",
    Permit.PICKLE: "Read pickled subjects (ultralytics, checkpoints with objects), which runs code in them.",
}
_LOUD = {
    Permit.REMOTE_CODE: "code that comes with a model is run in this command, and may do whatever you may",
    Permit.PICKLE: "pickled files of subjects are read in this command, and code in them may do whatever you may",
}


def with_permits(command: Callable[..., int]) -> Callable[..., int]:
    """The command takes a flag for each permit too, and has those that are given, as have the processes it starts."""
    names = {permit: permit.replace("-", "_") for permit in Permit}

    @functools.wraps(command)
    def permitted_command(*args: Any, **given: Any) -> int:
        permits = [permit for permit, name in names.items() if given.pop(name, False)]
        for permit in permits:
            if permit in _LOUD:
                say(f"togi: {permit.flag}: {_LOUD[permit]}")
        with permitting(permits):
            return command(*args, **given)

    signature = inspect.signature(command, eval_str=True)
    flags = [
        inspect.Parameter(
            name,
            _KEYWORD,
            default=False,
            annotation=Annotated[bool, typer.Option(permit.flag, help=_PERMITS[permit], rich_help_panel="Permits")],
        )
        for permit, name in names.items()
    ]
    parameters = [*signature.parameters.values(), *flags]
    taken: Any = permitted_command
    taken.__signature__ = signature.replace(parameters=parameters)
    taken.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
    return permitted_command


_NAMED = {option.name: option for option in OPTIONS}
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output (docs/commands.md).")]
Device = Annotated[str, shown(_NAMED["device"])]
Seed = Annotated[int, shown(_NAMED["seed"])]
AnyDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="cpu|cuda[:N]",
        parser=argument(parse_device),
        help="Where they run; default: the device that the artifacts were tuned for, else the CPU.",
    ),
]
Journal = Annotated[
    Path | None, typer.Option("--journal", metavar="FILE", help="The journal of studies; default: one per user.")
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        metavar="TIME",
        parser=DURATION,
        help="Measure for so long: 90s, 5m. Default: 60s. All of it ends after 5 x that, 2 min at least.",
    ),
]
Junit = Annotated[
    Path | None,
    typer.Option("--junit", metavar="FILE.xml", help="Also write the result as JUnit XML, which CI hosts show."),
]
ExitUndecided = Annotated[
    int,
    typer.Option(
        "--exit-undecided",
        metavar="CODE",
        min=0,
        max=255,
        help="Exit with this code if the figures do not decide; 0 lets it pass.",
    ),
]
Trusted = Annotated[
    list[Path] | None,
    typer.Option(
        "--trusted",
        metavar="KEY.pub",
        help="Refuse what this public key has not signed (togi sign); may be repeated: one of them.",
    ),
]
NoNative = Annotated[
    bool,
    typer.Option(
        "--no-native",
        help="Of artifacts, leave out engines whose files are programs (machine code, TorchScript, ncnn).",
    ),
]
Batch = Annotated[int | None, typer.Option("--batch", metavar="N", min=1, help="Replace the samples' batch size.")]
Dtype = Annotated[str | None, typer.Option("--dtype", metavar="bf16|fp16|fp32", help="Cast the model.")]
Optimizer = Annotated[
    str,
    typer.Option(
        "--optimizer", metavar="NAME", help="sgd, momentum, adam or adamw in place of the subject's own (none: that)."
    ),
]


def without_effect(command: str, **given: object) -> None:
    """Warn of settings that every command takes but that do nothing in this one."""
    for option, value in given.items():
        if value:
            say(f"togi {command}: --{option} has no effect here")
