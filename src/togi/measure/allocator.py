"""Takes one source of luck out of measuring: whether malloc gives memory back to the system after every call.

By default glibc returns the top of its heap when enough of it is free, and takes large blocks straight from the system
until it has learned better. Which of the two a process settles in depends on the accidental order of its first
allocations, and lasts. A model of 20 convolutions on 400 KB images took about 400 page faults per pass in the one state
and 2 in the other. So times are taken with memory kept, and memory is measured with memory returned.

Source: mallopt(3), malloc_trim(3). Under another C library or a preloaded allocator nothing in use is changed.
"""

from __future__ import annotations

import contextvars
import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

R = TypeVar("R")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEEP = {_M_TRIM_THRESHOLD: 2**31 - 1, _M_MMAP_THRESHOLD: 32 * 2**20}  # 32 MiB is the largest that glibc accepts
_RETURN = {_M_TRIM_THRESHOLD: 128 * 2**10, _M_MMAP_THRESHOLD: 128 * 2**10}  # its defaults, without the learning
_M_MMAP_MAX = -4
_KEEP_ALL = {_M_TRIM_THRESHOLD: 2**31 - 1, _M_MMAP_MAX: 0}
"""Blocks of any size come from the heap and stay there: the threshold above ends at 32 MiB."""
_LEARNED = {_M_TRIM_THRESHOLD: 64 * 2**20, _M_MMAP_THRESHOLD: 32 * 2**20, _M_MMAP_MAX: 65_536}
"""Where glibc's learning ends in a process that frees large blocks. Setting anything ends it for good."""
_NAMES = {_M_TRIM_THRESHOLD: "M_TRIM_THRESHOLD", _M_MMAP_THRESHOLD: "M_MMAP_THRESHOLD", _M_MMAP_MAX: "M_MMAP_MAX"}
_CHOSEN_BY = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
NOT_SET = "malloc of this process is not glibc's, or the environment has its settings"
"""Why a technique that sets malloc is refused."""
_MOST_HOLES = 10_000
_in_force = _KEEP  # what malloc has learned by itself cannot be put back, so afterwards memory is kept


def keep_freed_memory() -> bool:
    """Make malloc keep what is freed for the next call, as a long-running process mostly does.

    Call it once in every child, the reference's too, before the candidate is built. Says whether it took effect: not
    under another C library, nor where the environment sets malloc's thresholds (then that is the candidate's choice).
    """
    return _set(_KEEP)


def keep_all_memory() -> bool:
    """Make malloc keep all that is freed, whatever its size. Says whether it took effect, as ``keep_freed_memory``."""
    return _set(_KEEP_ALL)


def return_freed_memory() -> bool:
    """Make malloc give blocks of 128 KiB and more back when they are freed, and what it keeps free now. Says whether it
    took effect, as ``keep_freed_memory``."""
    took_effect = _set(_RETURN)
    if took_effect:
        trim()
    return took_effect


def keep_as_learned() -> None:
    """Undo ``keep_all_memory`` or ``return_freed_memory``: malloc keeps what it would by now have learned to keep."""
    if _set(_LEARNED):
        trim()


def lines_that_keep_all() -> str:
    """Python that does what ``keep_all_memory`` does, without togi."""
    return _lines(_KEEP_ALL)


def lines_that_return() -> str:
    """Python that does what ``return_freed_memory`` does, without togi."""
    return f"{_lines(_RETURN)}\nlibc.malloc_trim(0)"


def _lines(thresholds: dict[int, int]) -> str:
    calls = [f"libc.mallopt({name}, {size})  # {_NAMES[name]}" for name, size in thresholds.items()]
    return "\n".join(["import ctypes", "libc = ctypes.CDLL(None)", *calls])


def with_own_heap(work: Callable[[], R]) -> R:
    """What ``work`` returns or raises, run in a thread, for which glibc has a heap of its own. It leaves no holes in
    the caller's, over which the blocks of what is measured next would scatter: a training step of 211 MiB took 251
    where it had been proven before."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(contextvars.copy_context().run, work).result()


@contextmanager
def freed_memory_returned() -> Iterator[None]:
    """Large blocks go back to the system when they are freed, so that fragments do not pass for memory in use."""
    before = _in_force
    holes = _fill_holes() if _set(_RETURN) else []
    try:
        yield
    finally:
        for block in holes:
            _libc().free(block)
        _set(before)


def _fill_holes() -> list[ctypes.c_void_p]:
    """Take every large free block inside the heap without touching its pages; to be freed again.

    malloc prefers such a hole, left by whatever ran before, to the system, whatever the threshold. What is freed there
    stays resident, and if something small has settled in its rest the next block takes another hole: of five blocks of
    20 MiB, one after the other, up to five were resident at once.
    """
    try:
        malloc, own = _libc().malloc, ctypes.CDLL(None).malloc
    except (OSError, AttributeError):
        return []
    if _address(own) != _address(malloc):
        return []  # a preloaded allocator: it has no such heap
    size, taken = 2**30, list[ctypes.c_void_p]()
    while size >= _RETURN[_M_MMAP_THRESHOLD] and len(taken) < _MOST_HOLES:
        block = ctypes.c_void_p(malloc(size))
        if block.value is None or _from_the_system(block.value):
            _libc().free(block)
            size //= 2
        else:
            taken.append(block)
    return taken


def _from_the_system(block: int) -> bool:
    """The second bit of the word before a block of glibc's (malloc.c, IS_MMAPPED)."""
    return bool(ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & 2)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL("libc.so.6")
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    return libc


def _address(function: object) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]


def trim() -> None:
    """Give what malloc keeps free back to the system, once; other allocators keep theirs, and it counts."""
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function(0)


def _set(thresholds: dict[int, int]) -> bool:
    global _in_force
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in _CHOSEN_BY):
        return False
    _in_force = thresholds
    return all(bool(mallopt(name, size)) for name, size in thresholds.items())
