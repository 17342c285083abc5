"""The database file of a journal: its tables, the check it must pass before it is used, whole transactions, a checksum
on every row, and errors that say what happened and what to do."""

from __future__ import annotations

import functools
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import IntEnum
from pathlib import Path
from threading import RLock
from typing import TypeVar

from togi.core.errors import JournalError
from togi.core.quantities import first_line
from togi.core.record import Record

Kept = TypeVar("Kept", bound=Record)
BUSY_TIMEOUT_S = 30.0
APPLICATION_ID = 0x746F6769
"""``togi`` in ASCII: marks an SQLite file as a journal (https://www.sqlite.org/pragma.html#pragma_application_id)."""

JOURNAL_VERSION = 3
"""Raised when records or keys of earlier journals are no longer read."""

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


def create_tables(connection: sqlite3.Connection) -> None:
    """Make the tables if the file has none. Safe when two processes do it at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not is_journal(connection):
            for statement in filter(str.strip, TABLES.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {JOURNAL_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def is_journal(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)


def shape(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Type, name and definition of all that the file defines itself."""
    query = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    return {(kind, name, " ".join(str(sql).split())) for kind, name, sql in connection.execute(query)}


@functools.cache
def _shape_of_journals() -> set[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES)
        return shape(connection)


def is_blank(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0)


def check_journal(connection: sqlite3.Connection, path: Path) -> None:
    """That the file is an undamaged journal of this schema version (a blank database is fine too).

    Raises JournalError that names the fix. The file is only read.
    """
    if not is_journal(connection):
        if is_blank(connection):
            return
        raise JournalError(f"{path} is an SQLite database of another program. Nothing was changed; name another file.")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != JOURNAL_VERSION:
        raise JournalError(other_version(path, version))
    if shape(connection) != _shape_of_journals():  # a view may compute for ever
        raise JournalError(damaged(path, "its tables are not those of a journal"))
    problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        raise JournalError(damaged(path, problem.splitlines()[-1]))


def other_version(path: Path, version: int) -> str:
    age = "a newer" if version > JOURNAL_VERSION else "an older"
    return (
        f"{path} is a journal of schema version {version}, written by {age} togi; this one reads version "
        f"{JOURNAL_VERSION}. Nothing was changed. Use that togi, or start a new journal: {move_aside(path)}"
    )


def damaged(path: Path, problem: str) -> str:
    return (
        f"{path} is damaged ({problem}). It was kept as it is. To save what is still readable: "
        f"python -P -m togi.journal rescue '{path}' '{path}.rescued'. To start a new journal: {move_aside(path)}"
    )


def move_aside(path: Path) -> str:
    """The command that puts a journal away; the write-ahead log belongs to it."""
    return f'for f in \'{path}\' \'{path}-wal\'; do [ ! -e "$f" ] || mv "$f" "$f.old"; done'


class Database:
    """A connection with whole transactions, usable from several threads of the process that opened it."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection = connection
        self.path = path
        self.lock = RLock()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self.lock, explained(self.path):
            yield self.connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; on disk when it ends. Raises JournalError and leaves the file as it was on any failure."""
        with self.lock, explained(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # SQLite rolls back on its own after a full disk
                    self.connection.execute("ROLLBACK")
                raise

    def verified(self, kind: type[Kept], record: str, digest: int, *fields: str) -> Kept:
        """``record``, when it is what was written. Raises JournalError when a byte of it has changed since, and for one
        that this togi cannot read."""
        if not all(isinstance(text, str) for text in (record, *fields)) or checksum(*fields, record) != digest:
            raise JournalError(damaged(self.path, "a record does not match its checksum"))
        return self.read(kind, record)

    def read(self, kind: type[Kept], record: str) -> Kept:
        """Raises JournalError for what is not a record of this kind."""
        try:
            return kind.from_json(record)
        except ValueError as error:
            problem = f"a record in it is not a {kind.__name__} that this togi knows: {first_line(error)}"
            raise JournalError(damaged(self.path, problem)) from None


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and of the file system into ``JournalError`` with the fix."""
    try:
        yield
    except sqlite3.Error as error:
        raise JournalError(_message(path, error)) from error
    except UnicodeDecodeError as error:  # of text in the file, or of SQLite's message that quotes it
        raise JournalError(damaged(path, "text in it is not UTF-8")) from error
    except OSError as error:
        raise JournalError(
            f"{path} cannot be used as a journal: {error.strerror or error}. Name a file in a folder you can write to."
        ) from error


class ErrorCode(IntEnum):
    """SQLite's primary result codes that togi answers (https://www.sqlite.org/rescode.html)."""

    PERM, BUSY, LOCKED, READONLY, CORRUPT, FULL, CANTOPEN, FORMAT, NOTADB = 3, 5, 6, 8, 11, 13, 14, 24, 26


def code_of(error: sqlite3.Error) -> int:
    """The primary result code, without the byte that details it; 0 on Python 3.10, whose errors have none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _message(path: Path, error: sqlite3.Error) -> str:
    code = code_of(error)
    if code in (ErrorCode.CORRUPT, ErrorCode.NOTADB, ErrorCode.FORMAT):
        return damaged(path, str(error))
    if code == ErrorCode.FULL:
        return (
            f"the disk that holds {path} is full, so the last record could not be kept; everything before it is safe. "
            "Free some space and give the same command again: it goes on where it stopped."
        )
    if code in (ErrorCode.READONLY, ErrorCode.CANTOPEN, ErrorCode.PERM):
        return f"{path} cannot be written ({error}). Name a journal in a folder you can write to."
    if code in (ErrorCode.BUSY, ErrorCode.LOCKED):
        waited = f"{BUSY_TIMEOUT_S:.0f} s"
        return f"{path} has been locked by another process for {waited}. End that process, or name another journal."
    return f"{path}: {error}. Everything recorded before is safe; check the disk that holds it."
