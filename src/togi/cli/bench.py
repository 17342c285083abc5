"""``togi bench``: are these really different?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from togi.cli.options import SHARE, AnyDevice, Json, Seed, TimeLimit

if TYPE_CHECKING:
    from togi.study.comparison import Comparison


def bench(
    subjects: Annotated[
        list[str],
        typer.Argument(metavar="A B ...", help="Subjects or .togi artifacts; the first is the one compared with."),
    ],
    callers: Annotated[
        int, typer.Option("--callers", metavar="N", min=1, help="So many call at once, in threads of one process.")
    ] = 1,
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
    json: Json = False,
    device: AnyDevice = None,
    seed: Seed = 0,
) -> int:
    """Compare subjects or artifacts in turns on the same inputs: which is faster, by how much, beyond doubt or not.

    Exit code 1 when one of them could not be measured, or is slower than --fail-if-slower allows.
    """
    from togi import api
    from togi.cli.output import print_json, print_text, stdout
    from togi.core.records import Outcome
    from togi.render.json import comparison_json
    from togi.render.progress import watch
    from togi.study.comparison import read_comparison

    if against is not None and fail_if_slower is None:
        raise typer.BadParameter("--against says beside what; give --fail-if-slower too, such as 5%")
    before = None if against is None else read_comparison(against)
    if len(subjects) < 2:
        raise typer.BadParameter("give at least two to compare: togi bench A B")
    with watch(" / ".join(subjects)) as progress:
        found = api.bench(
            *subjects, device=device, callers=callers, seed=seed, time_limit_s=time_limit, progress=progress
        )
    if json:
        print_json(comparison_json(found))
    else:
        from togi.render.study_text import comparison_text

        console = stdout()
        print_text(console, comparison_text(found))
    if any(contestant.outcome is not Outcome.OK for contestant in found.contestants):
        return 1
    return 0 if fail_if_slower is None else _gate(found, fail_if_slower, before)


def _gate(found: Comparison, share: float, before: Comparison | None) -> int:
    from togi.study.comparison import slowdowns

    if before is not None and (different := before.machine.differences(found.machine)):
        typer.echo(f"the earlier comparison was made under other conditions: {'; '.join(different)}", err=True)
    sentences = slowdowns(found, share, before)
    for sentence in sentences:
        typer.echo(sentence, err=True)
    return 1 if sentences else 0
