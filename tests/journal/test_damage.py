from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from tests.journal.journal_records import KEY, header, trial
from togi.core.errors import JournalError, OutputExistsError
from togi.journal import Journal, rescue
from togi.journal.database import checksum

TRIALS = 60


@pytest.fixture
def journal_path(tmp_path: Path) -> Path:
    path = tmp_path / "j.db"
    with Journal.open(path) as journal:
        log = journal.study(KEY, header())
        for number in range(TRIALS):
            log.append(trial(number))
    assert not Path(f"{path}-wal").exists()
    return path


def open_and_read(path: Path) -> list[int]:
    with Journal.open(path) as journal:
        return [t.recipe.choices[0].options["count"] for t in journal.read().trials]


def assert_refused_and_kept(path: Path, match: str) -> None:
    before = path.read_bytes()
    with pytest.raises(JournalError, match=match):
        open_and_read(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("keep", [0.98, 0.7, 0.3])
def test_truncated_file_is_refused_kept_and_rescued(journal_path: Path, keep: float) -> None:
    data = journal_path.read_bytes()
    journal_path.write_bytes(data[: int(len(data) * keep)])
    assert_refused_and_kept(journal_path, "damaged.*rescue.*mv ")


def test_flipped_bytes_are_never_read_as_something_else(journal_path: Path) -> None:
    """Wherever bytes flip: either it is noticed, or what is read is what was written (the byte was in free space)."""
    data = journal_path.read_bytes()
    rng = random.Random(0)
    noticed = 0
    for _ in range(60):
        broken = bytearray(data)
        for place in (rng.randrange(100, len(data)) for _ in range(3)):
            broken[place] ^= rng.randrange(1, 256)
        journal_path.write_bytes(broken)
        try:
            assert open_and_read(journal_path) == list(range(TRIALS))
        except JournalError:
            noticed += 1
            assert journal_path.read_bytes() == broken
    assert noticed >= 30


def test_no_trial_is_lost_where_only_an_index_is_damaged(journal_path: Path) -> None:
    """The index of trials by study names it once for each trial; a row that it does not find would not be read."""
    data, study = journal_path.read_bytes(), Journal.open(journal_path).studies()[0].id.encode()
    places = [place for place in range(len(data)) if data.startswith(study, place)]
    assert len(places) > 2 * TRIALS
    for place in places:
        journal_path.write_bytes(data[:place] + b"?" + data[place + 1 :])
        with pytest.raises(JournalError, match="damaged"):
            open_and_read(journal_path)


def test_text_that_is_not_utf8(journal_path: Path) -> None:
    journal_path.write_bytes(journal_path.read_bytes().replace(b"CREATE TABLE trials", b"CREATE T\xffBLE trials"))
    assert_refused_and_kept(journal_path, "damaged.*rescue.*mv ")


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a journal " * 100, encoding="utf-8")
    assert_refused_and_kept(path, "not a journal")


def test_emptied_file_with_pending_log_keeps_the_log(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    path.touch()
    Path(f"{path}-wal").write_bytes(b"log")
    with pytest.raises(JournalError, match="write-ahead log"):
        Journal.open(path)
    assert Path(f"{path}-wal").read_bytes() == b"log"


def test_rescue_saves_all_but_the_damaged_record(journal_path: Path, tmp_path: Path) -> None:
    data = journal_path.read_bytes()
    place = data.index(b'"count":30')
    journal_path.write_bytes(data[:place] + b'"count":31' + data[place + 10 :])
    assert_refused_and_kept(journal_path, "does not match its checksum")
    saved = rescue(journal_path, tmp_path / "new.db")
    assert (saved.studies, saved.trials, saved.lost) == (1, TRIALS - 1, 1)
    assert open_and_read(tmp_path / "new.db") == [n for n in range(TRIALS) if n != 30]


def test_a_damaged_record_of_one_study_keeps_no_other_from_being_read(journal_path: Path) -> None:
    with Journal.open(journal_path) as journal:
        good = journal.study("another key", header()).id
    data = journal_path.read_bytes()
    journal_path.write_bytes(data.replace(b'"count":30', b'"count":31'))
    with Journal.open(journal_path) as journal:
        assert journal.read(good).trials == ()
        with pytest.raises(JournalError, match="does not match its checksum"):
            journal.studies()


def test_rescue_reads_from_both_sides_of_a_broken_page(journal_path: Path, tmp_path: Path) -> None:
    data = bytearray(journal_path.read_bytes())
    middle = data.index(b'"count":30') // 4096
    data[middle * 4096 : middle * 4096 + 4096] = b"\xff" * 4096
    journal_path.write_bytes(data)
    saved = rescue(journal_path, tmp_path / "new.db")
    found = open_and_read(tmp_path / "new.db")
    assert found[0] == 0
    assert found[-1] == TRIALS - 1
    assert saved.trials == len(found) >= TRIALS - 10
    assert saved.lost >= 1


def test_rescue_includes_the_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    journal = Journal.open(path)
    journal.study(KEY, header()).append(trial(1))
    assert Path(f"{path}-wal").stat().st_size > 0
    assert rescue(path, tmp_path / "new.db").trials == 1
    journal.close()


def test_rescue_overwrites_nothing_and_says_when_nothing_is_left(journal_path: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputExistsError):
        rescue(journal_path, journal_path)
    rubbish = tmp_path / "rubbish.db"
    rubbish.write_bytes(b"SQLite format 3\x00" + b"\x07" * 5000)
    with pytest.raises(JournalError):
        rescue(rubbish, tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


def test_damage_that_appears_while_open_is_an_error_with_the_mend(journal_path: Path) -> None:
    with Journal.open(journal_path) as journal:
        raw = sqlite3.connect(journal_path)
        raw.execute("UPDATE trials SET record = 'x' WHERE number = 5")
        raw.commit()
        raw.close()
        with pytest.raises(JournalError, match="rescue"):
            journal.read()


def test_earlier_studies_teach_as_far_as_they_can_be_read(tmp_path: Path) -> None:
    """One has a trial that changed since, one a header that another togi wrote: both are counted, neither raises."""
    path = tmp_path / "j.db"
    with Journal.open(path) as journal:
        logs = [journal.study(f"key {name}", header(subject=name)) for name in ("a", "b", "c", "d", "own")]
        for log in logs[:4]:
            log.append(trial(1))
        journal.study("nothing tried", header(subject="empty"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE trials SET record = replace(record, '1.5', '9.5') WHERE study = ?", (logs[1].id,))
        foreign = '{"written": "by another togi"}'
        mark = checksum(logs[2].id, "key c", foreign)
        connection.execute("UPDATE studies SET record = ?, checksum = ? WHERE id = ?", (foreign, mark, logs[2].id))
    with Journal.open(path) as journal:
        found = journal.earlier(lambda study: study.subject != "a", but=logs[4].id)
        assert [study.subject for study in found.studies] == ["d"]
        assert [t.recipe for t in found.studies[0].trials] == [trial(1).recipe]
        assert (found.left_out, found.unreadable) == (1, 2)
        assert [s.subject for s in journal.earlier(lambda _: True, but=logs[3].id).studies] == ["a"]
