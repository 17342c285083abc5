"""Sums up a snapshot as it is read: tracebacks to one line, segments to pools, the recorded events to a peak.

No event is kept. The events tell only what changed; what was there before the first one is found in the end: blocks
that were freed without having been allocated in the history, and blocks that are alive in the end and were not.

An event's size is what was asked for (``orig_size`` in CUDACachingAllocator.cpp); the allocator gives multiples of 512
bytes. Where it gives more (it does not split a large block for less than 1 MiB) the history does not say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple, final

from togi.core.user_code import is_users
from togi.footprint.snapshot.record import AllocatorTimeline, Held, Layer, Pool

_NATIVE = re.compile(r"^$|^\?\?|\.(?:c|cc|cpp|cxx|cu|h|hpp|inl|pyx|S|so(?:\.\d+)*)$")
_ALLOCATED = "active_allocated"
_FREE = "inactive"
_ROUND_BYTES: Final = 512
_POINTS: Final = 1200
"""More than a picture has columns."""

_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class Blame(IntEnum):
    """Whose code a frame is, the one to blame first: the user's (or of a package that uses torch), torch's, C++."""

    USER = 0
    LIBRARY = 1
    NATIVE = 2


@final
class Frame:
    """One frame of a traceback, as a line for people."""

    __slots__ = ("blame", "line")

    def __init__(self, line: str, blame: Blame) -> None:
        self.line = line
        self.blame = blame


def frame_of(filename: str, line: int, name: str) -> Frame:
    """``filename`` is what torch wrote: a path, ``??`` or nothing for native code, ``<...>`` for generated code."""
    return Frame(f"{filename}:{line} in {name}", _blame(filename))


def users_line(innermost_first: Iterable[Frame]) -> str:
    """``train.py:31 in step``; without a frame of the user's the innermost of a library, else of native code, else
    nothing."""
    fallback: Frame | None = None
    for frame in innermost_first:
        if frame.blame is Blame.USER:
            return frame.line
        if fallback is None or frame.blame < fallback.blame:
            fallback = frame
    return fallback.line if fallback is not None else ""


def _blame(filename: str) -> Blame:
    if _NATIVE.search(filename):
        return Blame.NATIVE
    return Blame.USER if is_users(filename) else Blame.LIBRARY


class Owner(NamedTuple):
    """Whom memory belongs to."""

    line: str
    pool: str
    stream: int


class SegmentBlock(NamedTuple):
    """A part of a segment."""

    size: int
    state: str
    line: str


class Alive(NamedTuple):
    """A block that is allocated in the end."""

    size: int
    owner: Owner


def block_of(mapping: Mapping[str, Any]) -> SegmentBlock:
    return SegmentBlock(int(mapping["size"]), mapping["state"], mapping.get("frames") or "")


PRIVATE = "private "
"""Begins the name of a pool that is not everybody's."""


def pool_name(pool_id: object) -> str:
    """``default``, or the two numbers that CUDA graphs and ``torch.cuda.MemPool`` give to a pool of their own."""
    if not isinstance(pool_id, tuple | list) or len(pool_id) != 2:
        return ""
    return "default" if not any(pool_id) else f"{PRIVATE}{pool_id[0]}.{pool_id[1]}"


@dataclass(kw_only=True)
class _Sums:
    segments: int = 0
    reserved: int = 0
    allocated: int = 0
    awaiting: int = 0
    free: int = 0
    largest_free: int = 0


@final
@dataclass
class DeviceSegments:
    """The segments of one device, summed as they come."""

    sums: dict[tuple[str, int, str], _Sums] = field(default_factory=dict)
    alive: dict[int, Alive] = field(default_factory=dict)
    """By address."""

    def add(self, segment: Mapping[str, Any]) -> None:
        pool, stream = pool_name(segment.get("segment_pool_id", (0, 0))), int(segment.get("stream", 0))
        sums = self.sums.setdefault((pool, stream, str(segment.get("segment_type", ""))), _Sums())
        sums.segments += 1
        sums.reserved += int(segment["total_size"])
        address = int(segment["address"])
        for block in segment["blocks"]:
            if block.state == _ALLOCATED:
                sums.allocated += block.size
                self.alive[address] = Alive(block.size, Owner(block.line, pool, stream))
            elif block.state == _FREE:
                sums.free += block.size
                sums.largest_free = max(sums.largest_free, block.size)
            else:
                sums.awaiting += block.size
            address += block.size

    @property
    def reserved_bytes(self) -> int:
        return sum(sums.reserved for sums in self.sums.values())

    @property
    def allocated_bytes(self) -> int:
        return sum(sums.allocated for sums in self.sums.values())

    @property
    def largest_free_bytes(self) -> int:
        return max((sums.largest_free for sums in self.sums.values()), default=0)

    def pools(self) -> tuple[Pool, ...]:
        """The largest first."""
        found = (
            Pool(
                pool=pool,
                stream=stream,
                kind=kind,
                segments=sums.segments,
                reserved_bytes=sums.reserved,
                allocated_bytes=sums.allocated,
                awaiting_free_bytes=sums.awaiting,
                free_bytes=sums.free,
                largest_free_bytes=sums.largest_free,
            )
            for (pool, stream, kind), sums in self.sums.items()
        )
        return tuple(sorted(found, key=lambda pool: (-pool.reserved_bytes, pool.pool, pool.stream, pool.kind)))


@final
class Sum:
    """Bytes and blocks of one owner."""

    __slots__ = ("blocks", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self.blocks = 0

    def add(self, bytes: int, blocks: int) -> None:
        self.bytes += bytes
        self.blocks += blocks


def held(sums: Mapping[Owner, Sum]) -> list[Held]:
    """The owners that hold something, the largest first."""
    found = (
        Held(bytes=one.bytes, blocks=one.blocks, line=owner.line, pool=owner.pool, stream=owner.stream)
        for owner, one in sums.items()
        if one.bytes
    )
    return sorted(found, key=lambda one: (-one.bytes, one.line, one.pool))


@final
@dataclass(frozen=True)
class State:
    """The state after one event, relative to the state before the first."""

    event: int
    ms: float
    allocated: int
    reserved: int
    line: str


@final
@dataclass(frozen=True)
class FailedAllocation:
    """An allocation that did not succeed."""

    point: State
    requested: int
    device_free: int | None


@final
class EventTrace:
    """Sums over the events so far.

    ``at_peak`` and what changed since are brought together at every new peak, so that the owners at the peak need
    neither the events nor a second pass.
    """

    def __init__(self) -> None:
        self.events = 0
        self.timed = False
        self.live: dict[int, tuple[int, Owner]] = {}
        self.freed_unseen_bytes = 0
        self.unrecorded_frees = 0
        self.peak = self.peak_reserved = State(-1, 0.0, 0, 0, "")
        self.at_peak: dict[Owner, Sum] = {}
        self.unseen_at_peak_bytes = 0
        self.failures: list[FailedAllocation] = []
        self.timeline = TimelineBuilder()
        self.allocated = 0
        self.reserved = 0
        self._since_peak: dict[Owner, Sum] = {}
        self._unseen_since_peak_bytes = 0
        self._first_us = 0
        self._ms = 0.0
        self._requests_seen = False

    def event(self, entry: Mapping[str, Any]) -> None:
        action, size = entry["action"], int(entry.get("size", 0))
        self._clock(entry)
        if action == "alloc":
            self._allocate(entry, size)
        elif action == "free_requested":
            self._requests_seen = True
            self._free(int(entry["addr"]), size)
        elif action == "free_completed":
            self._complete(int(entry["addr"]), size)
        elif sign := _RESERVES.get(action):
            self._reserve(entry, sign * size)
        elif action == "oom":
            self.failures.append(FailedAllocation(self._point(entry), size, _size(entry.get("device_free"))))
        self.events += 1

    def _clock(self, entry: Mapping[str, Any]) -> None:
        time_us = entry.get("time_us")
        if self.events == 0:
            self.timed, self._first_us = time_us is not None, int(time_us or 0)
        self._ms = max(self._ms, (time_us - self._first_us) / 1000 if self.timed and time_us else 0.0)
        if not self.timed:
            self._ms = float(self.events)

    def _point(self, entry: Mapping[str, Any]) -> State:
        return State(self.events, self._ms, self.allocated, self.reserved, entry.get("frames") or "")

    def _allocate(self, entry: Mapping[str, Any], size: int) -> None:
        address, rounded = int(entry["addr"]), -(-size // _ROUND_BYTES) * _ROUND_BYTES
        if address in self.live:
            self.unrecorded_frees += 1
            self._free(address, size)
        pool = entry.get("pool_id", entry.get("segment_pool_id"))
        owner = Owner(entry.get("frames") or "", pool_name(pool), int(entry.get("stream", 0)))
        self.live[address] = rounded, owner
        self._track(owner, rounded, 1)
        if self.allocated > self.peak.allocated:
            self.peak = self._point(entry)
            self._settle()

    def _free(self, address: int, size: int) -> None:
        if (block := self.live.pop(address, None)) is not None:
            self._track(block[1], -block[0], -1)
            return
        rounded = -(-size // _ROUND_BYTES) * _ROUND_BYTES
        self.freed_unseen_bytes += rounded
        self._unseen_since_peak_bytes += rounded
        self._change(-rounded)

    def _complete(self, address: int, size: int) -> None:
        """The end of a free that was requested before, unless requests were not recorded."""
        if address in self.live or not self._requests_seen:
            self._free(address, size)

    def _track(self, owner: Owner, bytes: int, blocks: int) -> None:
        since = self._since_peak.get(owner)
        if since is None:
            since = self._since_peak[owner] = Sum()
        since.add(bytes, blocks)
        self._change(bytes)

    def _change(self, bytes: int) -> None:
        self.allocated += bytes
        self.timeline.add(self._ms, self.allocated, self.reserved)

    def _reserve(self, entry: Mapping[str, Any], bytes: int) -> None:
        self.reserved += bytes
        if self.reserved > self.peak_reserved.reserved:
            self.peak_reserved = self._point(entry)
        self.timeline.add(self._ms, self.allocated, self.reserved)

    def _settle(self) -> None:
        for owner, since in self._since_peak.items():
            self.at_peak.setdefault(owner, Sum()).add(since.bytes, since.blocks)
        self._since_peak.clear()
        self.unseen_at_peak_bytes += self._unseen_since_peak_bytes
        self._unseen_since_peak_bytes = 0


def _size(value: Any) -> int | None:
    return None if value is None else int(value)


@final
class TimelineBuilder:
    """Allocated and reserved over time in a bounded number of points: of each stretch the highest."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int, int]] = [(0.0, 0, 0)]
        self._last = self._points[0]
        self._stretch = 1
        self._seen = 0

    def add(self, ms: float, allocated: int, reserved: int) -> None:
        point = self._last = ms, allocated, reserved
        if not self._seen % self._stretch:
            self._points.append(point)
        elif allocated > self._points[-1][1]:
            self._points[-1] = point
        self._seen += 1
        if len(self._points) >= 2 * _POINTS:
            self._points = [max(pair, key=lambda one: one[1]) for pair in self._pairs()]
            self._stretch *= 2
            self._seen = 0

    def finished(self, allocated: int, reserved: int) -> AllocatorTimeline:
        """With what there was before the first event added."""
        points = [*self._points, self._last]
        return AllocatorTimeline(
            ms=tuple(ms for ms, _, _ in points),
            bytes={
                Layer.ALLOCATED: tuple(allocated + one for _, one, _ in points),
                Layer.CACHED: tuple(max(0, reserved - allocated + two - one) for _, one, two in points),
            },
        )

    def _pairs(self) -> list[list[tuple[float, int, int]]]:
        return [self._points[first : first + 2] for first in range(0, len(self._points), 2)]
