"""``togi bench``: are these really different?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from togi.cli.options import DURATION, SHARE, AnyDevice, Json, Junit, NoNative, Seed, TimeLimit

if TYPE_CHECKING:
    from togi.render.junit import Case
    from togi.study.comparison import Comparison


def bench(
    subjects: Annotated[
        list[str],
        typer.Argument(metavar="A B ...", help="Subjects or .togi artifacts; the first is the one compared with."),
    ],
    callers: Annotated[
        int, typer.Option("--callers", metavar="N", min=1, help="So many call at once, in threads of one process.")
    ] = 1,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            "--batch-sizes",
            metavar="N,N,...",
            help="Throughput by batch size: each is called with so many samples at once (1,2,4,8).",
        ),
    ] = None,
    max_latency: Annotated[
        float | None,
        typer.Option(
            "--max-latency", metavar="TIME", parser=DURATION, help="With it: of a call of the best size (50ms)."
        ),
    ] = None,
    time_limit: TimeLimit = None,
    fail_if_slower: Annotated[
        float | None,
        typer.Option(
            "--fail-if-slower",
            metavar="SHARE",
            parser=SHARE,
            help="Exit with 1 when one is slower than the first by more than this (5%), beyond doubt.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE.json", help="With it: than in this earlier 'togi bench --json'."),
    ] = None,
    no_native: NoNative = False,
    junit: Junit = None,
    json: Json = False,
    device: AnyDevice = None,
    seed: Seed = 0,
) -> int:
    """Compare subjects or artifacts in turns on the same inputs: which is faster, by how much, beyond doubt or not.

    Exit code 1 when one of them could not be measured (at no batch size within --max-latency), or is slower than
    --fail-if-slower allows.
    """
    from togi import api
    from togi.cli.output import junit_report, print_json, print_text, stdout
    from togi.core.quantities import parse_counts
    from togi.render.json import comparison_json
    from togi.render.progress import watch
    from togi.study.comparison import read_comparison, slowdowns

    if against is not None and fail_if_slower is None:
        raise typer.BadParameter("--against says beside what; give --fail-if-slower too, such as 5%")
    sizes = None if batch_sizes is None else parse_counts(batch_sizes, "--batch-sizes")
    if sizes is not None and fail_if_slower is not None:
        raise typer.BadParameter("--fail-if-slower compares calls as they are: leave out --batch-sizes, or ask twice")
    if max_latency is not None and sizes is None:
        raise typer.BadParameter("--max-latency is of the best of several --batch-sizes: give these too, such as 1,2,4")
    if len(subjects) * len(sizes or (1,)) < 2:
        raise typer.BadParameter("give at least two to compare: togi bench A B")
    name = " / ".join(subjects)
    with junit_report(junit, "togi bench", name) as cases:
        before = None if against is None else read_comparison(against)
        with watch(name) as progress:
            found = api.bench(
                *subjects,
                device=device,
                callers=callers,
                batch_sizes=sizes,
                max_latency=max_latency,
                seed=seed,
                time_limit_s=time_limit,
                progress=progress,
                native=not no_native,
            )
        if json:
            print_json(comparison_json(found))
        else:
            from togi.render.study_text import comparison_text

            print_text(stdout(), comparison_text(found))
        if before is not None and (different := before.machine.differences(found.machine)):
            typer.echo(f"the earlier comparison was made under other conditions: {'; '.join(different)}", err=True)
        slower = {} if fail_if_slower is None else slowdowns(found, fail_if_slower, before)
        for sentence in slower.values():
            typer.echo(sentence, err=True)
        cases += _cases(found, slower)
    return 1 if any(case.verdict != "passed" for case in cases) else 0


def _cases(found: Comparison, slower: Mapping[str, str]) -> Iterator[Case]:
    """One for each contestant. ``slower``: sentences of those that are slower than they may be."""
    from togi.core.quantities import bounds, times
    from togi.core.records import Outcome
    from togi.render.junit import Case

    for best in found.best:
        yield Case(best.name, best.verdict, "passed" if best.batch is not None else "error")
    for contestant in () if found.best else found.contestants:
        name, ratio = contestant.name, contestant.speedup_x
        if contestant.outcome is not Outcome.OK:
            yield Case(name, f"{contestant.outcome.value}: {contestant.reason}", "error")
        elif ratio is None and contestant is not found.contestants[0]:
            yield Case(name, f"not measured: {contestant.reason or found.verdict}", "error")
        elif name in slower:
            yield Case(name, slower[name], "failure")
        else:
            compared = "" if ratio is None else f"{times(ratio.median)} the speed of the first ({bounds(ratio)}). "
            yield Case(name, f"{compared}{found.verdict}")
