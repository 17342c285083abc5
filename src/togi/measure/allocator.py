"""Takes one source of luck out of measuring: whether malloc gives memory back to the system after every call.

By default glibc returns the top of its heap when enough of it is free, and takes large blocks straight from the system
until it has learned better. Which of the two a process settles in depends on the accidental order of its first
allocations, and lasts. A model of 20 convolutions on 400 KB images took about 400 page faults per pass in the one state
and 2 in the other. So times are taken with memory kept, and memory is measured with memory returned.

Source: mallopt(3), malloc_trim(3). Under another C library or a preloaded allocator nothing in use is changed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEEP = {_M_TRIM_THRESHOLD: 2**31 - 1, _M_MMAP_THRESHOLD: 32 * 2**20}  # 32 MiB is the largest that glibc accepts
_RETURN = {_M_TRIM_THRESHOLD: 128 * 2**10, _M_MMAP_THRESHOLD: 128 * 2**10}  # its defaults, without the learning
_CHOSEN_BY = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_in_force = _KEEP  # what malloc has learned by itself cannot be put back, so afterwards memory is kept


def keep_freed_memory() -> bool:
    """Make malloc keep what is freed for the next call, as a long-running process mostly does.

    Call it once in every child, the reference's too, before the candidate is built. Says whether it took effect: not
    under another C library, nor where the environment sets malloc's thresholds (then that is the candidate's choice).
    """
    return _set(_KEEP)


@contextmanager
def freed_memory_returned() -> Iterator[None]:
    """Large blocks go back to the system when they are freed, so that fragments do not pass for memory in use."""
    before = _in_force
    _set(_RETURN)
    try:
        yield
    finally:
        _set(before)


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
