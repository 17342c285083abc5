"""The replay keeps the invariants of the caching allocator, and its published cases."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from togi.footprint.prediction.caching_allocator import CachingAllocator, rounded

MIB = 1 << 20
SIZES = st.one_of(st.integers(0, 4096), st.integers(MIB - 1024, MIB + 1024), st.integers(1, 64 * MIB))


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """(what, key, bytes): frees are of what is allocated."""
    alive: list[int] = []
    steps: list[tuple[str, int, int]] = []
    for key in range(draw(st.integers(1, 60))):
        if alive and draw(st.booleans()):
            steps.append(("free", alive.pop(draw(st.integers(0, len(alive) - 1))), 0))
        else:
            steps.append(("allocate", key, draw(SIZES)))
            alive.append(key)
    return steps


def play(steps: list[tuple[str, int, int]]) -> CachingAllocator:
    allocator = CachingAllocator()
    for what, key, size in steps:
        if what == "free":
            allocator.free(key)
        else:
            allocator.allocate(key, size)
        check(allocator)
    return allocator


def check(allocator: CachingAllocator) -> None:
    blocks = sorted(allocator.blocks(), key=lambda block: block.address)
    assert sum(block.bytes for block in blocks) == allocator.reserved_bytes >= allocator.peak_allocated_bytes
    assert sum(block.bytes for block in blocks if block.in_use) == allocator.allocated_bytes
    for low, high in itertools.pairwise(blocks):
        assert low.address + low.bytes == high.address  # no overlap, no hole: segments follow each other here
    for block in blocks:
        if block.next is not None:
            assert block.next.previous is block
            assert block.in_use or block.next.in_use  # two free neighbours would have been joined


@given(histories())
@settings(max_examples=60, deadline=None)
def test_blocks_never_overlap_and_free_neighbours_are_joined(steps: list[tuple[str, int, int]]) -> None:
    play(steps)


@given(histories())
@settings(max_examples=40, deadline=None)
def test_freeing_everything_restores_whole_segments(steps: list[tuple[str, int, int]]) -> None:
    allocator = play(steps)
    for key in range(60):
        allocator.free(key)
    check(allocator)
    assert allocator.allocated_bytes == 0
    assert all(first.next is None and not first.in_use for first in allocator.segments)


@given(histories())
@settings(max_examples=40, deadline=None)
def test_a_second_time_needs_no_more(steps: list[tuple[str, int, int]]) -> None:
    """What was freed serves again: repeating a run of one size from an empty state reserves at most as much again."""
    allocator = play(steps)
    once = allocator.peak_allocated_bytes
    assert once >= max((rounded(size) for what, _, size in steps if what == "allocate"), default=0)
    assert allocator.reserved_bytes <= sum(20 * MIB + 2 * rounded(s) for w, _, s in steps if w == "allocate")


@pytest.mark.parametrize(
    ("bytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # the remainder of 1 MiB is not split off
        (0, 0, 0),
    ],
)
def test_one_request(bytes: int, allocated: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate("a", bytes)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated, reserved)


def test_fragmentation_is_seen() -> None:
    """Two free stretches of 12 MiB in two segments do not serve 20 MiB."""
    allocator = CachingAllocator()
    for key in "ab":
        allocator.allocate(key, 12 * MIB)
    for key in "ab":
        allocator.free(key)
    allocator.allocate("c", 20 * MIB)
    assert allocator.reserved_bytes == 44 * MIB


def test_the_smallest_fit_is_taken() -> None:
    allocator = CachingAllocator()
    for key, size in (("a", 40), ("b", 16), ("c", 30)):
        allocator.allocate(key, size * MIB)
    for key in "abc":
        allocator.free(key)
    allocator.allocate("d", 15 * MIB)
    assert allocator.allocated_bytes == 16 * MIB


def test_a_key_in_use_is_refused() -> None:
    allocator = CachingAllocator()
    allocator.allocate("a", 1)
    with pytest.raises(ValueError, match="'a'"):
        allocator.allocate("a", 1)
