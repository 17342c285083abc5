"""How numbers are written for people: three significant digits, units, and the interval beside the median."""

from __future__ import annotations

import math

from togi.core.records import Interval

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


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


def bounds(interval: Interval, scale: float = 1.0) -> str:
    """Both ends with as many decimals as the median has: ``1.98-2.08``."""
    decimals = _decimals(interval.median * scale)
    return f"{interval.low * scale:,.{decimals}f}-{interval.high * scale:,.{decimals}f}"


def relative(value: float) -> str:
    """A relative error: ``3.1e-07``."""
    return "0" if value == 0 else f"{value:.1e}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.095 or share == 0 else f"{share * 100:.1f} %"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _decimals(value: float) -> int:
    if value == 0 or not math.isfinite(value):
        return 2
    return min(8, max(0, 2 - math.floor(math.log10(abs(value)))))
