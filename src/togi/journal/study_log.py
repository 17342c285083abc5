"""One study in a journal: its trials, who is working on which recipe, and what was decided."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from togi.core.errors import JournalError
from togi.core.records import Recipe, Study, Trial
from togi.journal.failures import explained
from togi.journal.owner import Owner
from togi.journal.schema import checksum, damaged


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

    def verified(self, record: str, found: int, *fields: str) -> str:
        """``record``, when it is what was written. Raises JournalError when a byte of it has changed since."""
        if not isinstance(record, str) or checksum(*fields, record) != found:
            raise JournalError(damaged(self.path, "a record does not match its checksum"))
        return record


class StudyLog:
    """Appends to one study and reads it back. Made by ``Journal.study``."""

    def __init__(self, database: Database, study: Study, notes: tuple[str, ...] = ()) -> None:
        self.header = study
        """The study as it was begun: no trials in it."""
        self.notes = notes
        """What the user should know, e.g. that trials of another machine were found and are not used."""
        self._database = database
        self._owner = Owner.here()
        self._seen = 0

    @property
    def id(self) -> str:
        return self.header.id

    def append(self, trial: Trial) -> None:
        """Record a finished trial and give up the claim on its recipe. It is on disk when this returns.

        Raises JournalError (full disk, locked, damaged); the trial is then not recorded and everything before it is.
        """
        record, recipe = trial.to_json(), trial.recipe.id
        with self._database.writing() as connection:
            connection.execute(
                "INSERT INTO trials (study, recipe, record, checksum) VALUES (?, ?, ?, ?)",
                (self.id, recipe, record, checksum(self.id, recipe, record)),
            )
            self._give_up(connection, recipe)

    def trials(self) -> list[Trial]:
        """All trials so far, also those of other processes, in the order in which they ended."""
        return self._read(after=0)

    def news(self) -> list[Trial]:
        """The trials appended by anybody since the last ``trials()`` or ``news()``."""
        return self._read(after=self._seen)

    def decide(self, study: Study) -> None:
        """Record what was concluded (finalists, best, verdict). The last decision counts; earlier ones stay."""
        record = study.model_copy(update={"id": self.id, "trials": ()}).to_json()
        with self._database.writing() as connection:
            connection.execute(
                "INSERT INTO decisions (study, record, checksum) VALUES (?, ?, ?)",
                (self.id, record, checksum(self.id, record)),
            )

    def study(self) -> Study:
        """Header, trials and last decision in one record."""
        return read_study(self._database, self.header)

    def claim(self, recipe: Recipe, *, again: bool = False) -> bool:
        """Ask to work on ``recipe``. False: another living process does, or (unless ``again``) it has been finished.

        A claim ends with ``append`` or ``release``, and with the life of its process.
        """
        with self._database.writing() as connection:
            if not again and self._finished(connection, recipe.id):
                return False
            if self._holder(connection, recipe.id) is not None:
                return False
            connection.execute(
                "INSERT OR REPLACE INTO claims (study, recipe, owner) VALUES (?, ?, ?)",
                (self.id, recipe.id, self._owner.to_json()),
            )
            return True

    def release(self, recipe: Recipe) -> None:
        """Give up a claim without a trial (interrupted)."""
        with self._database.writing() as connection:
            self._give_up(connection, recipe.id)

    def claimed(self) -> frozenset[str]:
        """Ids of the recipes that other living processes are working on now."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT recipe, owner FROM claims WHERE study = ?", (self.id,)).fetchall()
        return frozenset(recipe for recipe, owner in rows if self._is_other(owner))

    def _read(self, after: int) -> list[Trial]:
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT number, recipe, record, checksum FROM trials WHERE study = ? AND number > ? ORDER BY number",
                (self.id, after),
            ).fetchall()
        self._seen = rows[-1][0] if rows else self._seen
        verified = self._database.verified
        return [Trial.from_json(verified(record, found, self.id, recipe)) for _, recipe, record, found in rows]

    def _finished(self, connection: sqlite3.Connection, recipe: str) -> bool:
        query = "SELECT 1 FROM trials WHERE study = ? AND recipe = ?"
        return connection.execute(query, (self.id, recipe)).fetchone() is not None

    def _holder(self, connection: sqlite3.Connection, recipe: str) -> str | None:
        row = connection.execute(
            "SELECT owner FROM claims WHERE study = ? AND recipe = ?", (self.id, recipe)
        ).fetchone()
        return row[0] if row and self._is_other(row[0]) else None

    def _is_other(self, owner: str) -> bool:
        holder = Owner.from_json(owner)
        return holder.token != self._owner.token and holder.alive

    def _give_up(self, connection: sqlite3.Connection, recipe: str) -> None:
        row = connection.execute(
            "SELECT owner FROM claims WHERE study = ? AND recipe = ?", (self.id, recipe)
        ).fetchone()
        if row and Owner.from_json(row[0]).token == self._owner.token:
            connection.execute("DELETE FROM claims WHERE study = ? AND recipe = ?", (self.id, recipe))


def read_study(database: Database, header: Study) -> Study:
    """The whole study: the last decision (else the header) with all trials."""
    with database.reading() as connection:
        row = connection.execute(
            "SELECT record, checksum FROM decisions WHERE study = ? ORDER BY number DESC LIMIT 1", (header.id,)
        ).fetchone()
    decided = Study.from_json(database.verified(row[0], row[1], header.id)) if row else header
    return decided.model_copy(update={"trials": (*StudyLog(database, header).trials(), *decided.excluded)})
