"""What SQLite and the file system can answer, as errors that say what happened and what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from togi.core.errors import JournalError
from togi.journal.schema import damaged

BUSY_TIMEOUT_S = 30.0


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and of the file system into ``JournalError`` with the mend."""
    try:
        yield
    except sqlite3.Error as error:
        raise JournalError(_message(path, error)) from error
    except OSError as error:
        raise JournalError(
            f"{path} cannot be used as a journal: {error.strerror or error}. Name a file in a folder you can write to."
        ) from error


def _message(path: Path, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code; the rest only details it
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT):
        return damaged(path, str(error))
    if code == sqlite3.SQLITE_FULL:
        return (
            f"the disk that holds {path} is full, so the last record could not be kept; everything before it is safe. "
            "Free some space and give the same command again: it goes on where it stopped."
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return f"{path} cannot be written ({error}). Name a journal in a folder you can write to."
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        waited = f"{BUSY_TIMEOUT_S:.0f} s"
        return f"{path} has been locked by another process for {waited}. End that process, or name another journal."
    return f"{path}: {error}. Everything recorded before is safe; check the disk that holds it."
