"""Forking from a process that has imported torch: when a child could still do its work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from togi.torch_internals.cuda import devices_counted_by, in_bad_fork
from togi.torch_internals.openmp import end_openmp_threads


def fork_safe(device: str) -> bool:
    """Return whether a forked child can do its work: no other thread, and CUDA, if needed, not started here."""
    if thread_count() > 1 or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    return device.partition(":")[0] != "cuda" or not _cuda_lost_by_fork()


def end_idle_threads() -> None:
    """End what would keep this process from forking, so that each trial would load the subject anew: tqdm's monitor,
    which lives on after the first progress bar (of weights that are loaded, say), and the threads of parallel operators
    (of weights that are computed). The next bar and the next operator start others."""
    end_openmp_threads()
    for thread in threading.enumerate():
        if type(thread).__module__ == "tqdm._monitor":
            thread.exit()  # type: ignore[attr-defined]


def counting_devices_in_forks() -> AbstractContextManager[None]:
    """Inside, code that asks torch for CUDA devices (``torch.cuda.is_available()``) leaves no thread here: NVML keeps
    one."""
    return devices_counted_by(_answer_of_a_fork)


def _cuda_lost_by_fork() -> bool:
    """Asked in a forked child: what a subject's file called (``torch.cuda.device_count()``) may have started the driver
    without torch knowing."""
    return _answer_of_a_fork(lambda: int(in_bad_fork())) != 0


_NO_ANSWER = 255


def _answer_of_a_fork(question: Callable[[], int]) -> int:
    """Return what a forked child answers, 0 to 254; -1 where it answers something else, or ends."""
    pid = os.fork()
    if pid == 0:
        try:
            answer = question()
            os._exit(answer if 0 <= answer < _NO_ANSWER else _NO_ANSWER)
        finally:
            os._exit(_NO_ANSWER)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if 0 <= code < _NO_ANSWER else -1


def thread_count() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 1
