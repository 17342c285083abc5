"""``togi run``: an unchanged script; what took its time; its modules tuned; and the script with what was tuned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from togi.cli.options import DURATION, Device, Json, Seed, without_effect
from togi.cli.script_command import TIME_LIMIT_S, run_script


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
    without_effect("run", device=device != "cpu")  # each module is tuned for the one that it is on
    return run_script(
        script,
        arguments or (),
        report=report,
        using=using,
        out=out,
        again=again,
        time_limit_s=time_limit,
        json=json,
        seed=seed,
    )
