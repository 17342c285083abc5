"""Two accounts beside each other: what the peak gained and lost, by category, by module and by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.quantities import size
from togi.core.records import Record
from togi.footprint.account.record import Account, Holding
from togi.render.account_text import short_line
from togi.render.terminal import clean


class Change(Record):
    """Bytes of one owner at the two peaks."""

    owner: str
    before_bytes: int
    after_bytes: int

    @property
    def gained_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


class AccountChange(Record):
    """The difference of two runs at their peaks; owners without a difference are left out."""

    before_bytes: int
    after_bytes: int
    by_category: tuple[Change, ...]
    by_module: tuple[Change, ...]
    by_line: tuple[Change, ...]


def account_change(before: Account, after: Account) -> AccountChange:
    """From ``before`` to ``after``. Lines are compared by file name and function, since numbers shift."""
    return AccountChange(
        before_bytes=before.peak_bytes,
        after_bytes=after.peak_bytes,
        by_category=_changes(before, after, lambda holding: holding.category.value),
        by_module=_changes(before, after, lambda holding: holding.module or "(outside of modules)"),
        by_line=_changes(before, after, lambda holding: _function(holding.line) or f"({holding.op})"),
    )


def change_text(change: AccountChange, *, limit: int = 10) -> RenderableType:
    """The headline, then the owners that changed most."""
    verb = "grew" if change.after_bytes > change.before_bytes else "shrank"
    moved = abs(change.after_bytes - change.before_bytes)
    if not moved:
        return Text(f"The peak is the same as before, {size(change.after_bytes)}.", style="bold")
    headline = Text(f"The peak {verb} by {size(moved)}", style="bold")
    headline.append(f", from {size(change.before_bytes)} to {size(change.after_bytes)}")
    parts: list[RenderableType] = [headline]
    for title in ("by_category", "by_module", "by_line"):
        if rows := getattr(change, title):
            parts += [Text(), _table(title.replace("_", " "), rows[:limit])]
    return Group(*parts)


def _changes(before: Account, after: Account, name: Callable[[Holding], str]) -> tuple[Change, ...]:
    sums: dict[str, list[int]] = {}
    for place, account in enumerate((before, after)):
        for holding in account.holdings:
            sums.setdefault(name(holding), [0, 0])[place] += holding.bytes
    found = [Change(owner=owner, before_bytes=b, after_bytes=a) for owner, (b, a) in sums.items() if a != b]
    return tuple(sorted(found, key=lambda change: (-abs(change.gained_bytes), change.owner)))


def _function(line: str) -> str:
    """``resnet.py in forward`` of ``resnet.py:154 in forward``."""
    file, _, rest = short_line(line).partition(":")
    return f"{file}{rest[rest.find(' ') :]}" if rest else file


def _table(title: str, rows: Sequence[Change]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column(title, ratio=1)
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        sign = "+" if row.gained_bytes > 0 else "-"
        style = "red" if row.gained_bytes > 0 else "green"
        changed = Text(f"{sign}{size(abs(row.gained_bytes))}", style=style)
        table.add_row(Text(clean(row.owner), overflow="fold"), size(row.before_bytes), size(row.after_bytes), changed)
    return table
