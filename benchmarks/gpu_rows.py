"""Rows of ``python -m benchmarks.gpu``: read, merged with those of other calls, drawn as tables."""

from __future__ import annotations

import json
import math
import re
import statistics
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
OVER_BEST = " x over the best peer"
"""Ends the part of a figure that says how fast togi was, as a multiple of the fastest of its peers' speed."""
MEAN_X = 1.1
"""The least geometric mean of it over all models, on a GPU."""
COLUMNS = ("part", "row", "result", "figure", "bound", "seconds")


def skipped(part: str, why: str, seconds: float = 0.0, rows: str = "") -> Row:
    row = {"part": part, "row": process_of(rows), "result": "skip", "figure": why, "bound": ""}
    return {**row, "seconds": round(seconds, 1)}


def process_of(rows: str) -> str:
    """The name of the row of a process that was asked for these."""
    return f"{PROCESS} of {rows}" if rows else PROCESS


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


def mean_over_best(rows: Sequence[Row], models: Sequence[str]) -> Row | None:
    """The row of the geometric mean over the best peer of each of the models, once rows of one or several calls have
    raced all of them. A race that was lost counts as well."""
    of_device = [row for row in rows if row["device"] == rows[-1]["device"]]
    raced = {row["row"]: row for row in of_device if row["part"] == "tune" and row["row"] in models}
    found = {name: re.search(rf"([\d.]+){OVER_BEST}", row["figure"]) for name, row in raced.items()}
    times = {name: float(match[1]) for name, match in found.items() if match is not None}
    if len(times) < len(models):
        return None
    mean = math.exp(statistics.fmean(map(math.log, times.values())))
    slowest = min(times, key=lambda name: times[name])
    last = max(raced.values(), key=lambda row: row["date"])
    return {
        "part": "tune",
        "row": "geometric mean over the best peers",
        "result": "skip" if last["device"] == "cpu" else "pass" if mean >= MEAN_X else "fail",
        "figure": f"{mean:.2f} x over {len(times)} models, the least {times[slowest]:.2f} x of {slowest}",
        "bound": f"at least {MEAN_X:g} x on a GPU",
        "seconds": 0.0,
        **{name: last[name] for name in ("device", "machine", "date", "commit", "partial") if name in last},
    }


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
