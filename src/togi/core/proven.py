"""Marks on which kind of device a part of togi was run and found right, and when.

A technique has the class attribute ``proven``; any other part that depends on the device has ``PROVEN = Proven(...)``
in its module. ``togi explain`` shows those of techniques, ``togi doctor`` and docs/gpu.md show all. Proven means that
the part's tests ran on such a device and passed, on that day; a kind of device without a date was never tried.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

NOT_YET = "not proven on a device yet"
DEVICES = ("cpu", "cuda")


@final
@dataclass(frozen=True, kw_only=True)
class Proven:
    """By kind of device: the day (ISO) on which the part's tests last passed on one; None: nobody has tried."""

    cpu: str | None = None
    cuda: str | None = None
    part: str = ""
    """What is marked, in words; techniques have their id instead."""

    def on(self, device: str) -> str | None:
        """The day for ``cpu`` or ``cuda``."""
        return {"cpu": self.cpu, "cuda": self.cuda}[device]


@final
@dataclass(frozen=True, kw_only=True)
class Mark:
    """One part of togi and what is known of it, by each kind of device that it is made for."""

    part: str
    days: dict[str, str | None]

    @property
    def sentence(self) -> str:
        """``cpu: 2026-11-21; cuda: not proven on a device yet``."""
        return "; ".join(f"{device}: {day or NOT_YET}" for device, day in self.days.items())


@cache
def marked_parts(folder: Path = Path(__file__).parents[1]) -> tuple[Mark, ...]:
    """The marks of all modules below ``folder``, sorted by part. They are read, not imported: most need torch."""
    files = (path for path in folder.rglob("*.py") if "\nPROVEN = " in path.read_text(encoding="utf-8"))
    return tuple(sorted((mark for path in files for mark in _marks_in(path)), key=lambda mark: mark.part))


def _marks_in(path: Path) -> Iterator[Mark]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="PROVEN")], value=ast.Call(keywords=keywords)):
                given = {word.arg: ast.literal_eval(word.value) for word in keywords}
                part = str(given.pop("part"))
                yield Mark(part=part, days={device: given[device] for device in DEVICES if device in given})
