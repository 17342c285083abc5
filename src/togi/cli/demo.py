"""``togi demo``: a first study of a small packaged model, in under a minute and with nothing but torch installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from togi.cli.options import DURATION, Device, Journal, Json, Seed
from togi.cli.output import say
from togi.cli.tune import tune
from togi.core.needs_torch import need_torch

SUBJECT = "togi.claims.formulas.models:branches"
TIME_LIMIT_S = 40.0
"""Leaves the rest of a minute to starting, and to a trial that has begun."""


def demo(
    report: Annotated[
        Path, typer.Option("--report", metavar="FILE.html", help="Where the HTML report is written.")
    ] = Path("togi-demo.html"),
    force: Annotated[bool, typer.Option("--force", help="Replace what is there already.")] = False,
    time_limit: Annotated[
        float | None,
        typer.Option("--time-limit", metavar="TIME", parser=DURATION, help="Stop after this long. Default: 40s."),
    ] = None,
    journal: Journal = None,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """Tune a small packaged model in under a minute: the table, and a report.

    It is measured like any other, so what comes out depends on this machine. Exit code as of tune.
    """
    need_torch("demo")
    say(
        "The model: RepVGG blocks as they are trained, with random weights. Merging their branches is what this family "
        "of models gains most from; others gain less, or elsewhere."
    )
    return tune(
        SUBJECT,
        report=report,
        force=force,
        time_limit_s=time_limit or TIME_LIMIT_S,
        journal=journal,
        json=json,
        device=device,
        seed=seed,
    )
