"""What ``togi doctor`` found, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from togi.doctor.check import Check, Level
from togi.render.terminal import clean

MARKS = {
    Level.OK: ("+", "green"),
    Level.OPTIONAL: ("-", "dim"),
    Level.WARNING: ("!", "yellow"),
    Level.MISSING: ("x", "bold red"),
}


def examination_text(checks: Sequence[Check]) -> RenderableType:
    """Checks by topic, then the commands that mend what is missing."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for topic, members in groupby(checks, key=lambda check: check.topic):
        for number, check in enumerate(members):
            table.add_row("" if number else topic, _name(check), _found(check))
    return Group(table, Text(), _summary(checks))


def _name(check: Check) -> Text:
    mark, style = MARKS[check.level]
    return Text(f"{mark} ", style=style).append(check.name, style="" if check.level is not Level.OPTIONAL else "dim")


def _found(check: Check) -> Text:
    text = Text(clean(check.found), style="dim" if check.level is Level.OPTIONAL else "")
    if check.why:
        text.append(f"  {clean(check.why)}", style="yellow" if check.level in (Level.WARNING, Level.MISSING) else "dim")
    if check.mend:
        text.append(f"\n{clean(check.mend)}", style="cyan")
    return text


def _summary(checks: Sequence[Check]) -> Text:
    missing = [check.name for check in checks if check.level is Level.MISSING]
    if missing:
        return Text(f"Missing: {', '.join(missing)}.", style="bold red")
    warned = sum(check.level is Level.WARNING for check in checks)
    return Text(
        "Everything needed is here" + (f"; {warned} things to know (!)." if warned else "."), style="bold green"
    )
