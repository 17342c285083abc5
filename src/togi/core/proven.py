"""Marks on which kind of device a part of togi was run and found right, and when.

A technique has the class attribute ``proven``; any other part that depends on the device has ``PROVEN = Proven(...)``
in its module. ``togi explain`` shows those of techniques, ``togi doctor`` and docs/gpu.md show all. Proven means that
the part's tests ran on such a device and passed, on that day; a kind of device without a date was never tried.

What ``python -m benchmarks.gpu`` finds on a device it writes into ``proven.json``, with the day, the device's name and
the figure, and takes out again what fails there; that stands before a date in the code. Nobody writes a date of CUDA.
What it finds on a CPU of a part that is made for CUDA alone proves it without a device.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

NOT_YET = "not proven on a device yet"
DEVICES = ("cpu", "cuda")
WITHOUT = "without a device"
"""In place of the CPU, for parts that are made for CUDA alone: their tests passed with stand-ins for the device."""
FOUND = Path(__file__).with_name("proven.json")
"""By part, then by kind of device."""
Found = dict[str, dict[str, dict[str, str]]]


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
        """``cpu: 2026-11-21; cuda: not proven on a device yet``, or ``without a device: 2026-11-21; ...``."""
        return "; ".join(f"{device}: {day or NOT_YET}" for device, day in self.days.items())


@cache
def found_by_sweep(path: Path = FOUND) -> Found:
    """By part and kind of device: ``date``, ``device`` and ``figure``; ``speed``, where that was measured."""
    found: Found = json.loads(path.read_text(encoding="utf-8"))
    return found


def day(part: str, device: str, in_code: str | None) -> str | None:
    """On which the part was last found right on that kind of device; None: never."""
    found = found_by_sweep().get(part, {}).get(device)
    return found["date"] if found is not None else in_code


def days_of(part: str, in_code: Mapping[str, str | None]) -> dict[str, str | None]:
    """By each kind of device that the part is made for, and ``WITHOUT`` one where that is known."""
    without = None if "cpu" in in_code else day(part, "cpu", None)
    days = {device: day(part, device, in_code[device]) for device in DEVICES if device in in_code}
    return days if without is None else {WITHOUT: without, **days}


def with_rows(known: Found, rows: Sequence[Mapping[str, Any]], device: str) -> Found:
    """``known`` after a sweep of ``device``: a part is proven by the rows that name it under ``proves``, where one
    passed and none failed, on the day and the machine of the latest; one that failed is not proven there any longer.

    Whether it is right and whether it is fast are two questions: what rows that name it under ``speed_of`` found stands
    next to the mark of a proven part, and takes nothing from it.
    """
    found = {part: dict(devices) for part, devices in known.items()}
    for part in dict.fromkeys(part for row in rows for part in row.get("proves", ())):
        of_part = [row for row in rows if part in row.get("proves", ())]
        passed = [row for row in of_part if row["result"] == "pass"]
        if any(row["result"] == "fail" for row in of_part):
            found.get(part, {}).pop(device, None)
        elif passed:
            last = _latest(passed)
            figure = f"{last['row']}: {last['figure']}"
            found.setdefault(part, {})[device] = {"date": last["date"], "device": last["machine"], "figure": figure}
    for part in dict.fromkeys(part for row in rows for part in row.get("speed_of", ())):
        measured = [row for row in rows if part in row.get("speed_of", ()) and row["result"] != "skip"]
        if measured and device in found.get(part, {}):
            last = _latest(measured)
            kept = "" if last["result"] == "pass" else "not as claimed: "
            found[part][device] = {**found[part][device], "speed": f"{kept}{last['figure']}"}
    return {part: found[part] for part in sorted(found) if found[part]}


def _latest(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return sorted(rows, key=lambda row: row["date"])[-1]


@cache
def marked_parts(folder: Path = Path(__file__).parents[1]) -> tuple[Mark, ...]:
    """The marks of all modules below ``folder``, sorted by part. They are read, not imported: most need torch."""
    files = (path for path in folder.rglob("*.py") if "\nPROVEN = " in path.read_text(encoding="utf-8"))
    return tuple(sorted((mark for path in files for mark in _marks_in(path)), key=lambda mark: mark.part))


def _marks_in(path: Path) -> Iterator[Mark]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="PROVEN")], value=ast.Call(keywords=keywords)):
                given = {str(word.arg): ast.literal_eval(word.value) for word in keywords}
                part = str(given.pop("part"))
                yield Mark(part=part, days=days_of(part, given))
