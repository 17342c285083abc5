"""Rows of ``python -m benchmarks.gpu``: read, merged with those of other calls, drawn as tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""``part``, ``row``, ``result`` (pass, fail, skip), ``figure``, ``bound``, ``seconds``; ``device`` (cpu, cuda),
``machine``, ``date`` and ``commit`` of the run; ``beside``: others ran on the device meanwhile; ``partial``: the call
left rows out that it could have run; ``proves`` and ``speed_of``, the parts of ``togi.core.proven`` that it is evidence
for."""
PROCESS = "the process"
"""The row of a part that did not run to its end."""
BEGINS = "begins"
"""The key of a line by which a process says which row it is about to run, so that one that crashes is known."""
DEVICE_LOST = 86
"""The exit status of a process whose device answers nothing any more: its other rows go on in a fresh one."""
NO_DEVICE = "the device"
"""The row of a part that found no CUDA device."""
COLUMNS = ("part", "row", "result", "figure", "bound", "seconds")


def skipped(part: str, why: str, seconds: float = 0.0, rows: str = "") -> Row:
    name = f"{PROCESS} of {rows}" if rows else PROCESS
    row = {"part": part, "row": name, "result": "skip", "figure": why, "bound": ""}
    return {**row, "seconds": round(seconds, 1)}


def of_process(row: Row) -> bool:
    """It stands for rows that are not there."""
    return str(row["row"]).startswith(PROCESS)


def read_rows(path: Path) -> list[Row]:
    """Those of a file, none where there is no file. Of rows of several calls the last of a name count."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.strip()]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def done(rows: Sequence[Row], part: str) -> list[str]:
    """Names of the part's rows that need not be run again: they passed, or were skipped with a reason of their own."""
    last = {row["row"]: row for row in rows if row["part"] == part and not of_process(row)}
    return [name for name, row in last.items() if row["result"] in ("pass", "skip")]


def merged(known: Sequence[Row], found: Sequence[Row], order: Sequence[str]) -> list[Row]:
    """``known`` after a run that ``found`` these: a part that ran to its end, and was asked for whole, replaces all
    that is known of it; else each row replaces that of its name; one that had no time replaces nothing."""
    rows: list[Row] = []
    for part in order:
        old = [row for row in known if row["part"] == part]
        new = [row for row in found if row["part"] == part]
        rows += _of_part(old, new, whole=not any(of_process(row) or row.get("partial") for row in new))
    return rows


def _of_part(old: Sequence[Row], new: Sequence[Row], *, whole: bool) -> list[Row]:
    """A process that ended early is told of as long as no later call of its part ran to the end."""
    if not new or (old and all(of_process(row) and row["result"] == "skip" for row in new)):
        return list(old)
    kept = {} if whole else {row["row"]: row for row in old if not of_process(row)}
    return list((kept | {row["row"]: row for row in new}).values())


def table(rows: Sequence[Row], device: str) -> str:
    """One for each day and machine."""
    runs = sorted({f"{row['date']}, {row['machine']}" for row in rows if row["device"] == device})
    tables = []
    for run in runs:
        lines = [f"{run}:", "", f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
        of_run = [row for row in rows if f"{row['date']}, {row['machine']}" == run and row["device"] == device]
        lines += ["| " + " | ".join(_cell(row, column) for column in COLUMNS) + " |" for row in of_run]
        tables.append("\n".join(lines))
    return "\n\n".join(tables) + "\n"


def _cell(row: Row, column: str) -> str:
    beside = ", beside others" if column == "seconds" and row.get("beside") else ""
    return f"{row[column]}{beside}".replace("|", "\\|")
