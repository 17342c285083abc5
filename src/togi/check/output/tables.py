"""What module and trace rules report beside findings: lines and tables, with rich."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from togi.check.result import CheckResult, Table


def tables(result: CheckResult) -> RenderableType:
    parts: list[RenderableType] = []
    for table in result.tables:
        parts += [Text(), Text(table.title, style="bold"), _table(table)]
    if result.lines:
        parts += [Text(), *map(Text, result.lines)]
    return Group(*parts)


def _table(table: Table) -> RenderableType:
    """Columns of numbers stand to the right."""
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, column in enumerate(table.columns):
        numeric = bool(table.rows) and all(row[number][:1].isdigit() or row[number] in ("", "-") for row in table.rows)
        shown.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown
