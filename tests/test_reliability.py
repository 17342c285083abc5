"""The short form of ``python -m benchmarks.reliability``: what must not happen did not happen."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmarks.reliability import files, growth, processes, surroundings

pytestmark = pytest.mark.thorough(40)


def test_changed_artifacts_are_refused_or_equal(tmp_path: Path) -> None:
    found = files.mutants(90, 0, tmp_path)
    assert found["bad"] == []
    assert found["ends"]["refused"] > 20


def test_changed_journals_are_refused_or_equal(tmp_path: Path) -> None:
    found = files.journals(100, 0, tmp_path)
    assert found["bad"] == []
    assert found["ends"]["refused"] > 20


def test_a_killed_process_costs_no_finished_trial(tmp_path: Path) -> None:
    found = processes.kills(4, 0, tmp_path)
    assert found["kills"] >= 4  # a run in which the last one falls may see more
    assert (found["lost"], found["left"], found["odd ends"]) == ([], [], [])


def test_a_driver_that_was_stopped_goes_on(tmp_path: Path) -> None:
    found = processes.stopped(tmp_path, 2.0)
    assert found["bad"] == []
    assert found["trials"] > 3


def test_two_runs_share_the_work(tmp_path: Path) -> None:
    assert processes.two_at_once(tmp_path)["bad"] == []


@pytest.fixture(scope="module")
def own_mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("mounts")
    disk = folder / "disk"
    disk.mkdir()

    def job() -> dict[str, Any]:
        surroundings.mount(None, disk)  # not over the folder, in which it answers
        return {}

    try:
        surroundings.with_own_mounts(job, folder)
    except OSError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("own_mounts")
def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    found = surroundings.full_disk(3, 0, tmp_path)
    assert found["bad"] == []
    assert found["filled"] > 0


@pytest.mark.thorough(120)
@pytest.mark.timeout(600)  # four studies, the large ones of which end processes
@pytest.mark.usefixtures("own_mounts")
def test_little_memory_is_reported(tmp_path: Path) -> None:
    assert surroundings.little_memory(tmp_path, 1024, (16, 768))["bad"] == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="the clock is a library that has to be compiled")
def test_time_limits_hold_whatever_the_wall_clock_says(tmp_path: Path) -> None:
    assert surroundings.jumping_clock(tmp_path)["bad"] == []


@pytest.mark.thorough(80)
@pytest.mark.parametrize(("program", "count"), [(growth.STUDIES, 8), (growth.TRIALS, 100)], ids=["studies", "trials"])
def test_nothing_grows(program: str, count: int, tmp_path: Path) -> None:
    allowed = {"RSS": 4096, "driver's RSS": 4096, "journal": 4096, "descriptors": 1}
    found = growth.growth(program, count, tmp_path / "place", allowed)
    assert found["bad"] == []
