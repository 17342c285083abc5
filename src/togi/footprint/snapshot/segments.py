"""The segments of a snapshot: the state of the allocator when it was taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from togi.footprint.snapshot.record import Held, Pool

_ALLOCATED = "active_allocated"
_FREE = "inactive"


class Owner(NamedTuple):
    """Whom memory belongs to."""

    line: str
    pool: str
    stream: int


class Block(NamedTuple):
    """A part of a segment."""

    size: int
    state: str
    line: str


class Alive(NamedTuple):
    """A block that is allocated in the end."""

    size: int
    owner: Owner


def block_of(mapping: Mapping[str, Any]) -> Block:
    return Block(int(mapping["size"]), mapping["state"], mapping.get("frames") or "")


def pool_name(pool_id: object) -> str:
    """``default``, or the two numbers that CUDA graphs and ``torch.cuda.MemPool`` give to a pool of their own."""
    if not isinstance(pool_id, tuple | list) or len(pool_id) != 2:
        return ""
    return "default" if not any(pool_id) else f"private {pool_id[0]}.{pool_id[1]}"


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
