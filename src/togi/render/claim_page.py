"""A claim as terminal text: its page, and what was measured of it here."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from togi.claims import HEADINGS, Claim, Measured, Proof, Verdict
from togi.core.docstring import prose, split_docstring
from togi.core.quantities import milliseconds, size
from togi.core.records import Record
from togi.render.terminal import clean

_STYLES = {
    Verdict.HOLDS: "bold green",
    Verdict.HOLDS_IN_PART: "bold yellow",
    Verdict.REFUTED: "bold red",
    Verdict.UNTESTED: "bold yellow",
}


class ClaimPage(Record):
    """What is published of one claim."""

    id: str
    summary: str
    sections: dict[str, str]


def claim_page(claim: Claim) -> ClaimPage:
    summary, sections = split_docstring(inspect.getdoc(type(claim)) or "", HEADINGS)
    return ClaimPage(id=claim.id, summary=summary, sections=sections)


def claims_text(pages: Sequence[ClaimPage]) -> RenderableType:
    """All claims, one line each."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_row(Text("claims", style="bold"), Text("advice that --prove measures on this machine", style="dim"))
    for page in pages:
        table.add_row(Text(f"  {page.id}", style="cyan"), prose(page.summary))
    table.add_row()
    return table


def claim_text(page: ClaimPage) -> RenderableType:
    """The whole page."""
    parts: list[RenderableType] = [Text(page.id, style="bold cyan").append("  claim", "dim"), prose(page.summary)]
    for heading, body in page.sections.items():
        parts += [Text(), *([Text(heading, style="bold")] if heading else []), Padding(prose(body), (0, 0, 0, 2))]
    parts += [Text(), Text("Measure it here", style="bold")]
    return Group(*parts, Text(f"  togi explain {page.id} --prove", style="cyan"))


def proof_text(proof: Proof) -> RenderableType:
    """The verdict with the figures behind it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column(clean(proof.setting), ratio=1)
    table.add_column("peak", justify="right", no_wrap=True)
    table.add_column("median", justify="right", no_wrap=True)
    for row in proof.rows:
        table.add_row(*_cells(row))
    verdict = Text(proof.claim, style="bold cyan").append(f"  {proof.verdict.value}", style=_STYLES[proof.verdict])
    return Group(verdict, Text(clean(proof.sentence)), *((Text(), table) if proof.rows else ()))


def _cells(row: Measured) -> tuple[Text, Text, Text]:
    name = Text(clean(row.name))
    if row.note:
        name.append(f"\n{clean(row.note)}", style="yellow")
    peak = Text("-" if row.peak_bytes is None else size(row.peak_bytes))
    return name, peak, Text("-" if row.median_ms is None else milliseconds(row.median_ms))
