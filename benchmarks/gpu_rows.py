"""Rows of ``python -m benchmarks.gpu``: read, merged with those of other calls, drawn as tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""``part``, ``row``, ``result`` (pass, fail, skip), ``figure``, ``bound``, ``seconds``; ``device`` (cpu, cuda),
``machine`` and ``date`` of the run; ``proves``, the marks of ``togi.core.proven`` that it is evidence for."""
PROCESS = "the process"
"""The row of a part that did not run to its end."""
NO_DEVICE = "the device"
"""The row of a part that found no CUDA device."""
IN_PIECES = frozenset({"tune"})
"""Parts of which a call may run some rows alone."""
COLUMNS = ("part", "row", "result", "figure", "bound", "seconds")


def skipped(part: str, why: str, seconds: float = 0.0) -> Row:
    row = {"part": part, "row": PROCESS, "result": "skip", "figure": why, "bound": ""}
    return {**row, "seconds": round(seconds, 1)}


def read_rows(path: Path) -> list[Row]:
    """Those of a file, none where there is no file. Of rows of several calls the last of a part count."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.strip()]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def merged(known: Sequence[Row], found: Sequence[Row], order: Sequence[str]) -> list[Row]:
    """``known`` after a run that ``found`` these: a part that ran to its end replaces all that is known of it; of one
    that was ended before, or runs in pieces, each row replaces that of its name; one that had no time, nothing."""
    rows: list[Row] = []
    for part in order:
        old = [row for row in known if row["part"] == part]
        new = [row for row in found if row["part"] == part]
        rows += _of_part(old, new, whole=part not in IN_PIECES and all(row["row"] != PROCESS for row in new))
    return rows


def _of_part(old: Sequence[Row], new: Sequence[Row], *, whole: bool) -> list[Row]:
    if not new or (old and [(row["row"], row["result"]) for row in new] == [(PROCESS, "skip")]):
        return list(old)
    kept = {} if whole else {row["row"]: row for row in old if row["row"] != PROCESS}
    return list((kept | {row["row"]: row for row in new}).values())


def table(rows: Sequence[Row], device: str) -> str:
    """One for each day and machine."""
    runs = dict.fromkeys(f"{row['date']}, {row['machine']}" for row in rows if row["device"] == device)
    tables = []
    for run in runs:
        lines = [f"{run}:", "", f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
        of_run = [row for row in rows if f"{row['date']}, {row['machine']}" == run and row["device"] == device]
        lines += [
            "| " + " | ".join(str(row[column]).replace("|", "\\|") for column in COLUMNS) + " |" for row in of_run
        ]
        tables.append("\n".join(lines))
    return "\n\n".join(tables) + "\n"
