"""Sums up a snapshot as it is read: tracebacks to one line, segments to pools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from togi.core.user_code import is_users
from togi.footprint.snapshot.record import HeldMemory, PoolSegments

_NATIVE = re.compile(r"^$|^\?\?|\.(?:c|cc|cpp|cxx|cu|h|hpp|inl|pyx|S|so(?:\.\d+)*)$")
_ALLOCATED = "active_allocated"
_FREE = "inactive"


class Blame(IntEnum):
    """Whose code a frame is, the one to blame first: the user's (or of a package that uses torch), torch's, C++."""

    USER = 0
    LIBRARY = 1
    NATIVE = 2


class TracebackFrame:
    """One frame of a traceback, as a line for people."""

    __slots__ = ("blame", "line")

    def __init__(self, line: str, blame: Blame) -> None:
        self.line = line
        self.blame = blame


def frame_of(filename: str, line: int, name: str) -> TracebackFrame:
    """``filename`` is what torch wrote: a path, ``??`` or nothing for native code, ``<...>`` for generated code."""
    blame = Blame.USER if is_users(filename) else Blame.LIBRARY
    return TracebackFrame(f"{filename}:{line} in {name}", Blame.NATIVE if _NATIVE.search(filename) else blame)


def users_line(innermost_first: Iterable[TracebackFrame]) -> str:
    """``train.py:31 in step``; without a frame of the user's the innermost of a library, else of native code, else
    nothing."""
    fallback: TracebackFrame | None = None
    for frame in innermost_first:
        if frame.blame is Blame.USER:
            return frame.line
        if fallback is None or frame.blame < fallback.blame:
            fallback = frame
    return fallback.line if fallback is not None else ""


class MemoryOwner(NamedTuple):
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
    owner: MemoryOwner


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
                self.alive[address] = Alive(block.size, MemoryOwner(block.line, pool, stream))
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

    def pools(self) -> tuple[PoolSegments, ...]:
        """The largest first."""
        pools = (
            PoolSegments(
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
        return tuple(sorted(pools, key=lambda pool: (-pool.reserved_bytes, pool.pool, pool.stream, pool.kind)))


class OwnedBytes:
    """Bytes and blocks of one owner."""

    __slots__ = ("blocks", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self.blocks = 0

    def add(self, bytes: int, blocks: int) -> None:
        self.bytes += bytes
        self.blocks += blocks

    def copy(self) -> OwnedBytes:
        copied = OwnedBytes()
        copied.add(self.bytes, self.blocks)
        return copied


def held(sums: Mapping[MemoryOwner, OwnedBytes]) -> list[HeldMemory]:
    """The owners that hold something, the largest first."""
    holdings = (
        HeldMemory(bytes=owned.bytes, blocks=owned.blocks, line=owner.line, pool=owner.pool, stream=owner.stream)
        for owner, owned in sums.items()
        if owned.bytes
    )
    return sorted(holdings, key=lambda holding: (-holding.bytes, holding.line, holding.pool))
