"""``togi bench``: are these really different?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from togi.cli.options import (
    COUNTS,
    DURATION,
    SHARE,
    AnyDevice,
    ExitUndecided,
    Json,
    Junit,
    NoNative,
    Seed,
    TimeLimit,
    with_permits,
)
from togi.cli.output import say


@with_permits
def bench(
    subjects: Annotated[
        list[str],
        typer.Argument(metavar="A B ...", help="Subjects or .togi artifacts; the first is the one compared with."),
    ],
    callers: Annotated[
        int, typer.Option("--callers", metavar="N", min=1, help="How many call at once, in threads of one process.")
    ] = 1,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            "--batch-sizes",
            metavar="N,N,...",
            parser=COUNTS,
            help="Throughput by batch size: each is called with so many samples at once (1,2,4,8).",
        ),
    ] = None,
    max_latency: Annotated[
        float | None,
        typer.Option(
            "--max-latency",
            metavar="TIME",
            parser=DURATION,
            help="With --batch-sizes: the most that a call of the best size may take (50ms).",
        ),
    ] = None,
    different_inputs: Annotated[
        bool, typer.Option("--different-inputs", help="Compare subjects that take different inputs, too.")
    ] = False,
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="A,B",
            help="Race environments: each subject runs in each of these (old/bin/python,new/bin/python).",
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option("--train", help="Race training steps: subjects as they are, and records of 'togi tune --train'."),
    ] = False,
    time_limit: TimeLimit = None,
    fail_if_slower: Annotated[
        float | None,
        typer.Option(
            "--fail-if-slower",
            metavar="SHARE",
            parser=SHARE,
            help="Exit with 1 when one is slower than the first by more than this (5%).",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="FILE.json",
            help="With --fail-if-slower: slower than in this earlier 'togi bench --json'.",
        ),
    ] = None,
    no_native: NoNative = False,
    exit_undecided: ExitUndecided = 1,
    junit: Junit = None,
    json: Json = False,
    device: AnyDevice = None,
    seed: Seed = 0,
) -> int:
    """Compare subjects or artifacts in turns on the same inputs: which is faster, by how much, beyond doubt or not.

    Exit code 1 when one of them could not be measured (at no batch size within --max-latency), or is slower than
    --fail-if-slower allows; --exit-undecided when the figures do not decide the latter.
    """
    from togi import api
    from togi.cli.output import junit_report, print_json, print_text, stdout
    from togi.decide.gate import Answer, exit_code
    from togi.render.json import comparison_json
    from togi.render.progress import watch
    from togi.study.comparison import read_comparison
    from togi.study.slowdown import cases_of, other_conditions

    if against is not None and fail_if_slower is None:
        raise typer.BadParameter("--against names what to compare with; give --fail-if-slower too, such as 5%")
    if batch_sizes is not None and fail_if_slower is not None:
        raise typer.BadParameter("--fail-if-slower compares calls as they are: leave out --batch-sizes, or ask twice")
    name = " / ".join(subjects)
    with junit_report(junit, "togi bench", name, exit_undecided) as cases:
        before = None if against is None else read_comparison(against)
        with watch(name) as progress:
            comparison = api.bench(
                *subjects,
                device=device,
                callers=callers,
                batch_sizes=batch_sizes,
                max_latency=max_latency,
                different_inputs=different_inputs,
                python=python,
                train=train,
                seed=seed,
                time_limit_s=time_limit,
                progress=progress,
                native=not no_native,
            )
        if not json:
            from togi.render.comparison_text import comparison_text

            print_text(stdout(), comparison_text(comparison))
        cases += cases_of(comparison, fail_if_slower, before)  # raises where the earlier one is of something else
        if json:
            print_json(comparison_json(comparison, cases, exit_undecided))
        told = [case.said for case in cases if case.answer in (Answer.FAILED, Answer.UNDECIDED)]
        if before is not None and not told and (conditions := other_conditions(comparison, before)):
            told = [conditions]  # else the cases say it
        for said in told:
            say(said)
    return exit_code(cases, exit_undecided)
