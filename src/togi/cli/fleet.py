"""``togi fleet``: which machine, with which recipe, at what cost?"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Annotated

import typer

from togi.cli.options import (
    Allow,
    Device,
    Json,
    MaxDrop,
    MaxError,
    MaxMemory,
    Only,
    Seed,
    StudyEffort,
    StudyLimit,
    Without,
)
from togi.cli.output import say
from togi.core.choices import Effort
from togi.core.needs_torch import need_torch


def fleet(
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="As for tune; its files are shipped to each machine.")
    ],
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="ADDRESS|local", help="A cluster of Ray: HOST:PORT or auto.")
    ],
    prices: Annotated[Path, typer.Option("--prices", metavar="FILE.toml", help="Price per hour of each kind.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Keeps each finished study with its artifact.")
    ] = Path("togi-fleet"),
    force: Annotated[bool, typer.Option("--force", help="Begin anew where it holds other studies.")] = False,
    effort: StudyEffort = Effort.NORMAL,
    time_limit: StudyLimit = None,
    max_memory: MaxMemory = None,
    max_error: MaxError = None,
    max_drop: MaxDrop = None,
    allow: Allow = None,
    only: Only = None,
    without: Without = None,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """Tune SUBJECT on each kind of machine of a Ray cluster: which one is cheapest, which fastest, with which recipe?

    The same command goes on after an interruption. Exit code 1 when a kind has no answer.
    """
    need_torch("fleet")
    from togi.cli.output import print_json, print_text, stdout
    from togi.fleet.cluster import connect
    from togi.fleet.run import run_fleet
    from togi.render.fleet_text import fleet_text
    from togi.render.json import fleet_json

    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        say("RAY_AUTH_MODE is set: whoever reaches a port of this cluster can run programs on it")
    given = {
        "--effort": effort.value,
        "--time-limit": time_limit,
        "--max-memory": max_memory,
        "--max-error": max_error,
        "--max-drop": max_drop,
        "--device": device,
        "--seed": seed,
    }
    lists = {"--allow": allow, "--only": only, "--without": without}
    options = [f"{option}={value}" for option, value in given.items() if value is not None]
    options += [f"{option}={value}" for option, values in lists.items() for value in values or ()]
    found = run_fleet(
        subject,
        prices,
        options,
        connect=functools.partial(connect, cluster),
        out=out,
        force=force,
        say=say,
    )
    if json:
        print_json(fleet_json(found))
    else:
        print_text(stdout(), fleet_text(found))
    return 0 if all(kind.state == "ok" for kind in found.kinds) else 1
