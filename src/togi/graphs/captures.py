"""The graphs of one function in a pool: which sizes have one, as far as the memory goes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

import torch

from togi.core.quantities import first_line, plural, size
from togi.graphs.buckets import choose_buckets
from togi.graphs.calls import ServedCalls
from togi.graphs.pool import GraphError, Pool
from togi.graphs.recording import capturing, what_to_do, why_not_captured

_MOST_TIMES = 3
"""Captures of one bucket: functions that drop each other's graphs over and over run in eager after that."""


class Captures:
    """A graph for each bucket that the pool's memory allows; what others need for longest gives way, and comes back."""

    def __init__(self, calls: ServedCalls, pool: Pool, sizes: Mapping[int, int], limit: int) -> None:
        self._calls, self._pool, self._sizes, self._limit = calls, pool, sizes, limit
        self.owner = object()
        self.buckets: tuple[int, ...] = ()
        self.eager: list[int] = []
        """Buckets whose graph was not faster."""
        self.notes: list[str] = []
        """What the memory did not allow."""
        self.buffer_bytes = 0
        self._needed = 0
        """Bytes that the latest capture took, with the buffers."""
        self._times: Counter[int] = Counter()
        """How often each bucket was captured."""

    def __contains__(self, bucket: int) -> bool:
        return (self.owner, bucket) in self._pool

    def capture(self) -> None:
        """The largest size first, which sizes the pool; once more, to measure what a further graph takes; then as many
        as that leaves room for, and buckets for them."""
        sizes = sorted(self._sizes)
        if not self._fits(sizes[-1]):
            most = bisect_left(sizes, True, key=lambda n: not self._fits(n))  # what is needed grows with the size
            self.notes.append(f"sizes above {sizes[most - 1] if most else 0} do not fit into the memory")
            sizes = sizes[:most]
            if not sizes or not self._fits(sizes[-1]):
                raise GraphError(
                    f"no graph fits: that of the smallest size, {min(self._sizes)}, is refused at memory="
                    f"{size(self._pool.memory_bytes)} (latest capture: {size(self._needed)}); give more, or call the "
                    "function as it is"
                )
        calls = {n: self._sizes[n] for n in sizes}
        self.buckets = choose_buckets(calls, min(self._limit, 1 + self._room_for_more(sizes[-1])))
        for at, bucket in reversed(list(enumerate(self.buckets[:-1]))):
            if not self._record(bucket):
                self.notes.append(f"no room for {plural(at + 1, 'more graph')}: smaller sizes are padded more")
                self.buckets = self.buckets[at + 1 :]
                break
        self._times.clear()

    def bucket_for(self, n: int) -> int | str:
        """The bucket whose graph serves size ``n``; else why none does."""
        at = bisect_left(self.buckets, n)
        if at == len(self.buckets):
            return f"sizes above the largest bucket ({self.buckets[-1]})"
        if self.buckets[at] in self.eager:
            return "a graph was not faster than eager"
        captured = next((bucket for bucket in self.buckets[at:] if bucket in self), None)
        if captured is not None:
            return captured
        bucket = self.buckets[at]
        if self._times[bucket] >= _MOST_TIMES:
            return "its graph was dropped for others' again and again: give the pool more memory"
        with torch.inference_mode(False), torch.no_grad():
            try:
                return bucket if self._record(bucket) else "its graph was dropped for others', and has no room"
            except GraphError as error:
                self._times[bucket] = _MOST_TIMES
                return f"its graph was dropped for others', and cannot be captured again: {first_line(error)}"

    def replay(self, bucket: int, place: int = 0) -> None:
        """The graph at ``place`` among those of the bucket."""
        self._pool.replay((self.owner, bucket), place)

    def run(self, bucket: int, place: int = 0) -> None:
        """What that graph does, without it: with torch's flags as they are now, and not as they were captured."""
        with self._calls.autocast(), capturing():  # a backward pass has a thread of its own
            self._calls.runs[place](*self._calls.inputs.views(bucket))

    def leave_to_eager(self, bucket: int) -> None:
        self.eager.append(bucket)
        self._pool.drop((self.owner, bucket))

    def drop_all(self) -> None:
        self._pool.drop_all(self.owner, self.buffer_bytes)
        self.buffer_bytes = 0

    def _fits(self, largest: int) -> bool:
        """A graph of this size alone, which is held if so."""
        self.drop_all()
        try:
            self.buffer_bytes = self._calls.allocate(largest)
        except torch.OutOfMemoryError:
            return False
        self._pool.buffer_bytes += self.buffer_bytes
        return self._record(largest)

    def _room_for_more(self, largest: int) -> int:
        """How many graphs more: what one takes is measured by a second one of the largest size."""
        pool, again = self._pool, (self.owner, 0)
        try:
            graph_bytes = pool.record(again, self._calls.runs, self._calls.inputs.views(largest))
        except torch.OutOfMemoryError:
            return 0
        pool.drop(again)
        return max(0, pool.memory_bytes - pool.held_bytes) // graph_bytes if graph_bytes > 0 else self._limit

    def _record(self, bucket: int) -> bool:
        """Captured, and within the memory; what other functions need for longest gives way."""
        key, pool = (self.owner, bucket), self._pool
        self._times[bucket] += 1
        before = pool.held_bytes
        try:
            pool.record(key, self._calls.runs, self._calls.inputs.views(bucket))
        except torch.OutOfMemoryError:
            return False
        except Exception as error:  # foreign code: whatever waits for the device, or a library of its own
            raise GraphError(f"{why_not_captured(error)}. {what_to_do(error)}") from error
        self._needed = pool.held_bytes - before + self.buffer_bytes
        if self._needed <= pool.memory_bytes and pool.make_room(self.owner):
            return True
        pool.drop(key)
        return False
