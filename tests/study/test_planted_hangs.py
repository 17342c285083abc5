"""Studies in which something hangs end within their limit and 10 s, say what it was, and keep the rest."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from togi import api
from togi.core.errors import TogiError
from togi.core.records import Outcome, Study
from togi.machine.limits import descendants
from togi.study.final_race import FinalRace
from togi.study.progress import Progress
from togi.techniques import registry

pytestmark = [pytest.mark.starts_servers, pytest.mark.usefixtures("brief_studies")]

HERE = Path(__file__).parent / "hanging"
LIMIT_S = 40.0
IN_THE_ENGINE = [
    "build",
    "build:holds_gil",
    "build:stops",
    "build:floods_log",
    "build:floods_channels",
    "first_call",
    "verify",
    "turn",
    "turn:holds_gil",
    "memory",
    "save",
    "load",
    "load:holds_gil",
]
IN_THE_SUBJECT = ["factory", "factory:holds_gil", "original", "original:holds_gil", "truth", "original_turn"]
BESIDE_IT = ["capture", "rewrites", "exit", "thread", "build:kills_server", "build:stops_server"]
AT_LAST = ("callers", "save", "load")
"""Reached by what is chosen alone, so nothing healthy stands beside it."""
QUICK = ("callers:holds_gil", "turn")
"""Run by every suite; each takes as long as its limit, or nearly."""


def cases(names: list[str]) -> list[object]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.hangs) for name in names]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Installed as a third party's techniques are."""
    site = tmp_path_factory.mktemp("site")
    info = site / "togi_hanging-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: togi-hanging\nVersion: 1.0\n", encoding="utf-8")
    classes = {"planted": "Planted", "healthy": "Healthy", "planted_rewrite": "Rewrites"}
    lines = [f"{id} = hanging_family:{name}" for id, name in classes.items()]
    (info / "entry_points.txt").write_text(
        "\n".join([f"[{registry.ENTRY_POINT_GROUP}]", *lines]) + "\n", encoding="utf-8"
    )
    source = (HERE / "hanging_family.py").read_text(encoding="utf-8")
    (site / "hanging_family.py").write_text(source, encoding="utf-8")
    sys.path.insert(0, str(site))
    registry.all_techniques.cache_clear()
    yield site
    sys.path.remove(str(site))
    sys.modules.pop("hanging_family", None)
    registry.all_techniques.cache_clear()


class Said(Progress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def tuned(family: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Study | str:
    """The study in which it hangs where the test's parameter says, or its error. It took no longer than it may, and
    left nothing behind."""
    monkeypatch.setenv("PLANTED", request.param)
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RACES", str(tmp_path / "races"))
    monkeypatch.syspath_prepend(str(family))
    race = FinalRace.run

    def run(*args: Any, **kwargs: Any) -> Any:
        (tmp_path / "races").touch()
        return race(*args, **kwargs)

    monkeypatch.setattr(FinalRace, "run", run)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before, began = set(descendants(os.getpid())), time.monotonic()
    found: Study | str
    try:
        found = api.tune(
            f"{family / 'hanging_family.py'}:subject",
            only=["planted"] if request.param.startswith(AT_LAST) else ["planted", "healthy", "planted_rewrite"],
            effort="thorough",
            time_limit_s=LIMIT_S,
            progress=Said(),
        ).record
    except TogiError as error:
        found = str(error)
    assert time.monotonic() - began < LIMIT_S + 10.0
    time.sleep(0.2)
    assert set(descendants(os.getpid())) <= before
    assert not list(temporary.iterdir())
    return found


@pytest.mark.thorough(40)
@pytest.mark.parametrize("tuned", cases(IN_THE_ENGINE), indirect=True)
def test_an_engine_that_hangs_is_timed_out_and_never_chosen(tuned: Study | str) -> None:
    """On a machine that is too busy, nothing is tried in the time."""
    assert isinstance(tuned, Study), tuned
    hung = [trial for trial in tuned.trials if trial.recipe.find("planted") is not None]
    assert tuned.best is not None
    assert tuned.best.find("planted") is None
    assert not [trial for trial in hung[-1:] if trial.outcome is Outcome.OK and "still in" not in trial.reason]


@pytest.mark.thorough(40)
@pytest.mark.parametrize("tuned", cases(["race", "race:holds_gil"]), indirect=True)
def test_an_engine_that_hangs_in_the_race_alone_is_set_aside(tuned: Study | str, tmp_path: Path) -> None:
    assert isinstance(tuned, Study), tuned
    assert tuned.best is not None
    assert tuned.best.find("planted") is None
    if not (tmp_path / "races").exists():  # a busy machine had no time for a race
        return
    hung = [trial for trial in tuned.trials if trial.recipe.find("planted") is not None]
    assert any(trial.outcome is Outcome.OK for trial in hung), "its trial went well"
    assert hung[-1].outcome is Outcome.TIMED_OUT
    assert "in the race of the finalists it was still in measure" in hung[-1].reason


@pytest.mark.parametrize("tuned", cases(IN_THE_SUBJECT), indirect=True)
def test_a_subject_that_hangs_is_told_in_a_sentence(tuned: Study | str) -> None:
    said = tuned if isinstance(tuned, str) else tuned.verdict
    assert "Traceback" not in said
    assert "still" in said or "time limit" in said


@pytest.mark.parametrize("tuned", cases(BESIDE_IT), indirect=True)
def test_what_hangs_beside_the_trials_leaves_an_answer(tuned: Study | str) -> None:
    said = tuned if isinstance(tuned, str) else tuned.verdict
    assert said
    assert "Traceback" not in said


@pytest.mark.thorough(40)
@pytest.mark.parametrize("tuned", cases(["callers:holds_gil", "callers"]), indirect=True)
def test_an_engine_that_hangs_where_two_call_has_them_wait_or_is_set_aside(tuned: Study | str) -> None:
    assert isinstance(tuned, Study), tuned
    assert tuned.best is not None
    if tuned.best.find("planted") is not None:
        last = [trial for trial in tuned.trials if trial.recipe == tuned.best][-1]
        assert "it hangs where 2 call at once, so callers wait for each other" in last.notes
