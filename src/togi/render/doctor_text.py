"""The findings of ``togi doctor`` as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from togi.core.quantities import plural
from togi.doctor.check import Check, Level
from togi.render.terminal import clean, listing, stack

MARKS = {
    Level.OK: ("+", "green"),
    Level.OPTIONAL: ("-", "dim"),
    Level.WARNING: ("!", "yellow"),
    Level.MISSING: ("x", "bold red"),
}


def examination_text(checks: Sequence[Check]) -> RenderableType:
    """Checks by topic, then the commands that install what is missing."""
    table = listing(3)
    for topic, members in groupby(checks, key=lambda check: check.topic):
        for number, check in enumerate(members):
            table.add_row(Text("" if number else topic, "bold"), _name(check), _found(check))
    return stack(table, _summary(checks))


def _name(check: Check) -> Text:
    mark, style = MARKS[check.level]
    return Text(f"{mark} ", style=style).append(check.name, style="" if check.level is not Level.OPTIONAL else "dim")


def _found(check: Check) -> Text:
    text = Text(clean(check.found), style="dim" if check.level is Level.OPTIONAL else "")
    if check.why:
        text.append(f"  {clean(check.why)}", style="yellow" if check.level in (Level.WARNING, Level.MISSING) else "dim")
    if check.fix:
        text.append(f"\n{clean(check.fix)}", style="cyan")
    return text


def _summary(checks: Sequence[Check]) -> Text:
    missing = [check.name for check in checks if check.level is Level.MISSING]
    if missing:
        return Text(f"Missing: {', '.join(missing)}.", style="bold red")
    warned = sum(check.level is Level.WARNING for check in checks)
    return Text(
        "Everything needed is here" + (f"; {plural(warned, 'thing')} to know (!)." if warned else "."),
        style="bold green",
    )
