"""A parent that is killed leaves neither a process nor a file (its server, which outlives it, cleans up); that a server
was killed is said."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.artifact.forks import in_a_fork, needs_fork
from togi.core.errors import TrialServerError
from togi.machine.describe import machine
from togi.worker import guard, launch
from togi.worker.channel import Channel, new_token
from togi.worker.deadline import Deadline
from togi.worker.messages import Exited, Started, SurveySubject
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef

pytestmark = pytest.mark.starts_servers

PARENT = """
import os, pathlib, sys, time, torch
from togi import api

CHILD = {child!r}

class Sleeper(torch.nn.Module):
    def forward(self, x):
        pathlib.Path(CHILD).write_text(str(os.getpid()))
        time.sleep(300)

def subject():
    return Sleeper(), torch.zeros(1)

if __name__ == "__main__":
    api.memory(*subject()) if sys.argv[1] == "live" else api.memory(__file__ + ":subject")
"""
LOADING = """
import ctypes, os, pathlib, subprocess, time
from togi import api

SERVER = pathlib.Path({server!r})

def subject():
    other = subprocess.Popen(["sleep", "300"], start_new_session=True)
    SERVER.with_suffix(".new").write_text(f"{os.getpid()} {other.pid}")
    SERVER.with_suffix(".new").rename(SERVER)
    {how}

if __name__ == "__main__":
    api.memory(__file__ + ":subject")
"""
CLOSING = """
import os, signal, torch
from togi import api
from togi.worker.launch import TrialServer
from togi.worker.messages import Quit

def subject():
    return torch.nn.Linear(2, 2), torch.zeros(1, 2)

def close(self):
    self.channel.send(Quit())
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    TrialServer.ask_to_end = close
    api.memory(__file__ + ":subject")
"""


def wait_for(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["live", "locator"])
def test_nothing_is_left(kind: str, tmp_path: Path) -> None:
    script, child, temporary = tmp_path / "parent.py", tmp_path / "child", tmp_path / "tmp"
    script.write_text(PARENT.replace("{child!r}", repr(str(child))), encoding="utf-8")
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, script, kind], env=environment) as parent:
        wait_for(lambda: child.exists() and child.read_text(encoding="utf-8"), "the child did not start")
        assert any(temporary.iterdir())
        parent.send_signal(signal.SIGKILL)
    pid = child.read_text(encoding="utf-8")
    wait_for(lambda: not any(temporary.iterdir()), "files are left")
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "a process is left")


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["time.sleep(300)", "ctypes.PyDLL(None).sleep(300)"], ids=["sleeps", "holds the GIL"])
def test_nothing_is_left_of_a_parent_that_is_killed_while_its_subject_is_loaded(how: str, tmp_path: Path) -> None:
    """The server is in the factory and hears of nothing: its guard ends it."""
    script, server, temporary = tmp_path / "parent.py", tmp_path / "server", tmp_path / "tmp"
    script.write_text(LOADING.replace("{server!r}", repr(str(server))).replace("{how}", how), encoding="utf-8")
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, script], env=environment) as parent:
        wait_for(lambda: server.exists() and server.read_text(encoding="utf-8"), "the factory was not called")
        parent.send_signal(signal.SIGKILL)
    for pid in server.read_text(encoding="utf-8").split():
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "a process is left")  # type: ignore[misc]
    wait_for(lambda: not any(temporary.iterdir()), "files are left")


@pytest.mark.thorough
def test_nothing_is_left_of_a_parent_that_is_killed_while_it_closes(tmp_path: Path) -> None:
    script, temporary = tmp_path / "parent.py", tmp_path / "tmp"
    script.write_text(CLOSING, encoding="utf-8")
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    assert subprocess.run([sys.executable, script], env=environment, check=False).returncode == -signal.SIGKILL
    wait_for(lambda: not any(temporary.iterdir()), "files are left")


@pytest.mark.thorough
@pytest.mark.parametrize("forked", [True, False], ids=["forked", "a process of its own"])
def test_children_that_nobody_ended_end_with_their_pool(forked: bool, tmp_path: Path) -> None:
    subject = tmp_path / "subject.py"
    threads = "" if forked else "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()\n"
    subject.write_text(
        f"import torch\n{threads}def subject():\n    return torch.nn.Linear(2, 2), torch.ones(1, 2)\n",
        encoding="utf-8",
    )
    before = set(os.listdir("/proc/self/fd"))
    with WorkerPool(SubjectRef.here("locator", f"{subject}:subject"), machine("cpu"), device="cpu", seed=0) as pool:
        server = pool.server({})
        assert server.fork_safe is forked
        child = server.start_child(SurveySubject(log=str(tmp_path / "log")))
        child.pause()
    assert set(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_a_server_that_is_interrupted_while_it_loads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool(SubjectRef.here("nothing"), machine("cpu"), device="cpu", seed=0)
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noted(*args: Any, **kwargs: Any) -> Any:
        started.append(popen(*args, **kwargs))
        return started[-1]

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", noted)
    monkeypatch.setattr(Deadline, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.server({})
    try:
        assert [process.returncode is not None for process in started] == [True]
    finally:
        pool.close()


@pytest.mark.thorough
def test_a_server_that_does_not_fork_in_time_is_an_error_and_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(launch, "_FORK_TIMEOUT_S", 0.2)
    with WorkerPool(SubjectRef.here("nothing"), machine("cpu"), device="cpu", seed=0) as pool:
        server = pool.server({})
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(TrialServerError, match=r"did not start one in 0.2\d* s"):
            server.start_child(SurveySubject(log=str(tmp_path / "log")))
        assert server.process.returncode is not None


def test_a_server_that_is_killed_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    with WorkerPool(SubjectRef.here("nothing"), machine("cpu"), device="cpu", seed=0) as pool:
        server = pool.server({})
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        with pytest.raises(TrialServerError, match=r"ended unexpectedly.*give the same command again"):
            server.start_child(SurveySubject(log=str(tmp_path / "log")))
    assert not pool.folder.exists()


@needs_fork
@pytest.mark.parametrize("listed", [True, False])
def test_a_guard_closes_what_it_inherited_whatever_the_limit(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit may be a thousand million, which takes minutes, or none, which closed nothing."""
    monkeypatch.setattr(os, "sysconf", lambda _: -1)
    if not listed:
        monkeypatch.setattr(os, "listdir", lambda _: os.stat("/proc/none"))
    read, write = os.pipe()

    def all_closed() -> bool:
        guard.close_inherited()
        for descriptor in (read, write):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
        os.fstat(2)
        return True

    assert in_a_fork(all_closed)
    os.close(read)
    os.close(write)


@needs_fork
@pytest.mark.parametrize("lives", [True, False])
def test_a_guard_ends_no_process_that_got_the_number_of_its_server(
    lives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as parent:
        pass
    folder, ended = tmp_path / "folder", tmp_path / "ended"
    folder.mkdir()
    monkeypatch.setattr(guard, "_end", lambda server: ended.write_text(str(server), encoding="utf-8"))
    monkeypatch.setattr(guard, "_BY_ITSELF_S", 0.3)

    def serves() -> bool:
        guard.start_guard(parent.pid, [folder])
        if lives:
            wait_for(lambda: not folder.exists(), "the guard did nothing")
        return True

    assert in_a_fork(serves)
    wait_for(lambda: not folder.exists(), "the guard did nothing")
    assert ended.exists() == lives


@needs_fork
@pytest.mark.parametrize("reaped", ["before its state is read", "after its state is read", "after a signal finds it"])
def test_a_guard_knows_that_its_parent_ended_whenever_that_is_reaped(
    reaped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever started the parent learns of its end when the guard does. The guard then took it for running and went
    home, and the server stayed for ever."""
    parent = subprocess.Popen([sys.executable, "-c", ""])
    read_text, kill = Path.read_text, os.kill

    def reap() -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(parent.pid, 0)

    def reading(path: Path, **options: Any) -> str:
        if reaped == "before its state is read":
            reap()
        text = read_text(path, **options)
        if reaped == "after its state is read":
            reap()
        return text

    def killing(pid: int, number: int) -> None:
        kill(pid, number)
        if number == 0:
            reap()

    monkeypatch.setattr(Path, "read_text", reading)
    monkeypatch.setattr(os, "kill", killing)
    os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
    assert not guard._runs(parent.pid)
    reap()


@pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="processes have no such names here")
def test_a_guard_sees_a_process_run_whatever_its_name() -> None:
    name = "open('/proc/self/comm', 'wb').write(bytes([255]) + b') Z 1'); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        assert guard._runs(process.pid)
    assert not guard._runs(process.pid)


def test_a_child_is_ended_at_once_as_soon_as_it_is_named(tmp_path: Path) -> None:
    """It has its process group by then, though it has not run a line of its own."""
    with WorkerPool(SubjectRef.here("nothing"), machine("cpu"), device="cpu", seed=0) as pool:
        server = pool.server({})
        for _ in range(5):
            began = time.monotonic()
            child = server.start_child(SurveySubject(log=str(tmp_path / "log")))
            assert os.getpgid(child.pid) == child.pid
            child.kill()
            assert time.monotonic() - began < 5


def test_a_number_that_the_kernel_gives_again_is_that_of_the_new_child() -> None:
    ours, theirs = socket.socketpair()
    server = launch.CapturedServer.__new__(launch.CapturedServer)
    launch.ForkServer.__init__(server, new_token(), Deadline())
    server.channel = Channel(ours, server.token)
    there = Channel(theirs, server.token)
    there.send(Exited(pid=7, status=3))
    assert server.exit_status(7) == 3
    there.send(Started(pid=7, shared_bytes=0))
    there.send(Exited(pid=7, status=-9))
    server._receive(1)
    assert server.exit_status(7) == -9
