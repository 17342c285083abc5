"""``togi bench``: are these really different?"""

from __future__ import annotations

from typing import Annotated

import typer

from togi.cli.options import AnyDevice, Json, Seed, TimeLimit


def bench(
    subjects: Annotated[
        list[str],
        typer.Argument(metavar="A B ...", help="Subjects or .togi artifacts; the first is the one compared with."),
    ],
    time_limit: TimeLimit = None,
    json: Json = False,
    device: AnyDevice = None,
    seed: Seed = 0,
) -> int:
    """Compare subjects or artifacts in turns on the same inputs: which is faster, by how much, beyond doubt or not.

    Exit code 1 when one of them could not be measured.
    """
    from togi import api
    from togi.cli.output import print_json, print_text, stdout
    from togi.core.records import Outcome
    from togi.render.json import comparison_json
    from togi.render.progress import watch

    if len(subjects) < 2:
        raise typer.BadParameter("give at least two to compare: togi bench A B")
    with watch(" / ".join(subjects)) as progress:
        found = api.bench(*subjects, device=device, seed=seed, time_limit_s=time_limit, progress=progress)
    if json:
        print_json(comparison_json(found))
    else:
        from togi.render.study_text import comparison_text

        console = stdout()
        print_text(console, comparison_text(found))
    return 0 if all(contestant.outcome is Outcome.OK for contestant in found.contestants) else 1
