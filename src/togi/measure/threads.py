"""Puts the threads of this process on different cores, once, and lets the scheduler do what it likes after that.

A process that was stopped and resumed often wakes with all its threads on one core. Threads that spin at a barrier then
take turns on it, one scheduler tick each, until the load is balanced: a 9 ms model was seen to take 76 ms per pass, for
seconds, on an otherwise idle machine. Next to a process that keeps the other core busy the load is as balanced as it
can be, and stays so for seconds more. That says nothing about the model, so the threads are spread in each turn.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_TASKS = Path("/proc/self/task")
_STARTED_S = 0.005
"""After which what runs has woken its threads."""


def spread_threads() -> None:
    """Move the busiest threads of this process to a core each; no thread stays pinned.

    A thread whose own affinity is narrower than the process's (an engine pinned it) is left alone. Does nothing where
    the system has no such call.
    """
    if not hasattr(os, "sched_setaffinity") or not _TASKS.is_dir():
        return
    allowed = os.sched_getaffinity(0)
    cores = sorted(allowed)
    if len(cores) < 2:
        return
    movable = [tid for tid in _busiest_first() if _affinity(tid) == allowed]
    for place, tid in enumerate(movable):
        _move(tid, {cores[place % len(cores)]})
    for tid in movable:
        _move(tid, allowed)


@contextmanager
def spread_while_running(after_s: float = _STARTED_S, spread: Callable[[], None] = spread_threads) -> Iterator[None]:
    """Spread the threads once inside, while they run: one that sleeps wakes where it slept, wherever it was moved."""
    timer = threading.Timer(after_s, spread)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _busiest_first() -> list[int]:
    used = {int(entry): _cpu_ns(entry) for entry in os.listdir(_TASKS)}
    return sorted(used, key=lambda tid: -used[tid])


def _cpu_ns(tid: str) -> int:
    try:
        fields = (_TASKS / tid / "schedstat").read_text(encoding="utf-8").split()
    except OSError:
        return 0
    return int(fields[0]) if fields else 0


def _affinity(tid: int) -> set[int] | None:
    try:
        return os.sched_getaffinity(tid)
    except OSError:  # the thread has ended
        return None


def _move(tid: int, cores: set[int]) -> None:
    try:
        os.sched_setaffinity(tid, cores)
    except OSError:  # the thread has ended, or a sandbox forbids it: it stays where it is
        return
