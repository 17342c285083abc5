"""The short form of ``benchmarks/reliability.py``: what must not happen did not happen."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[1] / "benchmarks" / "reliability.py"
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def reliability() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("reliability", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reliability"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["reliability"]


@pytest.fixture(scope="module")
def finished(reliability: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped for two seconds and went on."""
    folder = tmp_path_factory.mktemp("stopped")
    found = reliability.stopped(folder, 2.0)
    assert found["bad"] == []
    assert found["trials"] > 3
    return folder / "stopped"


def test_changed_artifacts_are_refused_or_equal(reliability: ModuleType, tmp_path: Path) -> None:
    found = reliability.mutants(90, 0, tmp_path)
    assert found["bad"] == []
    assert found["ends"]["refused"] > 20


def test_changed_journals_are_refused_or_equal(reliability: ModuleType, finished: Path, tmp_path: Path) -> None:
    found = reliability.journals(100, 0, finished / "journal.sqlite", tmp_path)
    assert found["bad"] == []
    assert found["ends"]["refused"] > 20


def test_a_killed_process_costs_no_finished_trial(reliability: ModuleType, tmp_path: Path) -> None:
    found = reliability.kills(4, 0, tmp_path)
    assert found["kills"] == 4
    assert (found["lost"], found["left"], found["odd ends"]) == ([], [], [])


def test_a_full_disk_is_said(reliability: ModuleType, tmp_path: Path) -> None:
    assert reliability.full_disk(tmp_path, (20_000, 200_000))["bad"] == []


def test_two_runs_share_the_work(reliability: ModuleType, tmp_path: Path) -> None:
    assert reliability.two_at_once(tmp_path)["bad"] == []
