"""A server that is forked is the child that a started one would be, and what could change its imports starts one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.prepared_servers import PreparedServers
from togi.core.interpreter import python
from togi.machine.describe import machine
from togi.worker.launch import _BOOT
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every server is started")
FACTORY = """
import json, os, sys, torch

def subject():
    with open(__file__ + ".json", "w") as file:
        told = {"parent": os.getppid(), "group": os.getpgid(0), "own": os.getpid(), "cwd": os.getcwd()}
        json.dump(told | {"mine": os.environ.get("MINE"), "threads": len(os.listdir("/proc/self/task"))}, file)
    return torch.nn.Linear(2, 2), torch.ones(1, 2)
"""


def started(folder: Path) -> tuple[subprocess.Popen[bytes], dict[str, object]]:
    """The process of a server that was used and closed, and what it said of itself."""
    (folder / "model.py").write_text(FACTORY, encoding="utf-8")
    subject = SubjectRef.here("locator", f"{folder / 'model.py'}:subject")
    with WorkerPool(subject, machine(), device="cpu", seed=0) as pool:
        process = pool.server({}).process
        assert process is not None
        assert process.poll() is None
        assert pool.survey(Limits(), lambda _: None)[0].facts.module_class == "Linear"
    assert process.returncode is not None
    assert not Path(f"/proc/{process.pid}").exists()
    return process, json.loads((folder / "model.py.json").read_text(encoding="utf-8"))


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[PreparedServers]:
    """Others than the suite's, whose variables may be those of before some import set one."""
    made = PreparedServers()
    monkeypatch.setattr("togi.worker.launch.subprocess", made)
    yield made
    made.close()


@pytest.mark.usefixtures("servers")
def test_a_forked_server_is_what_a_started_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    forked, told = started(tmp_path)
    assert told == {"parent": os.getpid(), "cwd": str(tmp_path), "mine": None, "threads": 1} | dict.fromkeys(
        ("group", "own"), forked.pid
    )
    monkeypatch.setenv("MINE", "a variable that could be read while something is imported")
    other, its = started(tmp_path)
    assert its == {**told, "group": other.pid, "own": other.pid, "mine": os.environ["MINE"]}
    assert type(other) is subprocess.Popen
    assert type(forked) is not subprocess.Popen


def test_what_could_change_the_imports_starts_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: asked.append(command))
    servers = PreparedServers()
    monkeypatch.syspath_prepend(tmp_path)
    servers.Popen(["python", "-c", "", "3"], env=dict(os.environ))
    assert asked == [["python", "-c", "", "3"]]


def test_variables_that_came_to_stay_are_those_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: made.append("started"))
    servers = PreparedServers()

    def prepare(_: object, environment: dict[str, str]) -> None:
        made.append("prepared")
        servers._process, servers._prepared = "a process", environment  # type: ignore[assignment]

    monkeypatch.setattr(servers, "_prepare", prepare)
    monkeypatch.setattr(servers, "_forked", lambda *_: made.append("forked"))
    monkeypatch.setattr(servers, "close", lambda: setattr(servers, "_process", None))
    with open(os.devnull, "wb") as log:
        for more in ({}, {}, {"SET": "1"}, {}, *[{"SET": "1"}] * 4):
            servers.Popen(python(_BOOT, "3"), env={**os.environ, **more}, pass_fds=(3,), stdout=log)
    assert made == [
        "prepared",
        "forked",
        "forked",
        "started",
        "forked",
        *["started"] * 2,
        "prepared",
        "forked",
        "forked",
    ]
