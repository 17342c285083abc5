"""Sizes (``8GiB``) and durations (``4m``) as people type them."""

from __future__ import annotations

import re

import typer

_SIZES = {"": 1, "b": 1} | {
    name: base**power
    for power, letter in enumerate("kmgt", start=1)
    for name, base in ((letter, 1024), (f"{letter}ib", 1024), (f"{letter}b", 1000))
}
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", re.ASCII)


def parse_size(text: str | int) -> int:
    """Bytes: ``8GiB``, ``500MB`` (powers of 1000), ``2G`` (powers of 1024), ``1073741824``."""
    if isinstance(text, int):
        return text
    amount, unit = _split(text, "a size", "8GiB, 500MB or 1073741824")
    if unit not in _SIZES:
        raise typer.BadParameter(f"'{text}' has no known unit of size: write KiB, MiB, GiB, TiB or kB, MB, GB, TB")
    count = int(amount * _SIZES[unit])
    if count <= 0:
        raise typer.BadParameter(f"'{text}' is no memory at all: give a size above zero")
    return count


def parse_duration(text: str | float) -> float:
    """Seconds: ``90s``, ``5m``, ``1h30m``, ``90``."""
    if not isinstance(text, str):
        return text
    compact = text.strip().lower().replace(" ", "")
    parts = _NUMBER.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise typer.BadParameter(f"'{text}' is not a duration: write 90s, 5m or 1h30m")
    unknown = next((unit for _, unit in parts if unit not in _SECONDS), None)
    if unknown is not None:
        raise typer.BadParameter(f"'{text}': there is no unit of time '{unknown}': write s, m or h, as in 90s or 5m")
    if len(parts) > 1 and not all(unit for _, unit in parts):
        raise typer.BadParameter(f"'{text}' is not clear: give every part its unit, as in 1h30m")
    total_s = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if total_s <= 0:
        raise typer.BadParameter(f"'{text}' is no time at all: give a duration above zero")
    return total_s


def parse_share(text: str | float) -> float:
    """A number of zero or more: ``1e-2``, ``0.01``, ``1%``."""
    if not isinstance(text, str):
        return text
    bare = text.strip()
    try:
        value = float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not a number: write 1e-2, 0.01 or 1%") from None
    if not 0 <= value < float("inf"):
        raise typer.BadParameter(f"'{text}' is not possible: give a number of zero or more, as 1e-2")
    return value


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text.strip().lower())
    if match is None:
        raise typer.BadParameter(f"'{text}' is not {what}: write {example}")
    return float(match[1]), match[2]
