"""Journals that somebody made or changed on purpose: each is shown, or refused in a line; none is run, none hangs."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.journal.journal_records import KEY, header, trial
from togi.cli.app import run
from togi.core.errors import JournalError
from togi.journal import Journal
from togi.journal.database import checksum

Attack = Callable[[sqlite3.Connection, random.Random], None]
STEERING = "\x1b[2J\u202e\x9b\n::error::x\r##[error]"
VALUES: list[Any] = [None, -1, 0, 2**70, 1e308, "Infinity", "NaN", [], {}, "x" * 100_000, STEERING, True, [[[]]] * 3]


def places(record: Any) -> Iterator[tuple[Any, Any]]:
    """Each container with each key that it has."""
    keys = list(record) if isinstance(record, dict) else range(len(record)) if isinstance(record, list) else ()
    for key in keys:
        yield record, key
        yield from places(record[key])


def rewritten(change: Callable[[Any, random.Random], None], tables: tuple[str, ...] = ("studies", "trials")) -> Attack:
    """With checksums that are right."""

    def attack(connection: sqlite3.Connection, dice: random.Random) -> None:
        for table in tables:
            names = ("id", "key") if table == "studies" else ("study", "recipe")
            query = f"SELECT number, {', '.join(names)}, record FROM {table}"
            for number, first, second, record in connection.execute(query).fetchall():
                document = json.loads(record)
                change(document, dice)
                text = json.dumps(document)
                values = (text, checksum(first, second, text), number)
                connection.execute(f"UPDATE {table} SET record = ?, checksum = ? WHERE number = ?", values)

    return attack


def other_value(document: Any, dice: random.Random) -> None:
    container, key = dice.choice(list(places(document)))
    container[key] = dice.choice(VALUES)


def unknown_field(document: Any, dice: random.Random) -> None:
    container = dice.choice([document, *(c[k] for c, k in places(document) if isinstance(c[k], dict))])
    container["unknown"] = dice.choice(VALUES)


def steering_texts(document: Any, _: random.Random) -> None:
    for container, key in list(places(document)):
        if isinstance(container[key], str) and key in ("subject", "verdict", "reason", "module_class", "cpu_model"):
            container[key] = STEERING


def sql(*statements: str) -> Attack:
    return lambda connection, _: [connection.execute(one) for one in statements][:0] and None


FOR_EVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
ATTACKS: dict[str, Attack] = {
    "another value": rewritten(other_value),
    "an unknown field": rewritten(unknown_field),
    "texts that steer": rewritten(steering_texts),
    "a view without an end": sql(
        "DROP TABLE studies",
        f"CREATE VIEW studies AS {FOR_EVER} i AS number, 'a' AS id, 'b' AS key, 'c' AS record FROM n",
    ),
    "a trigger": sql("CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM studies; END"),
    "a column that is computed": sql("ALTER TABLE trials ADD COLUMN x AS (abs(-9223372036854775808))"),
    "numbers for texts": sql("UPDATE trials SET record = 5", "UPDATE studies SET key = x'ff'"),
    "checksums of text": sql("UPDATE studies SET checksum = 'x'"),
    "claims that are none": sql("INSERT INTO claims SELECT id, 'x', '[]' FROM studies"),
    "another version": sql("PRAGMA user_version = 99"),
    "the writing of tables": sql(
        "PRAGMA writable_schema = ON", "UPDATE sqlite_master SET sql = 'x' WHERE name = 'trials'"
    ),
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with Journal.open(tmp_path / "j.sqlite") as journal:
        log = journal.study(KEY, header())
        for number in range(3):
            log.append(trial(number))
    return tmp_path / "j.sqlite"


def assert_shown_or_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--list"], [], ["--json"], ["--html", "page.html", "--force"], ["--list", "--json"]):
        code = run(["report", "--journal", str(path), *arguments])
        printed = capsys.readouterr()
        assert code in (0, 1, 2), printed.err
        steering = {char for char in printed.out + printed.err if unicodedata.category(char) in ("Cc", "Cf", "Cs")}
        assert steering <= {"\n"}
        assert not any(line.lstrip().startswith("::") for line in (printed.out + printed.err).splitlines())
        assert code != 2 or len(printed.err.splitlines()) == 1
    try:
        with Journal.open(path) as journal:
            log = journal.study(KEY, header())
            log.news()
            log.claimed()
            log.claim(trial(7).recipe)
            journal.earlier(lambda _: True, but=log.id)
    except JournalError:
        pass


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("seed", range(2))
def test_a_journal_with_hostile_contents_is_shown_or_refused(
    name: str, seed: int, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        try:
            ATTACKS[name](connection, random.Random(seed))
        except sqlite3.Error:
            pytest.skip("SQLite itself refuses this")
    assert_shown_or_refused(path, capsys)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(40))
def test_contents_drawn_by_chance(seed: int, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dice = random.Random(seed)
    change = dice.choice([other_value, other_value, other_value, unknown_field])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        rewritten(change, (dice.choice(["studies", "trials"]),))(connection, dice)
    assert_shown_or_refused(path, capsys)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "link", "text"])
def test_what_is_not_a_file_of_a_journal(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "j.sqlite"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "link":
            path.symlink_to("j.sqlite")
        case _:
            path.write_text(STEERING, encoding="utf-8")
    assert run(["report", "--journal", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(JournalError):
        Journal.open(path)


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_one_that_others_can_write_is_read_but_not_used(suffix: str, path: Path) -> None:
    path.chmod(0o666)
    with Journal.open(path, read_only=True) as journal:
        assert len(journal.read().trials) == 3
    path.chmod(0o600)
    written = Path(f"{path}{suffix}")
    written.touch()
    written.chmod(0o666)
    with pytest.raises(JournalError, match="can be written by others: chmod go-w"):
        Journal.open(path)
    assert run(["report", "--journal", str(path), "--repro", "out", "--recipe", trial(1).recipe.id]) == 2
    assert not Path("out").exists()


def test_one_of_another_user_is_not_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12_345)
    with pytest.raises(JournalError, match="belongs to another user"):
        Journal.open(path)


@pytest.mark.parametrize("umask", [0o002, 0o000])
def test_its_own_is_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        for _ in range(2):
            with Journal.open(tmp_path / "new" / "j.sqlite") as journal:
                journal.study(KEY, header())
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "j.sqlite").stat().st_mode & 0o777 == 0o600
