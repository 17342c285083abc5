"""The journal file: opening it safely, finding the study that a command goes on with, reading studies back.

Durability: every append is one transaction with ``synchronous=FULL`` in WAL mode, so it is on disk when ``append``
returns; a process killed at any moment loses nothing that it had appended (https://www.sqlite.org/wal.html).
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version
from typing_extensions import Self

from togi.core.caches import check_own
from togi.core.errors import JournalError, nearest
from togi.core.plain_files import read_plain
from togi.core.records import Facts, Record, Study, now
from togi.core.settings import Settings
from togi.core.version import version
from togi.journal.database import (
    BUSY_TIMEOUT_S,
    MAGIC,
    Database,
    ErrorCode,
    check_journal,
    checksum,
    code_of,
    create_tables,
    damaged,
    explained,
    move_aside,
)
from togi.journal.study_log import NO_CONDITIONS, Conditions, StudyLog, read_study

FLEETING = frozenset(
    "machine latency_ms phases_ms denormals repeatable notes autograd_off export_error idle_rewrites flops "
    "winograd_flops".split()
)
"""Facts that may come out differently for the same subject, or that are compared on their own (the machine)."""

LOOKED_AT, REMEMBERED = 300, 40
"""So many of the newest studies are looked at for what they teach, and so many of those are read whole."""


def study_key(subject: str, facts: Facts, settings: Settings, fingerprint: str = "") -> str:
    """Names what a command studies, so that the same command finds its study again: in the same release of togi, since
    another one may mend what failed. The machine is added by ``study``.

    Args:
        settings: of which those count that change what a trial shows (seed, allowed error, ...); not the time limit or
            the effort, so that a study can be continued with more of either.
        fingerprint: digest of weights and inputs, where the subject's name does not pin them (a live module).
    """
    lasting = facts.model_dump(mode="json", exclude=set(FLEETING))
    release = Version(version()).base_version
    text = json.dumps([release, subject, lasting, settings.as_json(lasting=True), fingerprint], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Earlier:
    """Earlier studies."""

    studies: tuple[Study, ...]
    """Those that count, with their trials, the newest first."""
    left_out: int
    """How many do not count."""
    unreadable: int


class StudyEntry(Record):
    """One line of the journal's table of contents."""

    id: str
    subject: str
    started: str
    trials: int
    verdict: str
    part: bool = False
    """It is of a part of a program, whose own study says what became of it."""


class Journal:
    """One file, many studies. Use it as a context manager, or ``close()`` it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, path: str | Path, *, create: bool = True, read_only: bool = False) -> Self:
        """Open a journal, or make one (with its folder) where there is none.

        Raises JournalError for a missing file (without ``create``), a damaged one, one of another schema version or of
        another program, and a folder that cannot be written. A file that cannot be used is left exactly as it is.
        """
        path = Path(path)
        with explained(path):
            exists = path.exists() and path.stat().st_size > 0
            if not exists and _pending(path):
                raise JournalError(damaged(path, "it is empty, but its write-ahead log is not"))
            if not exists and (read_only or not create):
                raise JournalError(f"there is no journal at {path}. 'togi tune' makes one.")
            if exists:
                if not read_only:
                    check_own_journal(path)
                _check(path)
            connection = connect_read_only(path) if read_only else _connect(path)
        return cls(Database(connection, path))

    @property
    def path(self) -> Path:
        return self._database.path

    def close(self) -> None:
        self._database.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def study(
        self, key: str, header: Study, *, fresh: bool = False, conditions: Conditions = NO_CONDITIONS
    ) -> StudyLog:
        """The newest study with this key on a machine like ``header``'s, or a new one (always new with ``fresh``).

        Studies with this key on other machines are never continued; the log's ``notes`` say that they exist.
        ``conditions``: trials under others are left out.
        """
        with self._database.writing() as connection:
            query = "SELECT id, key, record, checksum FROM studies WHERE key = ? ORDER BY number DESC"
            studies = [self._header(row) for row in connection.execute(query, (key,))]
            here = header.facts.machine
            same = [study for study in studies if not study.facts.machine.differences(here)]
            notes = tuple(_elsewhere(study, header) for study in studies if study not in same)
            study = same[0] if same and not fresh else self._insert(connection, key, header, len(studies))
        return StudyLog(self._database, study, notes, conditions)

    def studies(self) -> list[StudyEntry]:
        """What the journal holds, the newest first."""
        return [self._entry(header) for header in self._headers()]

    def read(self, id: str | None = None) -> Study:
        """A study with its trials: by id, by the first digits of its id, or the newest that is not of a program's part.

        Raises JournalError when there is none such, or several.
        """
        headers = {header.id: header for header in self._headers()}
        whole = [study_id for study_id, header in headers.items() if not header.facts.part]
        matches = whole[:1] if id is None else [study_id for study_id in headers if study_id.startswith(id)]
        if len(matches) != 1:
            problem = "is empty" if not headers else f"holds {len(matches) or 'no'} studies '{id}'"
            raise JournalError(
                f"{self.path} {problem}{nearest(id or '', headers) or '.'} 'togi report --list' lists its studies."
            )
        return read_study(self._database, headers[matches[0]])

    def earlier(self, counts: Callable[[Study], bool], *, but: str) -> Earlier:
        """What earlier studies may teach a new one, whose id is ``but``. Nothing is raised for a damaged study.

        ``counts`` is given each study as it was begun, without trials.
        """
        query = "SELECT id, key, record, checksum FROM studies WHERE id != ? ORDER BY number DESC LIMIT ?"
        with self._database.reading() as connection:
            rows = connection.execute(query, (but, LOOKED_AT)).fetchall()
        relevant: list[Study] = []
        left_out = unreadable = 0
        for row in rows:
            try:
                header = self._header(row)
                if not counts(header):
                    left_out += 1
                elif trials := StudyLog(self._database, header).trials():
                    relevant.append(header.model_copy(update={"trials": tuple(trials)}))
            except (JournalError, ValueError):  # of a row that changed, of a record that another togi wrote
                unreadable += 1
            if len(relevant) == REMEMBERED:
                break
        return Earlier(tuple(relevant), left_out, unreadable)

    def _entry(self, header: Study) -> StudyEntry:
        study = read_study(self._database, header)
        return StudyEntry(
            id=study.id,
            subject=study.subject,
            started=study.started,
            trials=len(study.trials) - len(study.excluded),
            verdict=study.verdict,
            part=study.facts.part,
        )

    def _headers(self) -> list[Study]:
        """Of all studies, the newest first."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT id, key, record, checksum FROM studies ORDER BY number DESC").fetchall()
        return [self._header(row) for row in rows]

    def _header(self, row: tuple[str, str, str, int]) -> Study:
        id, key, record, digest = row
        return self._database.verified(Study, record, digest, id, key)

    def _insert(self, connection: sqlite3.Connection, key: str, header: Study, ordinal: int) -> Study:
        """``ordinal`` keeps ids of repeated studies apart."""
        digest = hashlib.sha256(f"{key} {ordinal} {header.facts.machine.to_json()}".encode()).hexdigest()
        started = header.started or now()
        study = header.model_copy(update={"id": digest[:12], "started": started, "trials": ()})
        record = study.to_json()
        connection.execute(
            "INSERT INTO studies (id, key, record, checksum) VALUES (?, ?, ?, ?)",
            (study.id, key, record, checksum(study.id, key, record)),
        )
        return study


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, also on a read-only medium.

    Reading a WAL database needs its index file; where that cannot be made, and no log is pending, the file is read as
    immutable (https://www.sqlite.org/wal.html#read_only_databases).
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if code_of(error) != ErrorCode.CANTOPEN or _pending(path):
            raise
        return sqlite3.connect(f"{uri}&immutable=1", uri=True, isolation_level=None, check_same_thread=False)
    except BaseException:
        connection.close()
        raise
    return connection


def check_own_journal(path: Path) -> None:
    """Raises JournalError where others could have written it: what it holds is believed, and its subjects are run."""
    try:
        for file in (path, Path(f"{path}-wal")):
            if file.exists():
                check_own(file)
    except PermissionError as error:
        raise JournalError(f"{error}. Its studies are not used: name another journal with --journal") from None


def _pending(path: Path) -> bool:
    log = Path(f"{path}-wal")
    return log.exists() and log.stat().st_size > 0


def _check(path: Path) -> None:
    """Look before touching: through a read-only connection, so that a damaged file keeps every byte."""
    if read_plain(path, len(MAGIC)) != MAGIC:
        raise JournalError(
            f"{path} is not a journal (no SQLite header: it is another kind of file, or its beginning is damaged). "
            f"It was kept as it is. Name another file, or put this one away: {move_aside(path)}"
        )
    try:
        connection = connect_read_only(path)
    except sqlite3.OperationalError as error:
        if code_of(error) != ErrorCode.READONLY:
            raise
        # Somebody was killed in the midst of a write, and SQLite has to take it back before anybody can read.
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        check_journal(connection, path)
    finally:
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")  # stays a rollback journal where WAL is not possible: as safe
        connection.execute("PRAGMA synchronous = FULL")
        create_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _elsewhere(study: Study, header: Study) -> str:
    different = "; ".join(study.facts.machine.differences(header.facts.machine))
    return (
        f"study {study.id} of the same subject was made under other conditions ({different}: 'here' is that study, "
        "'there' is this machine), so its trials are not used"
    )
