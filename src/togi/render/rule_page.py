"""A rule of ``togi check`` as terminal text, and the list of all rules by kind."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from togi.core.docstring import prose
from togi.lint.pages import KIND_MEANING, RulePage


def rules_text(pages: Sequence[RulePage]) -> RenderableType:
    """All rules by kind, one line each."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for kind, members in groupby(pages, key=lambda page: page.kind):
        table.add_row(Text(f"check: {kind}", style="bold"), Text(KIND_MEANING[kind], style="dim"))
        for page in members:
            table.add_row(Text(f"  {page.id}", style="cyan"), prose(page.summary))
        table.add_row()
    return table


def rule_text(page: RulePage) -> RenderableType:
    """The whole page."""
    on = "on by default" if page.default else "off by default: select it"
    title = Text(page.id, style="bold cyan").append(f"  {page.kind} rule, {on}", style="dim")
    parts: list[RenderableType] = [title, prose(page.summary)]
    for heading, body in page.sections.items():
        parts += [Text(), *([Text(heading, style="bold")] if heading else []), Padding(_body(body), (0, 0, 0, 2))]
    parts += [Text(), Text("Silence it", style="bold"), Text(f"  # togi: ignore[{page.id}]", style="cyan")]
    if page.technique:
        parts += [Text(), Text("Mended by", style="bold"), Text(f"  togi explain {page.technique}", style="cyan")]
    return Group(*parts)


def _body(text: str) -> RenderableType:
    """Prose and literal blocks in turn; a block is what is indented."""
    found: list[RenderableType] = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("    "):
            found.append(Padding(Text(textwrap.dedent(paragraph), style="green"), (0, 0, 0, 2)))
        elif said := paragraph.removesuffix("::").rstrip():
            found.append(prose(f"{said}:" if paragraph.endswith("::") else said))
    return Group(*found)
