"""``togi fleet``: which machine, with which recipe, at what cost?"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from togi.cli.options import Json, with_options
from togi.cli.output import say
from togi.core.needs_torch import need_torch
from togi.core.settings import OPTIONS, Settings


@with_options(option for option in OPTIONS if option.per_call)
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
    *,
    json: Json = False,
    **settings: Any,
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
    from togi.techniques import all_techniques

    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        say("RAY_AUTH_MODE is set: whoever reaches a port of this cluster can run programs on it")
    answer = run_fleet(
        subject,
        prices,
        Settings.of(settings, techniques=all_techniques()).arguments(),
        connect=functools.partial(connect, cluster),
        out=out,
        force=force,
        say=say,
    )
    if json:
        print_json(fleet_json(answer))
    else:
        print_text(stdout(), fleet_text(answer))
    return 0 if all(kind.state == "ok" for kind in answer.kinds) else 1
