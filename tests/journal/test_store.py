from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.journal.journal_records import KEY, facts, header, machine, recipe, trial
from togi.core.errors import JournalError
from togi.core.settings import Settings
from togi.journal import Conditions, Journal, StudyLog, study_key
from togi.journal.database import JOURNAL_VERSION


def test_trials_come_back_whole_and_in_order(tmp_path: Path) -> None:
    written = [trial(n) for n in (3, 1, 2)]
    with Journal.open(tmp_path / "new" / "folder" / "j.db") as journal:
        log = journal.study(KEY, header())
        for t in written:
            log.append(t)
    with Journal.open(tmp_path / "new" / "folder" / "j.db") as journal:
        log = journal.study(KEY, header())
        assert log.trials() == written
        assert log.trials()[0].timing.rounds_ms == written[0].timing.rounds_ms


def test_same_key_goes_on_and_fresh_begins_again(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j.db") as journal:
        first = journal.study(KEY, header())
        first.append(trial(1))
        assert journal.study(KEY, header()).id == first.id
        assert journal.study("other", header()).id != first.id
        again = journal.study(KEY, header(), fresh=True)
        assert again.trials() == []
        assert journal.study(KEY, header()).id == again.id
        assert len(journal.read(first.id).trials) == 1


def test_another_machine_is_another_study_which_is_reported(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j.db") as journal:
        here = journal.study(KEY, header())
        here.append(trial(1))
        newer = header(facts=facts(machine=machine(versions={"torch": "2.16"})))
        there = journal.study(KEY, newer)
        assert there.id != here.id
        assert there.trials() == []
        assert len(there.notes) == 1
        assert here.id in there.notes[0]
        assert "2.15" in there.notes[0]
        assert journal.study(KEY, header()).id == here.id


def test_key_ignores_what_fleets_and_heeds_what_lasts() -> None:
    key = study_key("s", facts(latency_ms=1.0), Settings(seed=0))
    assert key == study_key("s", facts(latency_ms=2.0, machine=machine(cpu_cores=8)), Settings(seed=0))
    assert key == study_key("s", facts(), Settings(seed=0, effort="quick", time_limit_s=9))
    others = [
        study_key("t", facts(), Settings(seed=0)),
        study_key("s", facts(parameters=5), Settings(seed=0)),
        study_key("s", facts(), Settings(seed=1)),
        study_key("s", facts(), Settings(seed=0), fingerprint="weights"),
    ]
    assert key not in others
    assert len(set(others)) == 4


def test_a_release_of_togi_that_may_mend_what_failed_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for built in ("1.0", "1.1.dev3+g12ab", "1.1.dev9+g34cd", "1.1", "0+unknown"):
        monkeypatch.setattr("togi.journal.store.version", lambda built=built: built)
        keys.append(study_key("s", facts(), Settings()))
    assert keys[1] == keys[2] == keys[3], "a build of a release"
    assert len(set(keys)) == 3


def test_decision_is_kept_and_the_last_one_counts(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j.db") as journal:
        log = journal.study(KEY, header())
        log.append(trial(1))
        log.decide(log.header.model_copy(update={"verdict": "first"}))
        never_tried = (trial(2),)
        log.decide(log.header.model_copy(update={"verdict": "second", "best": recipe(1), "excluded": never_tried}))
        study = journal.read()
        assert (study.id, study.verdict, study.best) == (log.id, "second", recipe(1))
        assert study.trials == (trial(1), *never_tried)
        entry = journal.studies()[0]
        assert (entry.trials, entry.verdict, entry.subject) == (1, "second", "net.py:make")
        assert entry.started


def test_trials_under_other_conditions_are_done_anew_and_all_others_stay(tmp_path: Path) -> None:
    """As of data that a recipe was calibrated on."""
    exact, calibrated = trial(1), trial(2)

    def under(name: str) -> StudyLog:
        conditions = Conditions(name, lambda of: of == calibrated.recipe)
        return journal.study(KEY, header(), conditions=conditions)

    with Journal.open(tmp_path / "j.db") as journal:
        narrow = under("narrow")
        for done in (exact, calibrated):
            assert narrow.claim(done.recipe)
            narrow.append(done)
        wide, other = under("wide"), under("wide")
        assert wide.id == narrow.id
        assert wide.trials() == wide.news() == [exact]
        assert wide.last(calibrated.recipe) is None
        assert not wide.claim(exact.recipe)
        assert wide.claim(calibrated.recipe)
        assert not other.claim(calibrated.recipe)
        assert other.claimed() == {calibrated.recipe.id}
        assert narrow.claimed() == under("").claimed() == frozenset()
        again = calibrated.model_copy(update={"reason": "other data"})
        wide.append(again)
        assert under("wide").trials() == [exact, again]
        assert under("narrow").trials() == [exact, calibrated]
        undecided = journal.read(narrow.id)
        assert (undecided.trials, undecided.calibration, undecided.left_out) == ((exact, again), "wide", 1)


def test_a_study_that_is_read_shows_the_data_that_decided_last(tmp_path: Path) -> None:
    """A report with one recipe calibrated on two data would show two trials of it, and choose neither."""
    exact, calibrated = trial(1), trial(2)
    with Journal.open(tmp_path / "j.db") as journal:
        for name in ("narrow", "wide"):
            conditions = Conditions(name, lambda of: of == calibrated.recipe)
            log = journal.study(KEY, header(), conditions=conditions)
            log.append(calibrated.model_copy(update={"reason": name}))
            assert (log.calibration(), log.left_out()) == (name, ["narrow", "wide"].index(name))
        log.append(exact)

        def shown() -> tuple[list[str], int, int]:
            study = journal.read()
            (earlier,) = journal.earlier(lambda _: True, but="").studies
            assert earlier.trials == study.trials
            return [t.reason for t in study.trials if t.recipe == calibrated.recipe], len(study.trials), study.left_out

        assert shown() == (["wide"], 2, 1)
        narrow = journal.study(KEY, header(), conditions=Conditions("narrow", lambda of: of == calibrated.recipe))
        narrow.decide(narrow.header.model_copy(update={"verdict": "narrow", "calibration": narrow.calibration()}))
        assert shown() == (["narrow"], 2, 1)
        assert journal.studies()[0].trials == 2
        without = journal.study(KEY, header(), conditions=Conditions("", lambda of: of == calibrated.recipe))
        without.decide(without.header.model_copy(update={"calibration": without.calibration()}))
        assert shown() == ([], 1, 2)


def test_read_by_first_digits_and_unknown(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j.db") as journal:
        with pytest.raises(JournalError, match="is empty"):
            journal.read()
        id = journal.study(KEY, header()).id
        assert journal.read(id[:5]).id == id
        with pytest.raises(JournalError, match=f"did you mean '{id}'"):
            journal.read(id[:-1] + "_")


def test_the_newest_is_that_of_a_program_and_not_of_its_last_part(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j.db") as journal:
        whole = journal.study(KEY, header(subject="program")).id
        part = journal.study("part", header(subject="program[encoder]", facts=facts(part=True))).id
        assert journal.read().id == whole
        assert journal.read(part).subject == "program[encoder]"
        assert [entry.id for entry in journal.studies()] == [part, whole]


def test_read_only_changes_nothing_and_cannot_append(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    with Journal.open(path) as journal:
        journal.study(KEY, header()).append(trial(1))
    before = path.read_bytes()
    with Journal.open(path, read_only=True) as journal:
        assert len(journal.read().trials) == 1
        with pytest.raises(JournalError, match="cannot be written"):
            journal.study("new", header())
    assert path.read_bytes() == before


def test_missing_file_is_reported_where_one_must_exist(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal"):
        Journal.open(tmp_path / "none.db", create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("version", "age"), [(JOURNAL_VERSION - 1, "an older"), (JOURNAL_VERSION + 1, "a newer")])
def test_another_schema_version_is_refused_and_kept(tmp_path: Path, version: int, age: str) -> None:
    path = tmp_path / "j.db"
    with Journal.open(path) as journal:
        journal.study(KEY, header())
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {version}")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match=f"schema version {version}, written by {age} togi.*mv "):
        Journal.open(path)
    assert path.read_bytes() == before


def test_database_of_another_program_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE photos (name)")
    raw.commit()
    raw.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match="another program"):
        Journal.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", ["/proc/togi/j.db", "/proc/j.db"])
def test_unwritable_folder(place: str) -> None:
    with pytest.raises(JournalError, match="folder you can write to"):
        Journal.open(place)


def test_path_below_a_file_or_at_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(JournalError, match="folder you can write to"):
        Journal.open(tmp_path / "file" / "j.db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(JournalError):
        Journal.open(tmp_path / "folder")


def test_full_disk_keeps_what_was_recorded_and_goes_on_when_there_is_space(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j.db") as journal:
        log = journal.study(KEY, header())
        connection = journal._database.connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 4}")  # SQLite answers SQLITE_FULL, like a full disk
        message, kept = append_until_it_fails(log)
        assert "full" in message
        assert "Free some space" in message
        assert log.trials() == [trial(n, rounds=100) for n in range(kept)]
        connection.execute("PRAGMA max_page_count = 1000000")
        log.append(trial(kept, rounds=100))
        assert len(log.trials()) == kept + 1


def append_until_it_fails(log: StudyLog) -> tuple[str, int]:
    for number in range(1000):
        try:
            log.append(trial(number, rounds=100))
        except JournalError as error:
            return str(error), number
    raise AssertionError("the disk never filled up")
