"""``togi verify``: prove an artifact again, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from togi.cli.options import (
    DROP,
    SHARE,
    Device,
    ExitUndecided,
    Json,
    Junit,
    NoNative,
    Seed,
    TimeLimit,
    Trusted,
    with_permits,
    without_effect,
)


@with_permits
def verify(
    artifact: Annotated[Path, typer.Argument(metavar="NAME.togi", help="An artifact that togi tune wrote.")],
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            metavar="SUBJECT",
            help="The original, with its inputs. Default: what it was made of, if no program or --trusted.",
        ),
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            "--max-error",
            metavar="ERROR",
            parser=SHARE,
            help="For an approximate artifact; default: the bound that it was made with.",
        ),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option("--max-drop", metavar="DROP", parser=DROP, help="The same for one that was judged by a metric."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="FILE:function", help="The validation data of an artifact that was judged on some."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric", metavar="FILE:function", help="The metric of an artifact that was judged by such a function."
        ),
    ] = None,
    trusted: Trusted = None,
    no_native: NoNative = False,
    time_limit: TimeLimit = None,
    exit_undecided: ExitUndecided = 1,
    junit: Junit = None,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """Prove an artifact again on this machine: is it right, is it still faster, and by how much?

    Exit code 1 when it is not right, or not as fast as it must be; --exit-undecided when the figures do not decide.
    """
    from togi import api
    from togi.cli.output import junit_report, print_json, print_text, stdout
    from togi.decide.gate import exit_code
    from togi.render.json import verification_json
    from togi.render.progress import watch

    without_effect("verify", device=device != "cpu")
    name = str(artifact)
    with junit_report(junit, "togi verify", name, exit_undecided) as cases, watch(name) as progress:
        verification = api.verify(
            artifact,
            subject=subject,
            max_error=max_error,
            max_drop=max_drop,
            data=data,
            metric=metric,
            trusted=trusted,
            time_limit_s=time_limit,
            seed=seed,
            progress=progress,
            native=not no_native,
        )
        cases.append(verification.case)
    if json:
        print_json(verification_json(verification, exit_undecided))
    else:
        from togi.render.comparison_text import verification_text

        print_text(stdout(), verification_text(verification))
    return exit_code(cases, exit_undecided)
