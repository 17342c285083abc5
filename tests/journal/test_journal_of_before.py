"""A journal that an earlier togi wrote (the code of 2026-11-21 before its rooms were planned again) is read, continued
and rescued by today's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from togi import api
from togi.core.records import Outcome
from togi.core.settings import Settings
from togi.journal import Journal, rescue, study_key
from togi.study.runner import FLEETING_SETTINGS

WRITTEN = Path(__file__).parent / "data" / "journal_of_november_2026.sqlite"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A copy: opening a journal may write to it."""
    return Path(shutil.copyfile(WRITTEN, tmp_path / "journal.sqlite"))


def test_its_study_is_read_whole(journal: Path) -> None:
    study = api.read_study(journal=journal)
    assert len(study.trials) == 18
    assert {trial.outcome for trial in study.trials} == set(Outcome) - {Outcome.OUT_OF_MEMORY}
    assert study.best is not None
    assert study.best.label == "fold_batch_norm + openvino + inference_mode"
    chosen = study.trial(study.best)
    assert chosen is not None
    assert chosen.timing is not None
    assert len(chosen.timing.rounds_ms) > 5
    assert chosen.footprint is not None


def test_the_same_command_goes_on_with_it(journal: Path) -> None:
    study = api.read_study(journal=journal)
    lasting = Settings(max_error=1e-2).model_dump(mode="json", exclude=FLEETING_SETTINGS)
    header = study.model_copy(update={"id": "", "trials": (), "excluded": (), "best": None})
    with Journal.open(journal) as opened:
        log = opened.study(study_key(study.subject, study.facts, lasting), header)
        assert log.id == study.id
        assert len(log.trials()) == 18


def test_it_is_rescued_record_by_record(journal: Path, tmp_path: Path) -> None:
    saved = rescue(journal, tmp_path / "rescued.sqlite")
    assert (saved.studies, saved.trials, saved.decisions, saved.lost) == (1, 18, 1, 0)
