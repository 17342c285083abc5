"""The tables that module and trace rules report beside findings, with rich."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from togi.core.records import Scalar
from togi.lint.result import CheckResult, Table


def tables(result: CheckResult) -> RenderableType:
    parts: list[RenderableType] = []
    for table in result.tables:
        parts += [Text(), Text(table.title, style="bold"), _table(table)]
    return Group(*parts)


def _table(table: Table) -> RenderableType:
    """Columns of numbers stand to the right."""
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, column in enumerate(table.columns):
        numeric = any(_is_number(row[number]) for row in table.rows)
        shown.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(_cell(value)) for value in row))
    return shown


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Scalar) -> str:
    """Four digits are all that a prediction or a measurement is good for; counts are exact."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if _is_number(value) else str(value)
