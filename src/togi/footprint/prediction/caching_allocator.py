"""Replays torch's CUDA caching allocator: which segments a run's allocations and frees make it take from the device.

Default settings, one stream, and a device that always has the segment asked for: nothing is given back on the way.

Source: c10/cuda/CUDACachingAllocator.cpp (get_free_block, should_split, free_block) and its constants.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

_ROUND_BYTES = 512
_SMALL_BYTES = 1 << 20
"""Requests up to it come from the small pool."""
_SMALL_SEGMENT_BYTES = 2 << 20
_LARGE_SEGMENT_BYTES = 20 << 20
_MIN_OWN_SEGMENT_BYTES = 10 << 20
"""Requests from it get a segment of their own size."""
_ROUND_SEGMENT_BYTES = 2 << 20


@dataclass(eq=False)
class MemoryBlock:
    """A stretch of one segment, in use or free."""

    bytes: int
    address: int
    small: bool
    in_use: bool = False
    previous: MemoryBlock | None = None
    next: MemoryBlock | None = None


class CachingAllocator:
    """``allocate`` and ``free`` by any key; the peaks are of everything since the start."""

    def __init__(self) -> None:
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = 0
        """Never shrinks, so it is its own peak."""
        self.segments: list[MemoryBlock] = []
        """The first block of each."""
        self._in_use: dict[Hashable, MemoryBlock] = {}
        self._free: dict[bool, list[tuple[int, int, MemoryBlock]]] = {True: [], False: []}
        self._next_address = 0

    def allocate(self, key: Hashable, bytes: int) -> None:
        """Allocate nothing for 0 bytes. The key must not be in use."""
        if bytes <= 0:
            return
        if key in self._in_use:
            raise ValueError(f"{key!r} is allocated already")
        size = rounded(bytes)
        block = self._best_fit(size) or self._new_segment(size)
        self._split(block, size)
        block.in_use = True
        self._in_use[key] = block
        self.allocated_bytes += block.bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def free(self, key: Hashable) -> None:
        """Free nothing for a key that holds no bytes."""
        block = self._in_use.pop(key, None)
        if block is None:
            return
        self.allocated_bytes -= block.bytes
        block.in_use = False
        for neighbour in (block.previous, block.next):
            if neighbour is not None and not neighbour.in_use:
                free = self._free[neighbour.small]
                del free[bisect_left(free, (neighbour.bytes, neighbour.address), key=lambda entry: entry[:2])]
                block = _joined(block, neighbour)
        self._add_free(block)

    def holds(self, key: Hashable) -> bool:
        """True if something is allocated under the key."""
        return key in self._in_use

    def blocks(self) -> Iterator[MemoryBlock]:
        """All, segment by segment."""
        for first in self.segments:
            block: MemoryBlock | None = first
            while block is not None:
                yield block
                block = block.next

    def _best_fit(self, size: int) -> MemoryBlock | None:
        """The smallest free block that holds it; of equal ones that of the lowest address."""
        free = self._free[size <= _SMALL_BYTES]
        place = bisect_left(free, size, key=lambda entry: entry[0])
        return free.pop(place)[2] if place < len(free) else None

    def _new_segment(self, size: int) -> MemoryBlock:
        block = MemoryBlock(_segment_bytes(size), self._next_address, size <= _SMALL_BYTES)
        self._next_address += block.bytes
        self.reserved_bytes += block.bytes
        self.segments.append(block)
        return block

    def _split(self, block: MemoryBlock, size: int) -> None:
        """The remainder becomes a free block where it is large enough to be worth one; else it is lost to ``block``."""
        remaining = block.bytes - size
        if remaining < _ROUND_BYTES if block.small else remaining <= _SMALL_BYTES:
            return
        rest = MemoryBlock(remaining, block.address + size, block.small, previous=block, next=block.next)
        if block.next is not None:
            block.next.previous = rest
        block.bytes, block.next = size, rest
        self._add_free(rest)

    def _add_free(self, block: MemoryBlock) -> None:
        insort(self._free[block.small], (block.bytes, block.address, block), key=lambda entry: entry[:2])


def rounded(bytes: int) -> int:
    """The bytes that a request takes."""
    return -(-bytes // _ROUND_BYTES) * _ROUND_BYTES


def _segment_bytes(size: int) -> int:
    if size <= _SMALL_BYTES:
        return _SMALL_SEGMENT_BYTES
    if size < _MIN_OWN_SEGMENT_BYTES:
        return _LARGE_SEGMENT_BYTES
    return -(-size // _ROUND_SEGMENT_BYTES) * _ROUND_SEGMENT_BYTES


def _joined(block: MemoryBlock, neighbour: MemoryBlock) -> MemoryBlock:
    """The two as one: the one with the lower address grows."""
    low, high = sorted((block, neighbour), key=lambda b: b.address)
    low.bytes += high.bytes
    low.next = high.next
    if high.next is not None:
        high.next.previous = low
    return low
