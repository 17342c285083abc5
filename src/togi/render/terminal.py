"""The parts of which every text for a terminal is made: tables, lists of sentences, and text that is safe to print.

Texts are rich renderables, so that they are tested without a terminal; printing them is left to the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from togi.core.printable import encodable, printable, to_nobody
from togi.core.quantities import bounds, significant, size
from togi.core.records import Footprint, Interval, Outcome

STYLES = {
    Outcome.OK: "green",
    Outcome.REFUSED: "dim",
    Outcome.MISSING: "yellow",
    Outcome.FAILED: "red",
    Outcome.WRONG: "red",
    Outcome.TIMED_OUT: "yellow",
    Outcome.CRASHED: "red",
    Outcome.OUT_OF_MEMORY: "red",
    Outcome.UNSTABLE: "yellow",
}
VERDICT_STYLES = {
    "chosen": "bold green",
    "chosen (as it was)": "bold green",
    "chosen (unstable)": "bold green",
    "faster": "green",
    "slower": "red",
    "reference": "cyan",
}


clean = printable
DOTS = "..."
"""For what is left out: a terminal of any encoding shows them."""


class SafeConsole(Console):
    """Prints text as it is, as far as the stream can say it: square brackets are not markup, and no character steers
    the terminal but rich's own."""

    def __init__(self, **given: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **given)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(encodable(printable(segment.text), self.file), segment.style)

    def on_broken_pipe(self) -> None:
        """Rich would end the process with 1, whatever the command came to."""
        self.quiet = True
        to_nobody(self.file)


def cut(text: str, width: int) -> str:
    """As much of it as the columns hold, with dots where some is left out. Some letters take two columns."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - len(DOTS))).rstrip() + DOTS[: max(0, width)]


def table(*headings: str, left: Collection[str] = (), wide: bool = True) -> Table:
    """A table of figures: the first column is text, the others are numbers, but for those named in ``left``.

    ``wide``: the first column takes the room that the others leave.
    """
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    first, *others = headings
    grid.add_column(first, ratio=1 if wide else None, overflow="fold", min_width=16 if wide else None)
    for heading in others:
        grid.add_column(heading, justify="left" if heading in left else "right", no_wrap=heading not in left)
    return grid


def listing(columns: int = 2) -> Table:
    """Rows without headings: names, then text that takes the rest of the width."""
    grid = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(columns - 1):
        grid.add_column(no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    return grid


def bullets(sentences: Iterable[str]) -> Table | None:
    """A list of sentences, or None where there are none."""
    grid = Table.grid(padding=(0, 1))
    for sentence in sentences:
        grid.add_row("-", Text(clean(sentence), overflow="fold"))
    return grid if grid.row_count else None


def stack(*parts: RenderableType | None) -> Group:
    """Parts below each other with an empty line between them; None is left out."""
    shown = [line for part in parts if part is not None for line in (Text(), part)]
    return Group(*shown[1:])


def figure(interval: Interval, unit: str = "", *, beside: bool = False) -> Text:
    """A median with its interval, below it or next to it."""
    return _stacked(f"{significant(interval.median)}{unit}", bounds(interval), beside=beside)


def _stacked(first: str, second: str, *, beside: bool = False) -> Text:
    return Text(first).append(" " if beside else "\n").append(second, style="dim")


def memory(footprint: Footprint | None) -> Text:
    """The memory that stays, and below it what a call needs besides."""
    return _stacked(size(footprint.idle_bytes), f"+ {size(footprint.peak_bytes)}") if footprint else Text("-")
