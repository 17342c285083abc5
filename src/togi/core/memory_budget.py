"""A byte budget as people write it, and the errors about it."""

from __future__ import annotations

import re

from togi.core.errors import TogiError

_UNITS = {"": 1, "b": 1} | {
    unit: base**power
    for power, letter in enumerate("kmgt", start=1)
    for unit, base in ((letter, 1024), (f"{letter}ib", 1024), (f"{letter}b", 1000))
}
_AMOUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)", re.ASCII)
_MiB = 1 << 20


class BudgetError(TogiError, ValueError):
    """A byte budget that is not one, or that cannot hold what the call has to return."""


def budget_bytes(memory: str | int) -> int:
    """Bytes: ``"64MiB"``, ``"500MB"`` (powers of 1000), ``"2G"`` (powers of 1024) or an int.

    Raises:
        BudgetError: it is not a size, or not above zero.
    """
    if isinstance(memory, bool) or not isinstance(memory, str | int):
        raise BudgetError(f"memory={memory!r} is not a size in bytes: write '64MiB', '500MB' or 67108864")
    count = memory if isinstance(memory, int) else _parsed(memory)
    if count <= 0:
        raise BudgetError(f"memory={memory!r} is no memory at all: give a size above zero, such as '64MiB'")
    return count


def mib(count: float) -> str:
    """``1234567`` as ``1.2 MiB``; KiB and bytes below."""
    if count < 1024:
        return f"{int(count)} B"
    if count < _MiB:
        return f"{count / 1024:.1f} KiB"
    return f"{count / _MiB:,.2f} MiB" if count < 100 * _MiB else f"{count / _MiB:,.0f} MiB"


def _parsed(text: str) -> int:
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise BudgetError(f"memory={text!r} is not a size in bytes: write '64MiB', '500MB' or 67108864")
    return int(float(match[1]) * _UNITS[match[2].lower()])
