"""Whatever is waited for ends by a deadline, however the other side hangs, and nothing is left of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import NoReturn

import pytest

from togi.core.interrupt import interrupted_after
from togi.core.records import Outcome, Record
from togi.machine.describe import machine
from togi.machine.limits import descendants
from togi.worker import deadline as deadline_module
from togi.worker import logs, messages
from togi.worker.channel import Timeout
from togi.worker.deadline import Deadline, whole_s
from togi.worker.launch import NoTimeLeft, ServerNotStarted
from togi.worker.logs import shorten
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, TrialEnded

pytestmark = pytest.mark.starts_servers

LEAST_S = 8.0
"""A busy machine needs a moment to end a process, and to notice."""


class How(Record):
    how: str


def hang(_subject: object, request: How) -> Record:
    """Called in a child."""
    HANGS.get(request.how, lambda: None)()
    return How(how="it went on")


def sleeps() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


def holds_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(1000)


def waits_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def stops() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def floods_its_log() -> None:
    while True:
        os.write(1, b"nothing new " * 5000)


def floods_the_channel() -> None:
    while True:
        for fd in range(3, 32):
            try:
                os.write(fd, b"nothing of interest " * 100)
            except OSError:
                continue


HANGS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (sleeps, holds_the_interpreter, waits_for_a_lock, stops, floods_its_log, floods_the_channel)
}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    """Made in another folder: a child does not search the working folder, and calls functions of these tests."""
    nothing = SubjectRef.here("nothing")
    with chdir(tmp_path_factory.mktemp("away")), WorkerPool(nothing, machine("cpu"), device="cpu", seed=0) as opened:
        yield opened


def end_of(pool: WorkerPool, how: str, limits: Limits | None = None) -> TrialEnded:
    with pytest.raises(TrialEnded) as caught:
        pool.call(f"{__name__}:hang", How(how=how), limits or Limits())
    return caught.value


@pytest.mark.thorough
@pytest.mark.parametrize("how", HANGS)
def test_a_child_that_hangs_is_ended_by_the_studys_deadline(
    pool: WorkerPool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_LONGEST_BYTES", 1 << 20)
    before, began = pool.server({}), time.monotonic()
    with pool.deadline.within(2.0):
        ended = end_of(pool, how)
    assert time.monotonic() - began < 2.0 + LEAST_S
    assert ended.ending.outcome is Outcome.TIMED_OUT
    assert ended.cut_off
    assert "when the time for it was over" in ended.ending.reason
    assert not Path(f"/proc/{ended.trial.child.pid}").exists()
    log = Path(ended.trial.child.job.log)
    assert not log.exists() or log.stat().st_size < 64 << 20
    assert pool.server({}) is before, "the others go on"


def test_a_limit_of_its_own_is_told_from_the_studys(pool: WorkerPool) -> None:
    ended = end_of(pool, "sleeps", Limits(timeout_s=1.0))
    assert not ended.cut_off
    assert ended.ending.reason == "it was still in run after 1 s"


@pytest.mark.thorough
def test_what_a_stopped_server_did_not_start_in_time_is_ended_and_the_others_go_on() -> None:
    with WorkerPool(SubjectRef.here("nothing"), machine("cpu"), device="cpu", seed=0) as pool:
        server = pool.server({})
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pool.deadline.within(0.5), pytest.raises(NoTimeLeft, match="the time limit was over before"):
            pool.call(f"{__name__}:hang", How(how="sleeps"), Limits())
        with pool.deadline.within(0.0), pytest.raises(NoTimeLeft, match="the time limit was over before"):
            pool.call(f"{__name__}:hang", How(how="sleeps"), Limits())
        assert time.monotonic() - began < 0.5 + LEAST_S
        os.kill(server.process.pid, signal.SIGCONT)
        for _ in range(2):
            answer = pool.call(f"{__name__}:hang", How(how="not at all"), Limits())
            assert isinstance(answer, messages.Returned)
        assert len(set(descendants(server.process.pid))) <= 1, "the guard alone"
        assert pool.server({}) is server


FACTORIES = {
    "sleeps": "while True:\n        time.sleep(1)",
    "holds the interpreter": "ctypes.PyDLL(None).sleep(1000)",
    "leaves a process": "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n    time.sleep(1000)",
}


@pytest.mark.thorough
@pytest.mark.parametrize("how", FACTORIES)
def test_a_factory_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, started = tmp_path / "slow.py", tmp_path / "started"
    file.write_text(
        "import ctypes, pathlib, subprocess, time\n\ndef subject():\n"
        f"    pathlib.Path({str(started)!r}).touch()\n    {FACTORIES[how]}\n",
        encoding="utf-8",
    )
    told: list[str] = []
    deadline = Deadline(time.monotonic() + 120.0, told.append)
    pool = WorkerPool(
        SubjectRef.here("locator", f"{file}:subject"), machine("cpu"), device="cpu", seed=0, deadline=deadline
    )
    threading.Thread(target=over_once, args=(started, deadline), daemon=True).start()
    before = set(descendants(os.getpid()))
    monkeypatch.setattr(deadline_module, "_TELL_EVERY_S", 0.5)
    with pytest.raises(NoTimeLeft, match="was still at it after"):
        pool.__enter__()  # the deadline is moved once the factory has begun
    assert told
    assert all(text.startswith("still waiting for the subject to be loaded") for text in told)
    time.sleep(0.3)
    assert set(descendants(os.getpid())) <= before
    listed = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert b"sleep\x001000\x00" not in listed
    assert not pool.folder.exists()


def over_once(started: Path, deadline: Deadline) -> None:
    while not started.exists():
        time.sleep(0.05)
    time.sleep(1.0)
    deadline.at = time.monotonic()


def test_a_wait_ends_with_the_nearer_of_both_limits_and_is_told() -> None:
    told: list[str] = []
    deadline = Deadline(tell=told.append)

    def nothing(seconds: float) -> NoReturn:
        time.sleep(min(seconds, 0.01))
        raise Timeout

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadline_module, "_TELL_EVERY_S", 0.05)
        for own_s, study_s in ((0.2, 60.0), (60.0, 0.2)):
            began = time.monotonic()
            with deadline.within(study_s), pytest.raises(Timeout):
                deadline.receive(nothing, own_s, "a trial")
            assert 0.2 <= time.monotonic() - began < 10.0
    assert told
    assert told[0].startswith("still waiting for a trial, 0.0")


def test_a_deadline_inside_of_another_is_never_later_and_ends_with_its_block() -> None:
    deadline = Deadline(time.monotonic() + 10.0)
    outside = deadline.at
    with deadline.within(60.0):
        assert deadline.at == outside
        with deadline.within(1.0):
            assert deadline.left_s <= 1.0
        assert deadline.at == outside
    with deadline.within(1.0):
        deadline.at = outside + 5.0  # the study has more time than was known
    assert deadline.at == outside + 5.0


def test_of_a_log_that_grows_without_end_the_last_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old\n" * 1000 + b"newer\n")
        shorten(log, 1000)
        assert log.stat().st_size <= 250
        writer.write(b"last\n")
    assert log.read_bytes().endswith(b"newer" + b"last\n")


@pytest.mark.thorough
def test_a_server_that_does_not_end_by_itself_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "exits.py"
    file.write_text(
        "import atexit, threading, time, torch\n\ndef subject():\n"
        "    atexit.register(time.sleep, 1000)\n"
        "    threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "    return torch.nn.Linear(2, 2), torch.ones(1, 2)\n",
        encoding="utf-8",
    )
    with WorkerPool(SubjectRef.here("locator", f"{file}:subject"), machine("cpu"), device="cpu", seed=0) as pool:
        server = pool.server({})
        began = time.monotonic()
    assert time.monotonic() - began < LEAST_S
    assert server.process is not None
    assert server.process.returncode is not None


def test_code_in_this_process_is_interrupted_also_where_it_goes_on() -> None:
    def goes_on() -> None:
        with contextlib.suppress(TimeoutError):
            waits()
        waits()

    def waits() -> None:
        while True:
            time.sleep(0.01)

    def interrupted() -> None:
        with pytest.raises(TimeoutError), interrupted_after(0.1):
            goes_on()
        ended.append(True)

    ended: list[bool] = []
    interrupted()
    beside = threading.Thread(target=interrupted)
    beside.start()
    beside.join()
    assert ended == [True, True]


def test_what_is_done_in_time_is_not_interrupted() -> None:
    before = threading.active_count()
    with interrupted_after(60.0):
        pass
    assert threading.active_count() == before
    assert issubclass(NoTimeLeft, ServerNotStarted)


PROFILED = """
import contextlib, cProfile, sys, time
from togi.core.interrupt import interrupted_after

def calls():
    return [abs(number) for number in range(1000)]

with interrupted_after(60.0):
    calls()
with contextlib.suppress(TimeoutError), interrupted_after(0.05):
    while True:
        time.sleep(0.01)
for _ in range(200):  # some end as they are interrupted
    with contextlib.suppress(TimeoutError), interrupted_after(0.002):
        time.sleep(0.002)
calls()
with cProfile.Profile():
    calls()
sys.settrace(lambda *_: None)
calls()
print("profiled")
"""


def test_a_process_in_which_code_could_be_interrupted_is_profiled_later() -> None:
    """Python 3.11 waited for ever for an exception that had been taken back."""
    done = subprocess.run([sys.executable, "-c", PROFILED], capture_output=True, text=True, timeout=60)
    assert done.stdout == "profiled\n", done.stderr


@pytest.mark.parametrize(("measuring_s", "expected_s"), [(2.0, 120.0), (60.0, 300.0), (600.0, 3000.0)])
def test_a_command_ends_by_a_multiple_of_its_time_for_measuring(measuring_s: float, expected_s: float) -> None:
    assert whole_s(measuring_s) == expected_s
