"""The table of contents of a journal as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.quantities import plural
from togi.journal.store import StudyEntry
from togi.render.terminal import clean


def contents_text(entries: Sequence[StudyEntry]) -> RenderableType:
    """One study a row: id, when, what, how many trials, and the verdict below."""
    if not entries:
        return Text("There are no studies yet: togi tune SUBJECT makes one.")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(no_wrap=True, style="dim")
    table.add_column(ratio=1, overflow="fold")
    for entry in entries:
        subject = Text(clean(entry.subject), style="bold").append(f"  {plural(entry.trials, 'trial')}", style="dim")
        if entry.verdict:
            subject.append(f"\n{clean(entry.verdict)}", style="not bold")
        table.add_row(clean(entry.id), entry.started[:16].replace("T", " "), subject)
    return table
