import contextvars
import ctypes
import os
import platform
import resource
import statistics

import pytest
import torch

from togi.measure import keep_freed_memory, with_own_heap


def _faults_per_call(keep: bool) -> tuple[bool, float]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            kept = keep_freed_memory() if keep else False
            for _ in range(10):
                torch.ones(8 * 2**20 // 4)
            counts = []
            for _ in range(10):
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                torch.ones(8 * 2**20 // 4)
                counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
            faults = statistics.median(counts)  # a busy system takes pages away now and then
            os.write(write, f"{int(kept)} {faults}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as answers:
        kept_text, faults_text = answers.read().split()
    os.waitpid(pid, 0)
    return bool(int(kept_text)), float(faults_text)


def test_freed_memory_is_used_again_without_page_faults():
    kept, faults = _faults_per_call(keep=True)
    if not kept:
        pytest.skip("this C library has no mallopt, or the environment sets its thresholds")
    assert faults < 20, "an 8 MB tensor has 2048 pages"


def test_thresholds_of_the_environment_are_a_candidates_own_choice(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    assert not keep_freed_memory()


def _is_of_main_heap() -> bool:
    """Of a block that is taken now: the third bit of the word before it (malloc.c, NON_MAIN_ARENA)."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    block = libc.malloc(5000)
    word = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value
    libc.free(block)
    return not word & 4


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other heaps")
def test_what_runs_with_its_own_heap_leaves_the_callers_alone() -> None:
    assert with_own_heap(_is_of_main_heap) is False


def test_what_runs_with_its_own_heap_sees_its_callers_context_and_raises_what_it_raises() -> None:
    named = contextvars.ContextVar("named", default="nobody")
    named.set("caller")
    assert with_own_heap(named.get) == "caller"
    with pytest.raises(ZeroDivisionError):
        with_own_heap(lambda: 1 // 0)
