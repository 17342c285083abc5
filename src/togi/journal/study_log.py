"""One study in a journal: its trials, who is working on which recipe, and what was decided."""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from togi.core.records import Recipe, Record, Study, Trial
from togi.journal.database import Database, checksum
from togi.machine.limits import ENDED_STATES, is_running, stat_fields

_UNDER = " under "
"""Between the id of a recipe and its conditions."""
LEASE_S = 3600.0
"""How long a claim counts when its process cannot be looked up from here (another host or container)."""


def _judged(trial: Trial) -> bool:
    return trial.judged


@dataclass(frozen=True)
class Conditions:
    """What else decides how trials of some recipes end: the data that these are calibrated on."""

    name: str = ""
    """Empty: nothing else does."""
    concern: Callable[[Recipe], bool] = lambda _: False


NO_CONDITIONS = Conditions()


class StudyLog:
    """Appends to one study and reads it back. Made by ``Journal.study``."""

    def __init__(
        self, database: Database, study: Study, notes: tuple[str, ...] = (), conditions: Conditions | None = None
    ) -> None:
        """``conditions``: trials under others are neither read nor in the way; None: those under which was decided last
        count."""
        self.header = study
        """The study as it was begun: no trials in it."""
        self.notes = notes
        """What the user should know, e.g. that trials of another machine were found and are not used."""
        self._database, self._conditions = database, conditions
        self._owner = ClaimHolder.here()
        self._seen = 0
        self._own: set[int] = set()

    @property
    def id(self) -> str:
        return self.header.id

    def append(self, trial: Trial) -> None:
        """Record a finished trial and give up the claim on its recipe. It is on disk when this returns.

        Raises JournalError (full disk, locked, damaged); the trial is then not recorded and everything before it is.
        """
        record, recipe = trial.to_json(), self._id(trial.recipe)
        with self._database.writing() as connection:
            inserted = connection.execute(
                "INSERT INTO trials (study, recipe, record, checksum) VALUES (?, ?, ?, ?)",
                (self.id, recipe, record, checksum(self.id, recipe, record)),
            )
            self._give_up(connection, recipe)
        assert inserted.lastrowid is not None
        self._own.add(inserted.lastrowid)

    def trials(self) -> list[Trial]:
        """All trials so far, also those of other processes, in the order in which they ended."""
        return [trial for _, trial in self._read(after=0)]

    def last(self, recipe: Recipe) -> Trial | None:
        """The last trial of ``recipe``, by whichever process."""
        return next((trial for trial in reversed(self.trials()) if trial.recipe == recipe), None)

    def news(self) -> list[Trial]:
        """The trials that others appended since the last ``news()``; at first, all that are there."""
        numbered = self._read(after=self._seen)
        self._seen = numbered[-1][0] if numbered else self._seen
        return [trial for number, trial in numbered if number not in self._own]

    def decide(self, study: Study) -> None:
        """Record what was concluded (finalists, best, verdict). The last decision counts; earlier ones stay."""
        record = study.model_copy(update={"id": self.id, "trials": ()}).to_json()
        with self._database.writing() as connection:
            connection.execute(
                "INSERT INTO decisions (study, record, checksum) VALUES (?, ?, ?)",
                (self.id, record, checksum(self.id, record)),
            )

    def decided(self) -> Study | None:
        """What was concluded last, without trials; None where nothing was."""
        query = "SELECT record, checksum FROM decisions WHERE study = ? ORDER BY number DESC LIMIT 1"
        with self._database.reading() as connection:
            row = connection.execute(query, (self.id,)).fetchone()
        return None if row is None else self._database.verified(Study, row[0], row[1], self.id)

    def calibration(self) -> str | None:
        """The name of the conditions that count: of the data that recipes are calibrated on. None: no trial tells."""
        if self._conditions is not None:
            return self._conditions.name
        decided = self.decided()
        if decided is not None and decided.calibration is not None:
            return decided.calibration
        return next((name for recipe in reversed(self._recipes()) if (name := _conditions_of(recipe))), None)

    def left_out(self) -> int:
        """How many trials are of recipes that were calibrated on other data."""
        counted = ("", self.calibration())
        return sum(_conditions_of(recipe) not in counted for recipe in self._recipes())

    def claim(self, recipe: Recipe, settled: Callable[[Trial], bool] = _judged) -> bool:
        """Ask to work on ``recipe``. False: another living process does, or it has been finished, as what the machine
        disturbed has not. ``settled``: whether a trial of it means that it was.

        A claim ends with ``append`` or ``release``, and with the life of its process.
        """
        with self._database.writing() as connection:
            recipe_id = self._id(recipe)
            if self._finished(connection, recipe_id, settled) or self._is_held(connection, recipe_id):
                return False
            connection.execute(
                "INSERT OR REPLACE INTO claims (study, recipe, owner) VALUES (?, ?, ?)",
                (self.id, recipe_id, self._owner.to_json()),
            )
            return True

    def release(self, recipe: Recipe) -> None:
        """Give up a claim without a trial (interrupted)."""
        with self._database.writing() as connection:
            self._give_up(connection, self._id(recipe))

    def claimed(self) -> frozenset[str]:
        """Ids of the recipes that other living processes are working on now."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT recipe, owner FROM claims WHERE study = ?", (self.id,)).fetchall()
        split = [(*recipe.partition(_UNDER), owner) for recipe, owner in rows]
        mine = ("", self._conditions.name) if self._conditions else ("",)
        return frozenset(recipe for recipe, _, name, owner in split if name in mine and self._is_other(owner))

    def _id(self, recipe: Recipe) -> str:
        """The recipe's, with its conditions."""
        conditions = self._conditions
        concerned = conditions is not None and conditions.name and conditions.concern(recipe)
        return f"{recipe.id}{_UNDER}{conditions.name}" if conditions and concerned else recipe.id

    def _read(self, after: int) -> list[tuple[int, Trial]]:
        """With their numbers."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT number, recipe, record, checksum FROM trials WHERE study = ? AND number > ? ORDER BY number",
                (self.id, after),
            ).fetchall()
        verified = self._database.verified
        found = [(row[0], row[1], verified(Trial, row[2], row[3], self.id, row[1])) for row in rows]
        if self._conditions is not None:
            return [(number, trial) for number, recipe, trial in found if recipe == self._id(trial.recipe)]
        counted = ("", self.calibration())
        return [(number, trial) for number, recipe, trial in found if _conditions_of(recipe) in counted]

    def _recipes(self) -> list[str]:
        """Of all trials in their order, with their conditions."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT recipe FROM trials WHERE study = ? ORDER BY number", (self.id,))
            return [str(recipe) for (recipe,) in rows]

    def _finished(self, connection: sqlite3.Connection, recipe: str, settled: Callable[[Trial], bool]) -> bool:
        row = connection.execute(
            "SELECT record, checksum FROM trials WHERE study = ? AND recipe = ? ORDER BY number DESC LIMIT 1",
            (self.id, recipe),
        ).fetchone()
        if row is None:
            return False
        return settled(self._database.verified(Trial, row[0], row[1], self.id, recipe))

    def _is_held(self, connection: sqlite3.Connection, recipe: str) -> bool:
        row = connection.execute(
            "SELECT owner FROM claims WHERE study = ? AND recipe = ?", (self.id, recipe)
        ).fetchone()
        return row is not None and self._is_other(row[0])

    def _is_other(self, owner: str) -> bool:
        holder = self._database.read(ClaimHolder, owner)
        return holder.token != self._owner.token and holder.alive

    def _give_up(self, connection: sqlite3.Connection, recipe: str) -> None:
        row = connection.execute(
            "SELECT owner FROM claims WHERE study = ? AND recipe = ?", (self.id, recipe)
        ).fetchone()
        if row and self._database.read(ClaimHolder, row[0]).token == self._owner.token:
            connection.execute("DELETE FROM claims WHERE study = ? AND recipe = ?", (self.id, recipe))


def read_study(database: Database, header: Study) -> Study:
    """The whole study: the last decision (else the header) with its trials: of recipes that calibrate, those on the
    data with which was decided last."""
    log = StudyLog(database, header)
    decided = log.decided() or header
    found = {"trials": (*log.trials(), *decided.excluded), "calibration": log.calibration(), "left_out": log.left_out()}
    return decided.model_copy(update=found)


def _conditions_of(recipe: str) -> str:
    """The name behind the id of a recipe; empty where nothing else decides how it ends."""
    return recipe.partition(_UNDER)[2]


class ClaimHolder(Record):
    """One holder of claims. A process id alone is not enough: ids are used again, and each container has its own."""

    pid: int
    started: str
    """Start time of the process in clock ticks since boot, so that a reused id is not taken for the same process."""
    place: str
    """Boot and process namespace: where ``pid`` means anything."""
    token: str
    """Tells apart several holders in one process."""
    since: float
    """Unix time, for the lease."""

    @classmethod
    def here(cls) -> ClaimHolder:
        pid = os.getpid()
        return cls(pid=pid, started=_started(pid), place=_place(), token=uuid.uuid4().hex, since=time.time())

    @property
    def alive(self) -> bool:
        if self.place != _place():
            return abs(time.time() - self.since) < LEASE_S  # also where the clock was put back since
        return is_running(self.pid) and _started(self.pid) == self.started


def _started(pid: int) -> str:
    """When a process was started, field 22 of its ``stat``. Empty for one that has ended, which must not count as
    alive, or where there is no ``/proc``."""
    fields = stat_fields(pid)
    return "" if not fields or fields[0] in ENDED_STATES else fields[19]


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename
