"""PyTorch's threads of OpenMP: how many the calling thread uses, their floating-point mode, their end before a fork.

Behind it: that torch's CPU library is linked to an OpenMP library, and on x86 to MKL (torch 2.9 to 2.15 on Linux). Both
keep a number for each thread of the process. ``torch.set_num_threads`` sets one more, of the process: threads that come
to life later take it over. Where a function is missing, its caller here says what is done instead.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

__all__ = ["end_openmp_threads", "own_thread_count", "share_floating_point_mode"]

_SOFT = 1
"""``omp_pause_soft``: what OpenMP keeps besides its threads stays."""
_LARGEST_MODE = 512
"""Bytes that hold the floating-point mode of a thread (``fenv_t``) on any system: it takes 8 to 40."""


@functools.cache
def _function(name: str) -> Any:
    """The function of that name of torch's CPU library or of a library that this is linked to; None where there is
    none. A process may hold several libraries of OpenMP."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        return getattr(ctypes.CDLL(str(library)), name, None)
    return None


def end_openmp_threads() -> None:
    """End those that parallel operators of the calling thread left; its next one starts others. A process that has some
    cannot fork a child that computes. A library older than OpenMP 5.0 ends none: whoever wanted to fork finds them."""
    if (pause := _function("omp_pause_resource_all")) is not None:
        pause(_SOFT)


@contextmanager
def own_thread_count(count: int) -> Iterator[None]:
    """Inside, operators of the calling thread use so many threads, and those of other threads as many as before.

    Where torch has no OpenMP, or a MKL that cannot be asked, it is ``torch.set_num_threads``, which threads that start
    meanwhile take over for good.
    """
    if count > 1:
        _end_before_forks()
    before = torch.get_num_threads()  # torch sets a thread's number when it is first asked: not to overwrite it later
    if before == count:
        yield
        return
    put_back = _set_own_count(count, before)
    try:
        yield
    finally:
        put_back()


def _set_own_count(count: int, before: int) -> Callable[[], None]:
    """Returns what puts the number back."""
    openmp, mkl = _function("omp_set_num_threads"), _function("MKL_Set_Num_Threads_Local")
    if openmp is None or (mkl is None and torch.backends.mkl.is_available()):  # type: ignore[no-untyped-call]
        torch.set_num_threads(count)
        return lambda: torch.set_num_threads(before)
    openmp(count)
    of_mkl = None if mkl is None else mkl(count)  # 0: it had none of its own, and took OpenMP's

    def put_back() -> None:
        openmp(before)
        if mkl is not None:
            mkl(of_mkl)

    return put_back


def share_floating_point_mode(threads: int) -> bool:
    """Give the calling thread's floating-point mode (rounding, denormals) to the threads of its parallel operators,
    which start as many: once they run they do not follow it. False where this system's OpenMP cannot be asked to."""
    run, read, write = (_function(name) for name in ("GOMP_parallel", "fegetenv", "fesetenv"))
    if run is None or read is None or write is None:
        return False
    _end_before_forks()
    mode = ctypes.create_string_buffer(_LARGEST_MODE)
    read(mode)
    run(write, mode, threads, 0)  # each of the team, the calling thread too, calls ``write(mode)``
    return True


@functools.cache
def _end_before_forks() -> None:
    """What is asked of them here starts them, and a forked child would wait for them in its first parallel operator: a
    worker of a DataLoader, which uses one thread by itself, in the first that is given more here."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=end_openmp_threads)
