"""``togi report``: a study again, as text, JSON or HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from togi.cli.options import Device, Journal, Json, Seed, with_permits, without_effect
from togi.cli.output import say


@with_permits
def report(
    study: Annotated[
        str | None,
        typer.Argument(metavar="STUDY", help="The id of a study or its first digits; default: the newest."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the studies of the journal, the newest first.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE.html", help="Write an offline HTML file.")
    ] = None,
    repro: Annotated[
        Path | None,
        typer.Option("--repro", metavar="FOLDER", help="Write a script that repeats a trial without togi."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", metavar="RECIPE", help="For --repro: its id or label; default: the chosen."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --html replace a file.")] = False,
    journal: Journal = None,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """Show a study again, with every trial, or list the studies.

    Exit code 1 when nothing could be chosen in it, or when there are no studies to list.
    """
    from togi import api
    from togi.cli.output import check_report_path, print_json, print_text, stdout, write_report
    from togi.core.caches import default_journal
    from togi.core.errors import TogiError
    from togi.journal.store import check_own_journal
    from togi.render.json import study_json
    from togi.render.study_text import study_text

    without_effect("report", device=device != "cpu", seed=seed)
    if list_:
        return _list(journal, json)
    if html is not None:
        check_report_path(html, force)
    shown = api.read_study(study, journal)
    if repro is not None:
        chosen = recipe or (shown.best.id if shown.best is not None else None)
        if chosen is None:
            raise TogiError("nothing was chosen in this study: give --recipe, the id or label of the one to repeat.")
        check_own_journal(journal or default_journal())  # its subject is run
        say(f"repro: {api.repro(shown, chosen, repro) / 'repro.py'}")
    if html is not None:
        write_report(shown, html)
        say(f"report: {html}")
    if json:
        print_json(study_json(shown))
    elif html is None:
        console = stdout()
        print_text(console, study_text(shown, width=console.width))
    return 0 if shown.best is not None else 1


def _list(path: Path | None, json: bool) -> int:
    """The journal's table of contents; 1 when it is empty."""
    from togi.cli.output import print_json, print_text, stdout
    from togi.core.caches import default_journal
    from togi.core.records import SCHEMA_VERSION
    from togi.journal import Journal as OpenJournal
    from togi.render.study_text import contents_text

    with OpenJournal.open(path or default_journal(), create=False, read_only=True) as journal:
        entries = journal.studies()
    if json:
        studies = [entry.model_dump() for entry in entries]
        print_json({"schema_version": SCHEMA_VERSION, "kind": "studies", "studies": studies})
    else:
        console = stdout()
        print_text(console, contents_text(entries, console.width))
    return 0 if entries else 1
