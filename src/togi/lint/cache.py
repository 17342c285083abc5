"""The cache of findings, by content: one SQLite file per user.

A key is the hash of a file's path in its project and of its bytes, of the settings that rules see, and of the version
of the rules (the hash of togi.lint's own source, so that a developer of rules never sees stale findings). A damaged
cache is replaced; one that cannot be used (read-only, locked, disk full) is not used, and a note says so.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from togi.core.caches import check_own, private
from togi.core.version import version
from togi.lint.data.torch_names import behind_installed
from togi.lint.finding import FileReport
from togi.lint.rule import rule_kinds

KEPT_DAYS = 30
_SCHEMA = "CREATE TABLE IF NOT EXISTS reports (key BLOB PRIMARY KEY, report TEXT NOT NULL, day INTEGER NOT NULL)"
_DEFINED = "SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'"
_TIMEOUT_S = 2.0
_BATCH = 500


@functools.cache
def rules_version() -> bytes:
    """Changes with togi, any byte of togi.lint, Python (its parser decides what can be checked), and a later torch."""
    digest = hashlib.blake2b(f"{version()} {sys.version} {behind_installed()}".encode())
    folder = Path(__file__).parent
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.digest()


def cache_key(judged: str, data: bytes, hot: Sequence[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=20, key=rules_version())
    digest.update("\0".join((judged, *hot)).encode(errors="surrogateescape") + b"\0\0")
    digest.update(data)
    return digest.digest()


class Cache:
    """Reports by key. Never raises: what went wrong stands in ``problem``."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.problem = ""
        """Why it could not be used, if so."""

    def read(self, keys: Sequence[bytes]) -> dict[bytes, FileReport]:
        """Those of ``keys`` that are known."""
        texts: dict[bytes, str] = {}
        if self._path is None or not os.path.lexists(self._path):
            return {}
        try:
            with closing(self._open()) as database:
                if database.execute(_DEFINED).fetchall() not in ([], [(_SCHEMA.replace("IF NOT EXISTS ", ""),)]):
                    raise sqlite3.DatabaseError("it holds something else")  # a view may compute for ever
                for start in range(0, len(keys), _BATCH):
                    part = keys[start : start + _BATCH]
                    marks = ",".join("?" * len(part))
                    texts.update(database.execute(f"SELECT key, report FROM reports WHERE key IN ({marks})", part))
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
        return {key: report for key, text in texts.items() if (report := _report(text)) is not None}

    def write(self, reports: Mapping[bytes, FileReport]) -> None:
        if self._path is None or not reports:
            return
        today = int(time.time() // 86400)
        rows = [(key, report.kept(), today) for key, report in reports.items()]
        try:
            self._write(rows, today)
        except (sqlite3.Error, OSError) as error:
            # another run took the file for damaged and removed it
            removed = getattr(error, "sqlite_errorname", "") == "SQLITE_READONLY_DBMOVED"
            if not removed:
                self._failed(error)
            if removed or not isinstance(error, sqlite3.OperationalError):
                with suppress(sqlite3.Error, OSError):  # a second failure says nothing that the first did not
                    self._write(rows, today)

    def _write(self, rows: Iterable[tuple[bytes, str, int]], today: int) -> None:
        with closing(self._open()) as database, database:
            database.execute(_SCHEMA)
            database.execute("DELETE FROM reports WHERE day < ?", (today - KEPT_DAYS,))
            database.executemany("INSERT OR REPLACE INTO reports VALUES (?, ?, ?)", rows)

    def _open(self) -> sqlite3.Connection:
        """Raises OSError where others could have written it: findings that are missing there would stay hidden."""
        assert self._path is not None
        private(self._path.parent)
        with suppress(FileNotFoundError):
            check_own(self._path)
            if not stat.S_ISREG(self._path.lstat().st_mode):
                raise PermissionError(f"{self._path} is not a plain file")
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
        database = sqlite3.connect(str(self._path), timeout=_TIMEOUT_S)
        database.execute("PRAGMA synchronous = OFF")  # it may be lost: the next run makes a new one
        return database

    def _failed(self, error: Exception) -> None:
        """A damaged file is removed; the next writing makes a new one."""
        damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        if damaged or "no such" in str(error) or "has no column" in str(error):
            with suppress(OSError):
                assert self._path is not None
                self._path.unlink()
                return
        self.problem = f"the cache {self._path} could not be used ({error}): every file was checked again"


def _report(text: str) -> FileReport | None:
    try:
        report = FileReport.from_kept(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return report if all(finding.rule in rule_kinds() for finding in report.findings) else None
