"""Sizes, durations, shares and counts: parsed as people write them, and written for people.

Written numbers have three significant digits, a unit, and the interval next to the median.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from togi.core.errors import BudgetError, QuantityError

if TYPE_CHECKING:
    from togi.core.records import Interval

TOO_FEW_ROUNDS = "too few rounds"
"""What stands in place of an interval that has no ends yet."""
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_BYTES = {"": 1, "b": 1} | {
    unit: base**power
    for power, letter in enumerate("kmgt", start=1)
    for unit, base in ((letter, 1024), (f"{letter}ib", 1024), (f"{letter}b", 1000))
}
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", re.ASCII)
_LONGEST_LINE = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def parse_size(value: str | float, name: str = "") -> int:
    """Bytes: ``"8GiB"``, ``"500MB"`` (powers of 1000), ``"2G"`` (powers of 1024) or a whole number of bytes.

    ``name`` is what the caller calls it (``memory``), for the message.

    Raises:
        BudgetError: it is not a size, or not above zero.
    """
    shown = _said(value, name)
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip().lower())
        if match is None:
            raise BudgetError(f"{shown} is not a size in bytes: write 8GiB, 500MB or 1073741824")
        if match[2] not in _BYTES:
            raise BudgetError(f"{shown} has no known unit of size: write KiB, MiB, GiB, TiB or kB, MB, GB, TB")
        count = float(match[1]) * _BYTES[match[2]]
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1:
        count = value
    else:
        raise BudgetError(f"{shown} is not a size in bytes: write '8GiB', '500MB' or 1073741824")
    if count < 1:
        raise BudgetError(f"{shown} is too small: give a size above zero, such as 64MiB")
    return int(count)


def parse_duration(value: str | float, name: str = "") -> float:
    """Seconds: ``"90s"``, ``"5m"``, ``"1h30m"``, ``"90"`` or a number of seconds.

    Raises:
        QuantityError: it is not a duration, or not above zero.
    """
    shown = _said(value, name)
    if isinstance(value, str):
        total_s = _seconds(value, shown)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
        total_s = float(value)
    else:
        raise QuantityError(f"{shown} is not a duration: write '90s', '5m', '1h30m' or a number of seconds")
    if total_s <= 0:
        raise QuantityError(f"{shown} is too short: give a duration above zero, such as 90s")
    return total_s


def parse_switch(value: bool, name: str = "") -> bool:
    """Whether it is on. Raises QuantityError for what is neither True nor False."""
    if not isinstance(value, bool):
        raise QuantityError(f"{_said(value, name)} is neither True nor False")
    return value


def parse_share(value: str | float, name: str = "") -> float:
    """A share from 0 to 1: ``"1e-2"``, ``0.01``, ``"1%"``.

    Raises:
        QuantityError: it is not a number, below zero, or above one.
    """
    share = _number(value, _said(value, name))
    if not 0 <= share <= 1:
        raise QuantityError(f"{_said(value, name)} is out of range: give a number from 0 to 1, such as 1e-2, or 1%")
    return share


def parse_drop(value: str | float, name: str = "") -> float:
    """The largest drop of a metric, in its own unit: ``0.5``, ``"1e-2"``, ``"1%"``.

    Raises:
        QuantityError: it is not a number, or below zero.
    """
    drop = _number(value, _said(value, name))
    if not 0 <= drop < math.inf:
        raise QuantityError(f"{_said(value, name)} is out of range: give a number of zero or more, such as 1e-2")
    return drop


def parse_counts(value: str | Sequence[int], name: str = "") -> tuple[int, ...]:
    """Whole numbers above zero, without repeats: ``"1,2,4"`` or ``[1, 2, 4]``.

    Raises:
        QuantityError: it is not a list of them, or empty.
    """
    items = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(items, Iterable):
        raise QuantityError(f"{_said(value, name)} is not a list of whole numbers: write 1,2,4,8")
    counts: list[Any] = [int(item) if isinstance(item, str) and item.isdecimal() else item for item in items]
    if not counts or not all(type(count) is int and count > 0 for count in counts):
        raise QuantityError(f"{_said(value, name)} is not a list of whole numbers above zero: write 1,2,4,8")
    return tuple(dict.fromkeys(counts))


def parse_whole(value: str | int, name: str = "", *, least: int | None = None) -> int:
    """A whole number: ``7`` or ``"7"``, of ``least`` or more.

    Raises:
        QuantityError: it is not one.
    """
    try:
        number = int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise QuantityError(f"{_said(value, name)} is not a whole number: write it in digits, such as 4") from None
    if least is not None and number < least:
        raise QuantityError(f"{_said(value, name)} is out of range: give {least} or more")
    return number


def significant(value: float, digits: int = 3) -> str:
    """``12.3``, ``0.0421``, ``1,230``; without an exponent between 1e-4 and 1e7."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if abs(value) >= 1e7 or abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def milliseconds(value: float) -> str:
    return f"{significant(value / 1000)} s" if value >= 10_000 else f"{significant(value)} ms"


def seconds(value: float) -> str:
    """``0.31 s``, ``42 s``, ``3:07``, ``1:02:03``."""
    if value < 60:
        return f"{significant(value, 2)} s" if value < 9.95 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def size(count: float) -> str:
    """Bytes in binary units: ``98.4 MiB``."""
    amount, unit = float(count), 0
    while abs(amount) >= 1023.5 and unit < len(_SIZES) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{significant(amount) if unit else f'{amount:.0f}'} {_SIZES[unit]}"


def count(number: float) -> str:
    """Many things: ``533 k``, ``790 M``, ``1.20 G``."""
    for unit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{significant(number / unit)} {suffix}"
    return significant(number)


def times(value: float) -> str:
    """A ratio: ``2.31x``."""
    return f"{significant(value)}x"


def bounds(interval: Interval) -> str:
    """Both ends with as many decimals as the median has: ``1.98-2.08``; ``too few rounds`` where it has no ends."""
    if not interval.has_ends:
        return TOO_FEW_ROUNDS
    decimals = _decimals(interval.median)
    return f"{interval.low:,.{decimals}f}-{interval.high:,.{decimals}f}"


def relative(value: float) -> str:
    """A relative error: ``3.1e-07``."""
    return "0" if value == 0 else f"{value:.1e}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.095 or share == 0 else f"{share * 100:.1f} %"


def exact_percent(share: float) -> str:
    """As ``percent``, with as many digits as it takes: of a limit that somebody set."""
    text = percent(share)
    return text if math.isclose(float(text.removesuffix(" %")), share * 100, rel_tol=1e-9) else f"{share * 100:.10g} %"


def plural(count: int, noun: str) -> str:
    """``1 layer``, ``3 layers``, ``1,204 layers``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def few_of(names: Sequence[str]) -> str:
    """``a, b, c and 4 more``."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def a_type(value: object) -> str:
    """The type of ``value`` with its article: ``a list``, ``an int``, ``an OrderedDict``."""
    noun = type(value).__name__
    return f"an {noun}" if noun[:1].lower() in "aeio" else f"a {noun}"


def first_line(error: BaseException | str) -> str:
    """The first line of an error's message that is not empty, without colours, cut to 300 characters; its type without
    a message."""
    return _line(error, 0)


def last_line(error: BaseException | str) -> str:
    """The last one, in the same way: what a compiler or a converter said before it gave up."""
    return _line(error, -1)


def _line(error: BaseException | str, place: int) -> str:
    lines = [line for raw in _COLOUR.sub("", str(error)).splitlines() if (line := raw.strip())]
    line = lines[place] if lines else "" if isinstance(error, str) else type(error).__name__
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 3]}..."


def _said(value: object, name: str) -> str:
    return f"{name}={value!r}" if name else f"'{value}'"


def _number(value: str | float, shown: str) -> float:
    bare = value.strip() if isinstance(value, str) else value
    try:
        if isinstance(bare, str):
            return float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1)
        return float("not a number" if isinstance(bare, bool) else bare)
    except (TypeError, ValueError):
        raise QuantityError(f"{shown} is not a number: write 1e-2, 0.01 or 1%") from None


def _seconds(text: str, shown: str) -> float:
    compact = text.strip().lower().replace(" ", "")
    parts = _NUMBER.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise QuantityError(f"{shown} is not a duration: write 90s, 5m or 1h30m")
    unknown = next((unit for _, unit in parts if unit not in _SECONDS), None)
    if unknown is not None:
        raise QuantityError(f"{shown}: there is no unit of time '{unknown}': write s, m or h, as in 90s or 5m")
    if len(parts) > 1 and not all(unit for _, unit in parts):
        raise QuantityError(f"{shown} is not clear: give every part its unit, as in 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _decimals(value: float) -> int:
    if value == 0 or not math.isfinite(value):
        return 2
    return min(8, max(0, 2 - math.floor(math.log10(abs(value)))))
