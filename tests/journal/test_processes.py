"""Real processes: killed in the middle, and several at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.journal import journal_records
from tests.journal.journal_records import KEY, header, recipe, trial
from togi.journal import Journal
from togi.journal.study_log import ClaimHolder

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Start:
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, journal_records.__file__, *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("after", [0, 7, 23])
def test_killed_writer_loses_nothing_it_had_recorded(tmp_path: Path, start: Start, after: int) -> None:
    writer = start("write", tmp_path / "j.db")
    said = [int(writer.stdout.readline()) for _ in range(after + 1)]
    os.kill(writer.pid, signal.SIGKILL)
    said += [int(line) for line in writer.stdout.read().split("\n") if line]
    with Journal.open(tmp_path / "j.db") as journal:
        log = journal.study(KEY, header())
        recorded = log.trials()
        assert recorded[: len(said)] == [trial(n) for n in said]
        assert len(said) <= len(recorded) <= len(said) + 1  # killed between recording and saying so
        log.append(trial(len(recorded)))
    with Journal.open(tmp_path / "j.db") as journal:
        assert len(journal.read().trials) == len(recorded) + 1
        assert len(journal.studies()) == 1


def test_killed_while_it_makes_the_file(tmp_path: Path, start: Start) -> None:
    for number in range(4):
        path = tmp_path / f"j{number}.db"
        writer = start("write", path)
        while not path.exists():
            assert writer.poll() is None
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        with Journal.open(path) as journal:
            journal.study(KEY, header()).append(trial(10**6))
            assert journal.read().trials[-1] == trial(10**6)


def test_a_write_that_was_cut_off_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    with Journal.open(path) as journal:
        journal.study(KEY, header()).append(trial(1))
    code = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = DELETE")
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE half (x)")
connection.executemany("INSERT INTO half VALUES (?)", [("x" * 5000,)] * 200)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert Path(f"{path}-journal").stat().st_size > 0
    with Journal.open(path, read_only=True) as journal:
        assert journal.read().trials == (trial(1),)


def test_processes_at_once_share_one_study_and_do_nothing_twice(tmp_path: Path, start: Start) -> None:
    workers = [start("share", tmp_path / "j.db", 40) for _ in range(3)]
    done = [[int(line) for line in worker.communicate(timeout=60)[0].split()] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert sorted(n for numbers in done for n in numbers) == list(range(40))
    with Journal.open(tmp_path / "j.db") as journal:
        assert len(journal.studies()) == 1
        recorded = [t.recipe for t in journal.read().trials]
    assert sorted(r.id for r in recorded) == sorted(recipe(n).id for n in range(40))


def test_claim_ends_with_its_process(tmp_path: Path, start: Start) -> None:
    worker = start("claim", tmp_path / "j.db")
    assert worker.stdout.readline().strip() == "True"
    with Journal.open(tmp_path / "j.db") as journal:
        log = journal.study(KEY, header())
        assert not log.claim(recipe(1))
        assert log.claimed() == {recipe(1).id}
        os.kill(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
        assert log.claimed() == frozenset()
        assert log.claim(recipe(1))
        worker.wait()


def test_news_tells_what_others_appended(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j.db") as journal, Journal.open(tmp_path / "j.db") as other:
        mine, theirs = journal.study(KEY, header()), other.study(KEY, header())
        mine.append(trial(1))
        assert mine.trials() == [trial(1)]
        theirs.append(trial(2))
        mine.append(trial(3))
        assert mine.trials() == [trial(1), trial(2), trial(3)], "which hides no news"
        assert mine.news() == [trial(2)]
        assert mine.news() == []


def test_claims_within_one_process(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j.db") as journal:
        mine, theirs = journal.study(KEY, header()), journal.study(KEY, header())
        assert mine.claim(recipe(1))
        assert mine.claim(recipe(1))
        assert not theirs.claim(recipe(1))
        theirs.release(recipe(1))
        assert not theirs.claim(recipe(1))
        mine.release(recipe(1))
        assert theirs.claim(recipe(1))
        theirs.append(trial(1))
        assert not mine.claim(recipe(1))


def test_owner_elsewhere_lives_by_its_lease() -> None:
    here = ClaimHolder.here()
    assert here.alive
    assert not here.model_copy(update={"started": "1"}).alive
    elsewhere = here.model_copy(update={"place": "another container", "pid": 2**30})
    assert elsewhere.alive
    assert not elsewhere.model_copy(update={"since": here.since - 10_000}).alive
    assert not elsewhere.model_copy(update={"since": here.since + 10_000}).alive  # the clock has been put back
