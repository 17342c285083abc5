"""Saves what can still be read of a damaged journal into a new one. The damaged file is only copied, never changed."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from togi.core.errors import JournalError, OutputExistsError
from togi.core.records import Record
from togi.journal.database import checksum, explained, shape

_COLUMNS = {
    "studies": ("id", "key", "record", "checksum"),
    "trials": ("study", "recipe", "record", "checksum"),
    "decisions": ("study", "record", "checksum"),
}


class Rescued(Record):
    """How much was saved. ``lost`` counts rows that were seen but could not be read or failed their checksum."""

    studies: int
    trials: int
    decisions: int
    lost: int


def rescue(damaged: str | Path, target: str | Path) -> Rescued:
    """Copy every row that still matches its checksum from ``damaged`` into a new journal ``target``.

    Raises OutputExistsError when ``target`` is there, JournalError when nothing can be read or nothing can be written.
    """
    from togi.journal.store import Journal

    damaged, target = Path(damaged), Path(target)
    if target.exists():
        raise OutputExistsError(f"{target} exists already and is not overwritten: name another file")
    rows, lost = _salvage(damaged)
    if not rows["studies"]:
        raise JournalError(f"no study can be read from {damaged} any more. It was kept as it is; start a new journal.")
    with Journal.open(target) as journal, journal._database.writing() as connection:
        for table, columns in _COLUMNS.items():
            marks = ", ".join("?" * (len(columns) + 1))
            connection.executemany(f"INSERT INTO {table} (number, {', '.join(columns)}) VALUES ({marks})", rows[table])
    counts = {table: len(readable) for table, readable in rows.items()}
    return Rescued(**counts, lost=lost)


def _salvage(damaged: Path) -> tuple[dict[str, list[tuple[Any, ...]]], int]:
    """Works on a copy with its log: reading a database with a log may write to it."""
    rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in _COLUMNS}
    lost = 0
    with tempfile.TemporaryDirectory() as folder, explained(damaged):
        copy = Path(folder) / "copy"
        for suffix in ("", "-wal"):
            if (source := Path(f"{damaged}{suffix}")).exists():
                shutil.copyfile(source, f"{copy}{suffix}")
        for table, columns in _COLUMNS.items():
            for row in _readable(copy, table, columns):
                if row is not None and _intact(row):
                    rows[table].append(row)
                else:
                    lost += 1
            rows[table].sort(key=lambda row: int(row[0]))
    return rows, lost


def _readable(copy: Path, table: str, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...] | None]:
    """Rows from both ends towards the damage: a table scan stops at the first broken page. None marks the break."""
    query = f"SELECT number, {', '.join(columns)} FROM {table} NOT INDEXED ORDER BY number"
    seen: set[int] = set()
    for direction in ("ASC", "DESC"):
        connection = sqlite3.connect(copy, isolation_level=None)
        try:
            if ("table", table) not in {(kind, name) for kind, name, sql in shape(connection) if "VIRTUAL" not in sql}:
                return
            for row in connection.execute(f"{query} {direction}"):
                if row[0] not in seen:
                    seen.add(row[0])
                    yield row
            return
        except (sqlite3.Error, OverflowError, UnicodeDecodeError):
            if direction == "DESC":
                yield None
        finally:
            connection.close()


def _intact(row: tuple[Any, ...]) -> bool:
    _number, *fields, digest = row
    return all(isinstance(field, str) for field in fields) and checksum(*fields) == digest
