"""Sums over the recorded events of a snapshot: the peak, its owners, and the timeline.

No event is kept. The events tell only what changed; what was there before the first one is found in the end: blocks
that were freed without having been allocated in the history, and blocks that are alive in the end and were not.

An event's size is what was asked for (``orig_size`` in CUDACachingAllocator.cpp); the allocator gives multiples of 512
bytes. Where it gives more (it does not split a large block for less than 1 MiB) the history does not say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from togi.footprint.prediction.caching_allocator import rounded
from togi.footprint.snapshot.allocator import MemoryOwner, OwnedBytes, pool_name
from togi.footprint.snapshot.record import AllocatorTimeline, TimelineLayer

_POINTS: Final = 1200
"""More than a picture has columns."""
_RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass(frozen=True)
class AllocatorState:
    """The state after one event, relative to the state before the first."""

    event: int
    ms: float
    allocated: int
    reserved: int
    line: str


@dataclass(frozen=True)
class FailedAllocation:
    """An allocation that did not succeed."""

    point: AllocatorState
    requested: int
    device_free: int | None


class EventTrace:
    """Sums over the events so far.

    ``at_peak`` and what changed since are brought together at every new peak, so that the owners at the peak need
    neither the events nor a second pass.
    """

    def __init__(self) -> None:
        self.events = 0
        self.timed = False
        self.live: dict[int, tuple[int, MemoryOwner]] = {}
        self.freed_unseen_bytes = 0
        self.unrecorded_frees = 0
        self.peak = self.peak_reserved = AllocatorState(-1, 0.0, 0, 0, "")
        self.at_peak: dict[MemoryOwner, OwnedBytes] = {}
        self.unseen_at_peak_bytes = 0
        self.failures: list[FailedAllocation] = []
        self.timeline = TimelineBuilder()
        self.allocated = 0
        self.reserved = 0
        self._since_peak: dict[MemoryOwner, OwnedBytes] = {}
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
            free = entry.get("device_free")
            self.failures.append(FailedAllocation(self._point(entry), size, None if free is None else int(free)))
        self.events += 1

    def _clock(self, entry: Mapping[str, Any]) -> None:
        time_us = entry.get("time_us")
        if self.events == 0:
            self.timed, self._first_us = time_us is not None, int(time_us or 0)
        self._ms = max(self._ms, (time_us - self._first_us) / 1000 if self.timed and time_us else 0.0)
        if not self.timed:
            self._ms = float(self.events)

    def _point(self, entry: Mapping[str, Any]) -> AllocatorState:
        return AllocatorState(self.events, self._ms, self.allocated, self.reserved, entry.get("frames") or "")

    def _allocate(self, entry: Mapping[str, Any], size: int) -> None:
        address, given_bytes = int(entry["addr"]), rounded(size)
        if address in self.live:
            self.unrecorded_frees += 1
            self._free(address, size)
        pool = entry.get("pool_id", entry.get("segment_pool_id"))
        owner = MemoryOwner(entry.get("frames") or "", pool_name(pool), int(entry.get("stream", 0)))
        self.live[address] = given_bytes, owner
        self._track(owner, given_bytes, 1)
        if self.allocated > self.peak.allocated:
            self.peak = self._point(entry)
            self._settle()

    def _free(self, address: int, size: int) -> None:
        if (block := self.live.pop(address, None)) is not None:
            self._track(block[1], -block[0], -1)
            return
        given_bytes = rounded(size)
        self.freed_unseen_bytes += given_bytes
        self._unseen_since_peak_bytes += given_bytes
        self._change(-given_bytes)

    def _complete(self, address: int, size: int) -> None:
        """The end of a free that was requested before, unless requests were not recorded."""
        if address in self.live or not self._requests_seen:
            self._free(address, size)

    def _track(self, owner: MemoryOwner, bytes: int, blocks: int) -> None:
        since = self._since_peak.get(owner)
        if since is None:
            since = self._since_peak[owner] = OwnedBytes()
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
            self.at_peak.setdefault(owner, OwnedBytes()).add(since.bytes, since.blocks)
        self._since_peak.clear()
        self.unseen_at_peak_bytes += self._unseen_since_peak_bytes
        self._unseen_since_peak_bytes = 0


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
            pairs = [self._points[first : first + 2] for first in range(0, len(self._points), 2)]
            self._points = [max(pair, key=lambda point: point[1]) for pair in pairs]
            self._stretch *= 2
            self._seen = 0

    def finished(self, allocated: int, reserved: int) -> AllocatorTimeline:
        """The timeline, with what there was before the first event added."""
        points = [*self._points, self._last]
        return AllocatorTimeline(
            ms=tuple(ms for ms, _, _ in points),
            bytes={
                TimelineLayer.ALLOCATED: tuple(allocated + allocated_since for _, allocated_since, _ in points),
                TimelineLayer.CACHED: tuple(
                    max(0, reserved - allocated + two - allocated_since) for _, allocated_since, two in points
                ),
            },
        )
