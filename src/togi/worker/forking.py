"""Forking from a process that has imported torch: when a child could still do its work."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import torch

from togi.torch_internals.cuda import in_bad_fork
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


def _cuda_lost_by_fork() -> bool:
    """Asked in a forked child: what a subject's file called (``torch.cuda.device_count()``) may have started the driver
    without torch knowing."""
    pid = os.fork()
    if pid == 0:
        os._exit(1 if in_bad_fork() else 0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) != 0


def thread_count() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 1
