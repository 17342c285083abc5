"""Known allocations, each in a forked child of its own, as in a trial. Tolerance: 3 MB or 5 %, whichever is more.

It is forked from a process that has done little but import torch, as a trial's is. One that has run other tests has a
heap full of holes, and what a child takes from them is new memory for it.
"""

import itertools
import mmap
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

import cloudpickle
import numpy as np
import pytest
import torch

from tests.artifact.forks import in_a_fork
from togi.footprint.prediction.caching_allocator import CachingAllocator
from togi.measure import MemoryMark, keep_freed_memory, mark_memory, measure_footprint
from togi.measure import memory as module
from togi.subject.inputs import Inputs

MB = 2**20
ONE = [Inputs((0,))]


FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["torch", "numpy", "togi.measure"])


def _in_child(work: Callable[[], dict]) -> dict:
    answer, of_child = FORKED.Pipe(duplex=False)
    child = FORKED.Process(target=_answer, args=(cloudpickle.dumps(work), of_child))
    child.start()
    of_child.close()
    found = answer.recv()
    child.join()
    return found


def _answer(work: bytes, of_child: Connection) -> None:
    called = cloudpickle.loads(work)  # what it holds is inherited

    def answers() -> bool:
        keep_freed_memory()
        torch.set_num_threads(1)
        of_child.send(called())
        return True

    assert in_a_fork(answers)


def _near(found: int, wanted: int) -> bool:
    return abs(found - wanted) <= max(3 * MB, 0.05 * wanted)


def _footprint(build: Callable[[], Callable], **settings) -> dict:
    def work() -> dict:
        mark, call = mark_memory(), build()
        call(0)
        return measure_footprint(call, ONE, mark, **{"exact": False, **settings}).model_dump()

    return _in_child(work)


def test_weights_and_working_memory_of_torch():
    def build():
        weights = torch.ones(64 * MB // 4)
        return lambda x: (torch.empty(40 * MB // 4).fill_(x), weights)

    found = _footprint(build, exact=True)
    assert _near(found["idle_bytes"], 64 * MB)
    assert _near(found["peak_bytes"], 40 * MB)
    assert found["allocator_peak_bytes"] == 40 * MB


def test_memory_that_torch_does_not_know_of():
    def build():
        weights = np.ones(50 * MB, np.uint8)
        return lambda _: (np.full(30 * MB, 1, np.uint8), weights)

    found = _footprint(build, exact=True)
    assert _near(found["idle_bytes"], 50 * MB)
    assert _near(found["peak_bytes"], 30 * MB)
    assert found["allocator_peak_bytes"] is None


def test_many_small_blocks_that_are_freed_are_not_idle():
    def build():
        blocks = [torch.ones(2500) for _ in range(5000)]
        del blocks
        return lambda _: None

    assert _near(_footprint(build)["idle_bytes"], 0)


def test_peak_is_that_of_the_moment_not_the_sum():
    def call(_):
        for _ in range(5):
            torch.ones(20 * MB // 4)

    assert _near(_footprint(lambda: call)["peak_bytes"], 20 * MB)
    events = [(2 * k + freed, -20 if freed else 20) for k in range(5) for freed in (0, 1)]
    assert module._highest(events[::-1]) == 20
    assert module._highest([(0, 20), (1, 20), (2, -20)]) == 40
    assert module._highest([(0, -20)]) is None


def test_holes_that_others_left_in_the_heap_do_not_add_to_the_peak():
    """What is left of a hole once a block fills it goes to something small that stays: the next takes another hole."""
    hole, small = 20 * MB + 130_000, 30_000

    def build():
        before = [(torch.ones(hole // 4), torch.ones(1000)) for _ in range(5)]
        kept = [one for _, one in before]
        del before

        def call(_):
            stays = [*kept]
            for _ in range(5):
                block = torch.ones(20 * MB // 4)
                stays.append(torch.ones(small))
                del block

        return call

    found = _footprint(build)
    assert _near(found["peak_bytes"], 20 * MB)


def test_a_loop_of_calls_takes_what_its_later_calls_take():
    """As it is, malloc leaves holes that the next call may not find: what one call takes says little of the others.
    Here it has no say: 40 MB would fill a hole that earlier tests left in this process, and stay there beside the 100.
    """

    def build():
        sizes = itertools.chain([40] * 6, itertools.repeat(100))

        def call(_):
            size = next(sizes)
            with mmap.mmap(-1, size * MB) as block:
                for _ in range(size):
                    block.write(bytes(MB))

        return call

    assert _near(_footprint(build, as_it_is=True)["peak_bytes"], 100 * MB)
    assert _near(_footprint(build)["peak_bytes"], 40 * MB), "the lowest of two calls"


def test_inherited_weights_count_only_by_what_the_caller_says():
    inherited = torch.ones(64 * MB // 4)
    build = lambda: lambda _: inherited.sum()  # noqa: E731
    assert _near(_footprint(build)["idle_bytes"], 0)
    assert _near(_footprint(build, held_bytes=64 * MB)["idle_bytes"], 64 * MB)


def test_writing_to_inherited_memory_is_not_growth():
    inherited = torch.ones(32 * MB // 4)
    found = _footprint(lambda: lambda _: inherited.add_(1))
    assert _near(found["idle_bytes"], 0)
    assert _near(found["peak_bytes"], 0)


def test_weights_read_in_place_from_a_file_count(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"\1" * (24 * MB))

    def build():
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return lambda _: np.frombuffer(mapped, np.uint8).sum()

    def work() -> dict:
        mark, call = mark_memory(), build()
        call(0)
        return measure_footprint(call, ONE, mark, exact=False).model_dump()

    assert _near(_in_child(work)["idle_bytes"], 24 * MB)


def test_peak_by_looking_where_the_kernel_cannot_reset_its_mark():
    def work() -> dict:
        module._reset_high_water = lambda: False
        return {"peak": module.peak_resident_bytes(lambda: [torch.ones(64 * MB // 4) for _ in range(3)])}

    assert _in_child(work)["peak"] >= 0.8 * 192 * MB


def test_libraries_do_not_count_and_data_files_do():
    lines = [
        "7f00-7f10 r-xp 00000000 00:00 1    /usr/lib/x86_64-linux-gnu/libc.so.6",
        "Rss:                 100 kB",
        "Anonymous:             4 kB",
        "7f10-7f20 r--p 00000000 00:00 2    /data/my weights.bin",
        "Rss:                 200 kB",
        "Anonymous:            16 kB",
        "7f20-7f30 rw-p 00000000 00:00 0 ",
        "Rss:                  32 kB",
        "Anonymous:            32 kB",
        "7f30-7f40 rw-p 00000000 00:00 0    [heap]",
        "Rss:                   8 kB",
        "Anonymous:             8 kB",
    ]
    assert module._count_resident(lines, ("/usr/",)) == (60 * 1024, 184 * 1024)


def test_an_error_of_the_candidate_goes_through():
    def call(_):
        raise RuntimeError("broken model")

    with pytest.raises(RuntimeError, match="broken model"):
        measure_footprint(call, ONE, mark_memory())


class Block:
    """Memory that the simulated allocator gives away, as long as it lives."""

    def __init__(self, allocator: CachingAllocator, size: int):
        self.allocator = allocator
        allocator.allocate(id(self), size)

    def __del__(self):
        self.allocator.free(id(self))


def on_cuda(monkeypatch: pytest.MonkeyPatch) -> CachingAllocator:
    """torch.cuda tells of an allocator with torch's rules."""
    allocator = CachingAllocator()
    told = {
        "memory_reserved": lambda: allocator.reserved_bytes,
        "max_memory_reserved": lambda: allocator.reserved_bytes,
        "memory_allocated": lambda: allocator.allocated_bytes,
        "max_memory_allocated": lambda: allocator.peak_allocated_bytes,
        "reset_peak_memory_stats": lambda: setattr(allocator, "peak_allocated_bytes", allocator.allocated_bytes),
        "synchronize": lambda: None,
    }
    for name, stand_in in told.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(module, "_release", lambda _: None)
    monkeypatch.setattr(module, "own_cuda_bytes", lambda: None)
    monkeypatch.setattr(module, "cuda_bytes_of_all", lambda: allocator.reserved_bytes)
    return allocator


@pytest.mark.parametrize("given_mb", [3, 30])
def test_on_a_device_what_a_call_is_given_is_there_once_and_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch, given_mb: int
):
    """3 MiB come in a segment of 20 MiB, in whose rest the call works: it would have to reserve that itself."""
    allocator = on_cuda(monkeypatch)
    weights, given_at_once = Block(allocator, 64 * MB), []

    def given_as(_args, _kwargs):
        given_at_once.append(allocator.allocated_bytes == 64 * MB)
        return (Block(allocator, given_mb * MB),), {}

    def call(_):
        assert weights
        Block(allocator, 10 * MB)

    mark = MemoryMark(of_all=True)
    found = measure_footprint(call, ONE, mark, device="cuda", passes=3, given_as=given_as)
    assert given_at_once == [True] * 3, "those of the pass before are gone"
    assert found.idle_bytes == 64 * MB
    assert 10 * MB <= found.peak_bytes <= 20 * MB
    assert found.allocator_peak_bytes == 10 * MB
    again = measure_footprint(lambda _: call(0), ONE, mark, device="cuda")
    assert again.allocator_peak_bytes == 10 * MB


def test_on_a_device_inputs_that_fit_into_what_is_reserved_hide_nothing_that_a_call_takes(
    monkeypatch: pytest.MonkeyPatch,
):
    allocator = on_cuda(monkeypatch)
    Block(allocator, 30 * MB)  # freed, and still reserved: such a hole is left in a segment that is in use

    def given_as(_args, _kwargs):
        return (Block(allocator, 30 * MB),), {}

    def call(_):
        Block(allocator, 40 * MB)

    found = measure_footprint(call, ONE, MemoryMark(of_all=True), device="cuda", given_as=given_as)
    assert (found.idle_bytes, found.peak_bytes) == (30 * MB, 40 * MB)


@pytest.mark.gpu
def test_device_memory():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")  # cuBLAS takes its workspace, 32 MiB on Hopper
    mark = mark_memory("cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    weights = torch.ones(64 * MB // 4, device="cuda")
    found = measure_footprint(lambda _: weights * 2, ONE, mark, device="cuda")
    assert 64 * MB <= found.idle_bytes - before <= 80 * MB
    assert found.allocator_peak_bytes == 64 * MB
