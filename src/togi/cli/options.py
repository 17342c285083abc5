"""Options that commands share, so that they are called and explained the same everywhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from togi.cli.output import say
from togi.core.choices import Effort
from togi.core.device import parse_device
from togi.core.errors import QuantityError, UnknownNameError
from togi.core.quantities import parse_drop, parse_duration, parse_share, parse_size

Parsed = TypeVar("Parsed")


def argument(parse: Callable[[str | float], Parsed]) -> Callable[[str | float], Parsed]:
    """``parse`` for the command line, which names the option in its message: usage errors, exit code 2."""

    @functools.wraps(parse)
    def parsed(given: str | float) -> Parsed:
        try:
            return parse(given)
        except QuantityError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


SIZE = argument(parse_size)
DURATION = argument(parse_duration)
SHARE = argument(parse_share)
DROP = argument(parse_drop)


def _device(name: str | None) -> str | None:
    try:
        return None if name is None else parse_device(name)
    except UnknownNameError as error:
        raise typer.BadParameter(str(error)) from None


def complete_technique(incomplete: str) -> list[str]:
    from togi.techniques import all_techniques

    return [id for id in all_techniques() if id.startswith(incomplete)]


def complete_rule(incomplete: str) -> list[str]:
    from togi.lint.rule import rule_kinds

    return [id for id in rule_kinds() if id.startswith(incomplete.replace("_", "-"))]


Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output (docs/commands.md).")]
Device = Annotated[
    str, typer.Option("--device", metavar="cpu|cuda[:N]", callback=_device, help="Where the model runs.")
]
AnyDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="cpu|cuda[:N]",
        callback=_device,
        help="Where they run; default: the device that the artifacts were tuned for, else the CPU.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn by chance.")]
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
StudyLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        metavar="TIME",
        parser=DURATION,
        help="Stop after this long: 90s, 5m, 1h. Default: quick 30s and normal 5m after loading, thorough none.",
    ),
]
StudyEffort = Annotated[Effort, typer.Option("--effort", help="How much to try.")]
MaxMemory = Annotated[
    int | None,
    typer.Option("--max-memory", metavar="SIZE", parser=SIZE, help="Idle + peak of a call: 2GiB, 500MB."),
]
MaxError = Annotated[
    float | None,
    typer.Option(
        "--max-error",
        metavar="ERROR",
        parser=SHARE,
        help="Try approximate techniques (or those of --allow) up to this relative error: 1e-2, 1%.",
    ),
]
MaxDrop = Annotated[
    float | None,
    typer.Option("--max-drop", metavar="DROP", parser=DROP, help="The same up to this drop of the subject's metric."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="ID",
        help="Of what is approximate only this: an id, its beginning (int8), or 'approximate'. Or 'nan-differences'.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="ID", help="Try only these.", autocompletion=complete_technique),
]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="ID", help="Leave these out.", autocompletion=complete_technique),
]


def names(given: Iterable[str] | None) -> tuple[str, ...]:
    """``--allow a --allow b,c`` as one tuple without repeats."""
    parts = (part.strip() for item in given or () for part in item.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def without_effect(command: str, **given: object) -> None:
    """Warn of settings that every command takes but that do nothing in this one."""
    for option, value in given.items():
        if value:
            say(f"togi {command}: --{option} has no effect here")
