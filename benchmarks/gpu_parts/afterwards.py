"""The device once the sweep is over: clocks and power then tell whether figures were taken on a slowed one."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_parts.environment import state
from benchmarks.gpu_parts.row import Row, row


def rows(device: str) -> Iterator[Row]:
    """The device once the sweep is over."""
    told = state() if device == "cuda" else "a processor: nothing is read of it"
    yield row("the device at the end", True if device == "cuda" else None, told)
