"""The tables of a journal, the check a file must pass before it is used, and the checksum every row carries."""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path

from togi.core.errors import JournalError
from togi.core.records import SCHEMA_VERSION

APPLICATION_ID = 0x746F6769
"""``togi`` in ASCII: marks an SQLite file as a journal (https://www.sqlite.org/pragma.html#pragma_application_id)."""

MAGIC = b"SQLite format 3\x00"

TABLES = """
CREATE TABLE studies (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, key TEXT NOT NULL,
    record TEXT NOT NULL, checksum INTEGER NOT NULL
);
CREATE INDEX studies_by_key ON studies (key);
CREATE TABLE trials (
    number INTEGER PRIMARY KEY, study TEXT NOT NULL, recipe TEXT NOT NULL,
    record TEXT NOT NULL, checksum INTEGER NOT NULL
);
CREATE INDEX trials_by_study ON trials (study, recipe);
CREATE TABLE decisions (
    number INTEGER PRIMARY KEY, study TEXT NOT NULL, record TEXT NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE claims (
    study TEXT NOT NULL, recipe TEXT NOT NULL, owner TEXT NOT NULL, PRIMARY KEY (study, recipe)
);
"""
"""Rows of studies, trials and decisions are only ever added. Claims come and go: they are not a record of anything."""


def checksum(*fields: str) -> int:
    """CRC-32 of a row's text: SQLite itself does not notice a byte that changed inside a value."""
    return zlib.crc32("\x00".join(fields).encode())


def create(connection: sqlite3.Connection) -> None:
    """Make the tables if the file has none. Safe when two processes do it at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not is_journal(connection):
            for statement in filter(str.strip, TABLES.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def is_journal(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)


def is_blank(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0)


def check(connection: sqlite3.Connection, path: Path) -> None:
    """That the file is an undamaged journal of this schema version (a blank database is fine too).

    Raises JournalError that names the mend. The file is only read.
    """
    if not is_journal(connection):
        if is_blank(connection):
            return
        raise JournalError(f"{path} is an SQLite database of another program. Nothing was changed; name another file.")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise JournalError(other_version(path, version))
    problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise JournalError(damaged(path, problem.splitlines()[-1]))


def other_version(path: Path, version: int) -> str:
    age = "a newer" if version > SCHEMA_VERSION else "an older"
    return (
        f"{path} is a journal of schema version {version}, written by {age} togi; this one reads version "
        f"{SCHEMA_VERSION}. Nothing was changed. Use that togi, or start a new journal: {move_aside(path)}"
    )


def damaged(path: Path, problem: str) -> str:
    return (
        f"{path} is damaged ({problem}). It was kept as it is. To save what is still readable: "
        f"python -m togi.journal rescue '{path}' '{path}.rescued'. To start a new journal: {move_aside(path)}"
    )


def move_aside(path: Path) -> str:
    """The command that puts a journal away; the write-ahead log belongs to it."""
    return f'for f in \'{path}\' \'{path}-wal\'; do [ ! -e "$f" ] || mv "$f" "$f.old"; done'
