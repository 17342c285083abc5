"""A trial whose child breaks the protocol is over, with a clear reason, and its process is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from togi.core.records import Footprint, Outcome, Recipe
from togi.measure import Turn
from togi.worker.channel import Channel
from togi.worker.child_process import Child
from togi.worker.deadline import Deadline
from togi.worker.messages import Built, Entered, Ready, TryRecipe
from togi.worker.supervise import GaveWay, Limits, RunningTrial, TrialEnded

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


def server_of(process: subprocess.Popen[bytes], channel: socket.socket) -> Any:
    """One whose next child is this process."""
    server: Any = SimpleNamespace(deadline=Deadline(), fork_safe=True, exit_status=lambda _: process.wait(10))
    server.start_child = lambda job: Child(server, process.pid, Channel(channel, TOKEN), job)
    return server


@pytest.mark.parametrize(("outcome", "kept"), [(Outcome.OUT_OF_MEMORY, 1 << 30), (Outcome.FAILED, None)])
def test_what_ran_out_of_memory_says_how_much_it_might_take(
    process: subprocess.Popen[bytes], tmp_path: Path, outcome: Outcome, kept: int | None
) -> None:
    ours, _ = socket.socketpair()
    job = TryRecipe(log=str(tmp_path / "log"), recipe=Recipe())
    trial = RunningTrial.begin(server_of(process, ours), job, Limits(memory_bytes=1 << 30), "it")
    assert trial.end(outcome, "so it ended", "build").record().memory_bytes == kept


def test_what_gives_way_is_paused_and_goes_on(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    server = server_of(process, ours)
    job, child = TryRecipe(log=str(tmp_path / "log"), recipe=Recipe()), Channel(theirs, TOKEN)
    child.send(Entered(phase="build"))
    short = Limits(timeout_s=0.3, gives_way=True)
    with pytest.raises(GaveWay, match="it was still in build after 0 s, and gave way to other trials") as paused:
        RunningTrial.start(server, job, short, "it")
    trial = paused.value.trial
    assert trial.ended is None
    stopped = os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert stopped is not None
    assert stopped.si_status == signal.SIGSTOP
    time.sleep(0.5)
    with pytest.raises(GaveWay):
        trial.go_on(short)
    child.send(Built(build_s=1.5, notes=()))
    child.send(Ready())
    assert trial.go_on(short) is trial
    assert 0.5 <= trial.phases_s["build"] < 1.0, "it was not built while it waited"
    assert trial.build_s < 1.1
    assert trial.limits.memory_bytes is not None
    trial.close()
    assert process.returncode is not None


def test_a_pause_belongs_to_no_phase(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Between its turns a trial waits for others, for minutes: what is built again takes no longer for that."""
    ours, theirs = socket.socketpair()
    server = server_of(process, ours)
    job, child = TryRecipe(log=str(tmp_path / "log"), recipe=Recipe()), Channel(theirs, TOKEN)
    child.send(Entered(phase="build"))
    child.send(Ready())
    trial = RunningTrial.start(server, job, Limits(), "it")
    began = time.monotonic()
    for asked, answers in (
        (trial.footprint, [Entered(phase="memory"), Footprint(idle_bytes=1, peak_bytes=1)]),
        (lambda: trial.turn(1), [Turn(times_ms=(1.0,), passes=1, wall_s=0.001)]),
        (trial.footprint, [Entered(phase="memory"), Footprint(idle_bytes=1, peak_bytes=1)]),
    ):
        time.sleep(0.4)
        for answer in answers:
            child.send(answer)
        asked()
    time.sleep(0.4)
    trial.close()
    assert time.monotonic() - began >= 1.6
    assert set(trial.phases_s) == {"start", "build", "memory", "measure"}
    assert sum(trial.phases_s.values()) < 0.8


def test_what_the_time_of_the_study_cuts_off_does_not_wait(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    ours, _theirs = socket.socketpair()
    server: Any = SimpleNamespace(deadline=Deadline(), fork_safe=True, exit_status=lambda _: process.wait(10))
    server.start_child = lambda job: Child(server, process.pid, Channel(ours, TOKEN), job)
    job = TryRecipe(log=str(tmp_path / "log"), recipe=Recipe())
    with server.deadline.within(0.2), pytest.raises(TrialEnded) as ended:
        RunningTrial.start(server, job, Limits(timeout_s=9.0, gives_way=True), "it")
    assert ended.value.cut_off
