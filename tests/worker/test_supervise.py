"""A trial whose child breaks the protocol is over, with a clear reason, and its process is gone."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from togi.core.records import Outcome, Recipe
from togi.worker.channel import Channel
from togi.worker.child_process import Child
from togi.worker.deadline import Deadline
from togi.worker.messages import Entered, Ready, TryRecipe
from togi.worker.supervise import Limits, RunningTrial, TrialEnded

TOKEN = "a token"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as started:
        yield started
        started.kill()


@pytest.mark.parametrize(
    ("frame", "sent"),
    [
        ('Turn {"passes": 1}', "a message Turn that cannot be read: times_ms: Field required"),
        ("Quit {}", "a message 'Quit' that is not known here"),
        ("Rested {}", "Rested, which was not asked for"),
    ],
)
def test_what_cannot_be_read_ends_the_trial(
    frame: str, sent: str, process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    ours, theirs = socket.socketpair()
    server: Any = SimpleNamespace(deadline=Deadline(), fork_safe=True, exit_status=lambda _: process.wait(10))
    server.start_child = lambda job: Child(server, process.pid, Channel(ours, TOKEN), job)
    trial = RunningTrial.begin(server, TryRecipe(log=str(tmp_path / "log"), recipe=Recipe()), Limits(), "it")
    Channel(theirs, TOKEN).send(Entered(phase="build"))
    theirs.sendall(f"\n{TOKEN} {frame}\n".encode())
    with pytest.raises(TrialEnded) as ended:
        trial.wait_for(Ready)
    assert (ended.value.ending.outcome, ended.value.ending.reason) == (
        Outcome.FAILED,
        f"in build its process sent {sent}",
    )
    assert process.returncode is not None
    with pytest.raises(TrialEnded):
        trial.rest()
