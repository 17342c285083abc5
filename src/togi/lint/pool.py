"""Many files over a few processes. A process that dies takes one file with it, which is reported; the rest goes on.

A process gets one path at a time as a line of JSON, and answers with one line. It is not ``multiprocessing``: it starts
without torch, without a copy of the caller's threads, and without running the caller's main module again.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, final

from togi.lint.cache import cache_key
from togi.lint.check_file import check_bytes, source_rules
from togi.lint.finding import FileReport, Problem

BYTES_PER_PROCESS = 250_000
"""Fewer bytes than this are checked sooner than a process starts."""
MAX_PROCESSES = 16
_COLLECT_EVERY = 50


@final
@dataclass(frozen=True)
class Task:
    path: str
    shown: str
    data: bytes
    hot: tuple[str, ...]


@final
@dataclass(frozen=True)
class Done:
    key: bytes | None
    """Of what was really read; None where nothing was."""
    report: FileReport


def check_all(tasks: Sequence[Task]) -> list[Done]:
    """One answer per task, in order."""
    count = processes(sum(len(task.data) for task in tasks), len(tasks))
    if count < 2:
        return [_here(task) for task in tasks]
    return _Pool(tasks).run(count)


def processes(total_bytes: int, files: int) -> int:
    """How many processes are worth starting for so much source."""
    return min(_cores(), MAX_PROCESSES, total_bytes // BYTES_PER_PROCESS, files)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _here(task: Task) -> Done:
    report = check_bytes(task.data, task.shown, task.hot)
    return Done(cache_key(task.path, task.data, task.hot), report)


@final
class _Pool:
    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._done: list[Done | None] = [None] * len(tasks)
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        # The largest first, so that no process is left alone with one at the end.
        for number in sorted(range(len(tasks)), key=lambda number: -len(tasks[number].data)):
            self._waiting.put(number)

    def run(self, count: int) -> list[Done]:
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # What is left when no process could be started at all is done here.
        return [done or _here(task) for done, task in zip(self._done, self._tasks, strict=True)]

    def _serve(self) -> None:
        """One thread per process: hand over a file, wait for its answer, take the next."""
        process: subprocess.Popen[bytes] | None = None
        try:
            while True:
                number = self._waiting.get_nowait()
                process = process or _start()
                done = _ask(process, self._tasks[number])
                self._done[number] = done or _died(process, self._tasks[number])
                process = process if done is not None else None
        except (queue.Empty, OSError):  # nothing left, or no process can be started: the caller's own does the rest
            return
        finally:
            if process is not None:
                _stop(process)


def _start() -> subprocess.Popen[bytes]:
    # The caller's import path behind the interpreter's own: the same togi is found, and a json.py of the user's, in a
    # folder that the caller has put first, is not. For the same reason -P: not the working directory.
    code = f"import sys; sys.path += {sys.path!r}; from togi.lint.pool import answer_requests; answer_requests()"
    return subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):  # of a dead process; what it did not read does not matter
        process.stdin.close()
    process.stdout.close()
    process.wait()


def _ask(process: subprocess.Popen[bytes], task: Task) -> Done | None:
    """None when the process is gone."""
    assert process.stdin is not None
    assert process.stdout is not None
    request = {"path": task.path, "shown": task.shown, "hot": task.hot}
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except OSError:
        return None
    return _read(json.loads(answer), task) if answer.endswith(b"\n") else None


def _read(answer: dict[str, Any], task: Task) -> Done:
    if "error" in answer:
        return Done(None, FileReport(problems=(Problem(path=task.shown, message=answer["error"]),)))
    return Done(bytes.fromhex(answer["key"]), FileReport.model_validate_json(answer["report"]))


def _died(process: subprocess.Popen[bytes], task: Task) -> Done:
    _stop(process)
    message = f"the process that checked it died (exit code {process.returncode}): exclude it if it was generated"
    return Done(None, FileReport(problems=(Problem(path=task.shown, message=message),)))


def answer_requests() -> None:
    """The child: check what standard input names until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller was interrupted too, and closes our input
    gc.disable()  # trees are full of cycles and short-lived: scanning them repeatedly costs a third of the time
    source_rules()
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # what anything prints does not disturb the answers
    for number, line in enumerate(sys.stdin.buffer, start=1):
        _answer(json.loads(line), answers)
        if number % _COLLECT_EVERY == 0:
            gc.collect()


def _answer(request: dict[str, Any], answers: BinaryIO) -> None:
    try:
        with open(request["path"], "rb") as file:
            data = file.read()
    except OSError as error:
        reply = {"error": f"cannot be read: {error.strerror or error}"}
    else:
        report = check_bytes(data, request["shown"], request["hot"])
        key = cache_key(request["path"], data, request["hot"])
        reply = {"key": key.hex(), "report": report.model_dump_json(exclude_defaults=True)}
    answers.write(json.dumps(reply).encode() + b"\n")
    answers.flush()
