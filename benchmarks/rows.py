"""Rows of figures in a file, which a benchmark of an hour measures one by one."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from togi.machine.describe import machine


def measured_here() -> str:
    """A row's ``measured``: on which machine, with which torch, and when."""
    here = machine()
    cores = f"{here.cpu_cores} cores of {here.cpu_model}"
    return f"{cores}, torch {here.versions['torch'].partition('+')[0]}, {datetime.date.today()}"


def measured_on(rows: Sequence[dict[str, Any]]) -> str:
    """Below a table."""
    return f"Measured on {'; '.join(sorted({row['measured'] for row in rows}))}."


def put_rows(path: Path, rows: Iterable[dict[str, Any]], by: str) -> None:
    """Write the rows into the file, in the place of those with the same ``by``, else after the others. A run that is
    ended meanwhile leaves the file as it was."""
    every = {row[by]: row for row in [*read_rows(path), *rows]}
    written = path.with_name(f"{path.name}.new")
    written.write_text(json.dumps([*every.values()], indent=1) + "\n", encoding="utf-8")
    written.replace(path)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Those of an earlier run; none where there is no file yet."""
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return rows
