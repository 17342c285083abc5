"""The account of a CUDA memory snapshot, as a record."""

from __future__ import annotations

from typing import Any

from togi.core.backports import StrEnum
from togi.core.records import SCHEMA_VERSION, Record


class HeldMemory(Record):
    """Memory with one owner: equal line, pool and stream are one."""

    bytes: int
    blocks: int | None
    """None where only the sum is known: blocks from before the recorded history."""
    line: str = ""
    pool: str = ""
    stream: int | None = None


class TraceEvent(Record):
    """An event of the recorded history."""

    event: int
    """Counted from 0; -1 is the state before the first one."""
    ms: float
    """Since the first event; the event's number where no times were recorded."""
    line: str = ""


class OutOfMemory(Record):
    """The allocator raised OutOfMemoryError."""

    moment: TraceEvent
    requested_bytes: int
    device_free_bytes: int | None = None
    """What CUDA still reported to be free."""
    allocated_bytes: int
    reserved_bytes: int


class PoolSegments(Record):
    """The segments of one pool and stream, when the snapshot was taken."""

    pool: str
    stream: int
    kind: str
    """``small`` (blocks up to 1 MiB) or ``large``."""
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    awaiting_free_bytes: int
    """Freed by the program, while another stream may still use it."""
    free_bytes: int
    largest_free_bytes: int


class TimelineLayer(StrEnum):
    """A layer of the timeline."""

    ALLOCATED = "allocated"
    CACHED = "reserved, not allocated"


class AllocatorTimeline(Record):
    """Over the recorded history, thinned out; every stretch shows the moment at which the most was allocated."""

    ms: tuple[float, ...]
    bytes: dict[TimelineLayer, tuple[int, ...]]


class History(Record):
    """The recorded events of one device, summed up. Allocated bytes are requests rounded up to 512 bytes."""

    events: int
    timed: bool
    peak_allocated_bytes: int
    """Sum of ``holdings``."""
    reserved_then_bytes: int
    """Reserved when the most was allocated."""
    peak: TraceEvent
    peak_reserved_bytes: int
    peak_reserved: TraceEvent
    earlier_bytes: int
    """Allocated before the first recorded event."""
    holdings: tuple[HeldMemory, ...]
    """Owners at the peak, the largest first."""
    out_of_memory: tuple[OutOfMemory, ...] = ()
    timeline: AllocatorTimeline

    @property
    def fragmentation_bytes(self) -> int:
        """Reserved and not allocated at the peak."""
        return self.reserved_then_bytes - self.peak_allocated_bytes


class DeviceAccount(Record):
    """One device. ``allocated_bytes``, ``reserved_bytes``, ``pools`` and ``alive`` are of the snapshot's moment, as the
    allocator itself books them."""

    device: int
    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int
    """The largest block that is reserved and free."""
    pools: tuple[PoolSegments, ...]
    alive: tuple[HeldMemory, ...]
    """What was alive in the end, by the line that allocated it, the largest first."""
    history: History | None = None
    notes: tuple[str, ...] = ()


class SnapshotAccount(Record):
    """The account of a file of ``torch.cuda.memory._dump_snapshot``."""

    schema_version: int = SCHEMA_VERSION
    path: str
    file_bytes: int
    devices: tuple[DeviceAccount, ...]
    allocator_settings: dict[str, Any] = {}
    notes: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The most that any device had allocated, as far as the file knows."""
        return max(
            (
                device.history.peak_allocated_bytes if device.history else device.allocated_bytes
                for device in self.devices
            ),
            default=0,
        )
