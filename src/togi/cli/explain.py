"""``togi explain``: what a technique does, its claim, its source, its risk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from togi.cli.options import Device, Json, Seed, complete_technique, without_effect

if TYPE_CHECKING:
    from togi.report.technique_page import TechniquePage


def explain(
    id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="A technique; without it all are listed.", autocompletion=complete_technique),
    ] = None,
    json: Json = False,
    device: Device = "cpu",
    seed: Seed = 0,
) -> int:
    """List the techniques by stage, or print the page of one: claim, source, risk, options, can it run here."""
    from togi.cli.output import print_json, print_text, stdout
    from togi.report.technique_page import all_pages, list_text, technique_page
    from togi.subject.machine import machine
    from togi.techniques import technique

    without_effect("explain", seed=seed)
    here = machine(device)
    if id is not None:
        page = technique_page(technique(id), here, device)
        _print(page, json)
        return 0
    pages = all_pages(here, device)
    if json:
        print_json(_document("techniques", [page.model_dump() for page in pages]))
    else:
        console = stdout()
        print_text(console, list_text(pages))
    return 0


def _print(page: TechniquePage, json: bool) -> None:
    from togi.cli.output import print_json, print_text, stdout
    from togi.report.technique_page import page_text

    if json:
        print_json(_document("technique", page.model_dump()))
    else:
        print_text(stdout(), page_text(page))


def _document(kind: str, content: Any) -> dict[str, Any]:
    from togi.records import SCHEMA_VERSION

    return {"schema_version": SCHEMA_VERSION, "kind": kind, kind: content}
