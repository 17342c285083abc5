"""The difference between two accounts at their peaks: which owners grew and which shrank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from togi.core.records import Record
from togi.footprint.account.record import Account, Holding

NO_MODULE = "(outside of modules)"
"""Owner of what no module made."""


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
        by_module=_changes(before, after, lambda holding: holding.module or NO_MODULE),
        by_line=_changes(before, after, lambda holding: _function(holding.line) or f"({holding.op})"),
    )


def _changes(before: Account, after: Account, name: Callable[[Holding], str]) -> tuple[Change, ...]:
    """The owners of which there is more or less, the largest change first."""
    sums: dict[str, list[int]] = {}
    for place, account in enumerate((before, after)):
        for holding in account.holdings:
            sums.setdefault(name(holding), [0, 0])[place] += holding.bytes
    changes = [Change(owner=owner, before_bytes=b, after_bytes=a) for owner, (b, a) in sums.items() if a != b]
    return tuple(sorted(changes, key=lambda change: (-abs(change.gained_bytes), change.owner)))


def _function(line: str) -> str:
    """``resnet.py in forward`` of ``models/resnet.py:154 in forward``."""
    path, _, rest = line.partition(":")
    return f"{Path(path).name}{rest[rest.find(' ') :]}"
