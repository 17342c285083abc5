"""For all tests."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.forked_processes import ForkedServers, can_fork
from tests.offline import OFFLINE
from tests.offline.sitecustomize import TRIED
from togi.core.choices import Effort
from togi.machine.limits import available_bytes, oom_kills

_ALL_THREADS = torch.get_num_threads()
_SIDE_BY_SIDE = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1 and "OMP_NUM_THREADS" not in os.environ


_LONGEST = (
    *(f"tests/{room}/" for room in ("study", "worker", "fleet", "program", "examples", "artifact", "docs", "tiling")),
    *("tests/techniques/engine/", "tests/search/test_experience", "tests/torch_internals/test_private_torch"),
    *("tests/cli/test_cli_run.py", "tests/test_re"),
)
"""Folders and files that take longest of what every run has."""
_THOROUGH_S, _LONG_FILE_S, _QUICK_S = 4.0, 20.0, 0.05
"""What a thorough test takes that does not say it (``thorough(60)``), a file of these whatever it holds, and any other
test: roughly, which is enough."""


_OTHERS = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", OFFLINE)]
os.environ["PYTHONPATH"] = os.pathsep.join([OFFLINE, *_OTHERS])  # of the processes that tests start
os.environ["HF_HUB_OFFLINE"] = "1"
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # what tests import themselves reports to nobody
_HANDLE, os.environ[TRIED] = tempfile.mkstemp(prefix="togi-tried-")
os.close(_HANDLE)


gc.disable()  # while all is imported: nothing of it is garbage


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that take longest come first, so that no worker is left alone with one of them in the end."""
    with_thorough = "not thorough" not in config.option.markexpr
    file_s = {item.path: _LONG_FILE_S if item.nodeid.startswith(_LONGEST) else 0.0 for item in items}
    for item in items:
        thorough = item.get_closest_marker("thorough")
        if thorough is None:
            file_s[item.path] += _QUICK_S
        elif with_thorough:
            file_s[item.path] += thorough.args[0] if thorough.args else _THOROUGH_S
    items.sort(key=lambda item: -file_s[item.path])


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_unconfigure() -> None:
    Path(os.environ[TRIED]).unlink(missing_ok=True)
    gc.unfreeze()  # some libraries report what is not freed in the end


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Says how a worker of xdist ended that crashed: xdist names the test that it ran, and nothing else."""
    if error:
        status = node.gateway._io.popen.wait(10)
        text = f"the worker ended with {status}; for memory the system has killed {oom_kills()} processes"
        print(f"\n{text}; free now: {(available_bytes() or 0) >> 20} MiB", file=sys.stderr)


@pytest.fixture(autouse=True, scope="module")
def what_is_loaded_stays() -> None:
    """What the files before imported is not looked at by each collection of these tests: that takes a second."""
    gc.collect()
    gc.freeze()


def nobody_else_was_asked() -> None:
    """Fails the test if something tried to reach another machine, also where a library swallowed that it could not."""
    file = Path(os.environ[TRIED])
    if file.stat().st_size:
        tried = file.read_text(encoding="utf-8")
        file.write_text("", encoding="utf-8")
        pytest.fail(f"something reached for the network, which nothing may do by default: {tried}", pytrace=False)


@pytest.fixture(autouse=True)
def no_network() -> Iterator[None]:
    """Every test runs without a network (``tests/offline``)."""
    yield
    nobody_else_was_asked()


@pytest.fixture(autouse=True)
def own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a factory puts its folder first in ``sys.path``: not for the next test, which may start processes."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(autouse=True)
def one_thread_side_by_side(request: pytest.FixtureRequest) -> None:
    """Tests that run side by side compute on one thread each, except where threads are tested (``threads`` marks them):
    two pools on the same cores wait for each other and take twice as long. Processes that a test starts have all."""
    if _SIDE_BY_SIDE:
        torch.set_num_threads(_ALL_THREADS if request.node.get_closest_marker("threads") else 1)


@pytest.fixture(scope="session")
def forked_servers() -> Iterator[ForkedServers | None]:
    """None: this system cannot fork them."""
    servers = ForkedServers() if can_fork() else None
    yield servers
    if servers is not None:
        servers.close()


@pytest.fixture(autouse=True, scope="module")
def servers_start_at_once(request: pytest.FixtureRequest, forked_servers: ForkedServers | None) -> Iterator[None]:
    """Those of studies that this process runs are forked from one that has imported torch (``starts_servers`` marks
    files whose own are started as users have them)."""
    with pytest.MonkeyPatch.context() as patch:
        if forked_servers is not None and request.node.get_closest_marker("starts_servers") is None:
            patch.setattr("togi.worker.launch.subprocess", forked_servers)
        yield


@pytest.fixture(scope="module")
def brief_studies() -> Iterator[None]:
    """Studies that this process runs measure no longer than an interval needs (its rounds are run however little time
    they are given), and try four recipes where their effort is quick: for tests of what becomes of a study, not of how
    much it finds."""

    from togi.study.pace import Pace
    from togi.study.run import run_study

    def brief_study(subject: Any, name: str, settings: Any, **rest: Any) -> Any:
        tried = 4 if settings.effort is Effort.QUICK else None
        pace = Pace(trial_s=0.5, race_s=0.5, proof_s=0.5, quiet_s=0.0, max_trials=tried)
        return run_study(subject, name, settings, pace=pace, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("togi.study.run.run_study", brief_study)
        yield


@pytest.fixture
def ultralytics(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package; skips without it. What its import does to the process is undone: it replaces ``torch.save``, sets
    ``OMP_NUM_THREADS`` and prints numbers otherwise, for all tests that follow."""
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path_factory.mktemp("yolo")))
    monkeypatch.setenv("YOLO_OFFLINE", "true")  # else it looks for the network
    environment, save, printed = dict(os.environ), torch.save, np.get_printoptions()
    try:
        return pytest.importorskip("ultralytics")
    finally:
        os.environ.clear()
        os.environ.update(environment)
        torch.save = save
        np.set_printoptions(**printed)
        torch.set_printoptions(profile="default")
