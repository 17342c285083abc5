"""Checks many files in a few processes. One that dies takes one file with it, which is reported; the rest goes on.

A process gets one path at a time as a line of JSON, and answers with one line. The first ones are forked where that is
safe, and so start with the rules loaded. Others start anew; it is not ``multiprocessing``, which would run the caller's
main module again.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, NamedTuple, NoReturn

from togi.core.interpreter import python
from togi.core.plain_files import read_plain
from togi.lint.cache import cache_key
from togi.lint.check_file import check_bytes, source_rules
from togi.lint.finding import FileReport, Problem

BYTES_PER_PROCESS = 250_000
"""Fewer bytes than this are checked sooner than a process starts."""
MAX_PROCESSES = 16
LONGEST_S = 120
"""A file that takes longer ends the process that checks it. What is known to take long is bounded otherwise."""
_COLLECT_EVERY = 50


class FileRequest(NamedTuple):
    """A file for a process to check."""

    path: str
    shown: str
    judged: str
    """``CheckedFile.judged``."""
    hot: Sequence[str]
    limit: int = 2**30
    """Bytes that are read of it."""


class FileAnswer(NamedTuple):
    """Its report in the cache's form with the key, or why the file cannot be read."""

    report: str = ""
    key: str = ""
    error: str = ""


@dataclass(frozen=True)
class Task:
    """A file, and the bytes that were in it when it was looked at."""

    request: FileRequest
    data: bytes


@dataclass(frozen=True)
class Done:
    """The outcome of a task."""

    report: FileReport
    key: bytes | None = None
    """Of what was really read; None where nothing was."""


def check_all(tasks: Sequence[Task]) -> list[Done]:
    """One answer per task, in order."""
    count = processes(sum(len(task.data) for task in tasks), len(tasks))
    if count < 2 and not (tasks and may_fork()):  # a fork costs nothing, and what goes wrong with a file stays in it
        return [_checked(task.request, task.data) for task in tasks]
    return _ProcessPool(tasks).run(max(count, 1))


def processes(total_bytes: int, files: int) -> int:
    """The number of processes that are worth starting for so much source."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_PROCESSES, total_bytes // BYTES_PER_PROCESS, files)


def _checked(request: FileRequest, data: bytes) -> Done:
    report = check_bytes(data, request.shown, request.hot, judged=request.judged)
    return Done(report, cache_key(request.judged, data, request.hot))


class _ProcessPool:
    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._done: list[Done | None] = [None] * len(tasks)
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        # The largest first, so that no process is left alone with one at the end.
        for number in sorted(range(len(tasks)), key=lambda number: -len(tasks[number].data)):
            self._waiting.put(number)

    def run(self, count: int) -> list[Done]:
        forked = _forked(count) if may_fork() else []
        first = [*forked, *[None] * (count - len(forked))]
        threads = [threading.Thread(target=self._serve, args=(process,), daemon=True) for process in first]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # What is left when no process could be started at all is done here.
        return [done or _checked(task.request, task.data) for done, task in zip(self._done, self._tasks, strict=True)]

    def _serve(self, process: _Process | None) -> None:
        """One thread per process: hand over a file, wait for its answer, take the next."""
        try:
            while True:
                number = self._waiting.get_nowait()
                process = process or _start()
                began = time.monotonic()
                done = _ask(process, self._tasks[number])
                self._done[number] = done or _died(process, self._tasks[number], time.monotonic() - began)
                process = process if done is not None else None
        except (queue.Empty, OSError):  # nothing left, or no process can be started: the caller's own does the rest
            return
        finally:
            if process is not None:
                _stop(process)


@dataclass(frozen=True)
class _Process:
    requests: IO[bytes]
    answers: IO[bytes]
    wait: Callable[[], int]
    """Until it has ended; its exit code, negative where a signal ended it."""


def may_fork() -> bool:
    """A copy of a process with threads (also those of torch) could wait forever for a lock that one of them held."""
    return sys.platform == "linux" and threading.active_count() == 1 and "torch" not in sys.modules


def _forked(count: int) -> list[_Process]:
    source_rules()  # loaded once, for all of them
    started: list[_Process] = []
    with suppress(OSError):  # as many as the machine allows
        while len(started) < count:
            started.append(_fork(started))
    return started


def _fork(others: Sequence[_Process]) -> _Process:
    """Raises OSError where no process can be started."""
    if sys.platform == "win32":
        raise OSError("Windows has no fork")
    (asked, asking), (answered, answering) = os.pipe(), os.pipe()
    try:
        pid = os.fork()
    except OSError:
        for end in (asked, asking, answered, answering):
            os.close(end)
        raise
    if pid == 0:
        pipes = [pipe for process in others for pipe in (process.requests, process.answers)]
        _be_child(asked, answering, [asking, answered, *(pipe.fileno() for pipe in pipes)])
    os.close(asked)
    os.close(answering)
    requests, answers = open(asking, "wb"), open(answered, "rb")  # noqa: SIM115 (``_stop`` closes them)
    return _Process(requests, answers, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _be_child(asked: int, answering: int, of_caller: Sequence[int]) -> NoReturn:
    """Never returns into the caller's code, whose buffers and exit handlers are not the child's."""
    code = 1
    try:
        for end in of_caller:
            os.close(end)  # else another process would never see the end of its input
        with open(asked, "rb") as requests, open(answering, "wb") as answers:
            answer_requests(requests, answers)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _start() -> _Process:
    code = "from togi.lint.pool import answer_on_standard_streams as a; a()"
    process = subprocess.Popen(python(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    return _Process(process.stdin, process.stdout, process.wait)


def _stop(process: _Process) -> int:
    with suppress(OSError):  # of a dead process; what it did not read does not matter
        process.requests.close()
    process.answers.close()
    return process.wait()


def _ask(process: _Process, task: Task) -> Done | None:
    """None when the process is gone."""
    try:
        _write(process.requests, task.request)
        line = process.answers.readline()
    except OSError:
        return None
    if not line.endswith(b"\n"):
        return None
    answer = FileAnswer(*json.loads(line))
    if answer.error:
        return _problem(task, answer.error)
    return Done(FileReport.from_kept(answer.report), bytes.fromhex(answer.key))


def _write(pipe: IO[bytes], message: FileRequest | FileAnswer) -> None:
    """Sends a line of Python's own JSON, which knows the lone surrogates of a file's name that is not text."""
    pipe.write(json.dumps(message).encode() + b"\n")
    pipe.flush()


def _problem(task: Task, message: str) -> Done:
    return Done(FileReport(problems=(Problem(path=task.request.shown, message=message),)))


def _died(process: _Process, task: Task, took_s: float) -> Done:
    code = _stop(process)
    how = f"took longer than {LONGEST_S} s" if took_s >= LONGEST_S else f"died (exit code {code})"
    return _problem(task, f"the process that checked it {how}: exclude it if it was generated")


def answer_on_standard_streams() -> None:
    """A child that was started anew."""
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # what anything prints does not disturb the answers
    answer_requests(sys.stdin.buffer, answers)


def answer_requests(requests: IO[bytes], answers: IO[bytes]) -> None:
    """The child: check what each line of ``requests`` names until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller was interrupted too, and closes our input
    gc.disable()  # trees are full of cycles and short-lived: scanning them repeatedly costs a third of the time
    source_rules()
    gc.freeze()  # what is loaded stays, and need not be looked at again
    for number, line in enumerate(requests, start=1):
        with _ended_after(LONGEST_S):
            _write(answers, _answer(FileRequest(*json.loads(line))))
        if number % _COLLECT_EVERY == 0:
            gc.collect()


@contextmanager
def _ended_after(limit_s: int) -> Iterator[None]:
    """Ends this process where the block takes longer, also inside C code and where its parent is gone."""
    if sys.platform == "win32":  # no alarm; this starts a thread for each file, so it is not used elsewhere
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            faulthandler.dump_traceback_later(limit_s, exit=True, file=nowhere)
            yield
            faulthandler.cancel_dump_traceback_later()
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(limit_s)
    yield
    signal.alarm(0)


def _answer(request: FileRequest) -> FileAnswer:
    try:
        data = read_plain(request.path, request.limit)
    except OSError as error:
        return FileAnswer(error=f"cannot be read: {error.strerror or error}")
    done = _checked(request, data)
    assert done.key is not None
    return FileAnswer(done.report.kept(), done.key.hex())
