"""Makes the account of a snapshot, in one pass over the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from togi.core.quantities import size
from togi.footprint.snapshot.allocator import (
    PRIVATE,
    Alive,
    DeviceSegments,
    MemoryOwner,
    OwnedBytes,
    TracebackFrame,
    block_of,
    frame_of,
    held,
    users_line,
)
from togi.footprint.snapshot.events import AllocatorState, EventTrace, FailedAllocation
from togi.footprint.snapshot.record import (
    DeviceAccount,
    HeldMemory,
    History,
    OutOfMemory,
    PoolSegments,
    SnapshotAccount,
    TraceEvent,
)
from togi.footprint.snapshot.unpickler import CONSUMED, PickledDict, PickledList, SafeUnpickler
from togi.footprint.snapshot.window import SnapshotError, Window

_FRAME: Final = {"filename", "line", "name"}
_BEFORE = "(before the recorded history)"
_WORTH_SAYING = 0.01
_LINES_TOLD = 3


def is_snapshot(path: str) -> bool:
    """A name or a first byte that only a pickle has. Says nothing of what is in it."""
    file = Path(path)
    if not file.is_file():
        return file.suffix in (".pickle", ".pkl")
    with file.open("rb") as opened:
        start = opened.read(2)
    return file.suffix in (".pickle", ".pkl") or (len(start) == 2 and start[0] == 0x80 and 2 <= start[1] <= 5)


def snapshot_account(path: str | Path) -> SnapshotAccount:
    """Peak, owners, fragmentation, failures and what is alive in the end, for each device.

    Reads what ``torch.cuda.memory._dump_snapshot`` wrote (torch 2.1 and later), and the bare list of
    ``torch.cuda.memory_snapshot()``. Nothing in the file is run. Raises SnapshotError.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            total_bytes = file.stat().st_size
            if not total_bytes:
                raise SnapshotError(f"{file} is empty: the process may have died before it wrote the snapshot")
            consumer = SnapshotConsumer()
            value = SafeUnpickler(Window(opened, total_bytes), consumer).run()
    except OSError as error:
        raise SnapshotError(f"{file} cannot be read: {error.strerror}") from None
    return _account(file, total_bytes, value, consumer)


class SnapshotConsumer:
    """Recognizes frames, blocks, segments and trace entries by their keys, and sums them up."""

    def __init__(self) -> None:
        self.segments: dict[int, dict[int, DeviceSegments]] = {}
        """By the identity of the list that they stand in, and by device."""
        self.traces: dict[int, EventTrace] = {}
        self._frames: dict[tuple[str, int, str], TracebackFrame] = {}
        self._holders: dict[int, PickledList] = {}

    def finished(self, mapping: PickledDict, holder: PickledList | None) -> Any:
        if "action" in mapping and holder is not None:
            trace = self.traces.get(id(holder))
            if trace is None:
                trace = self.traces[self._known(holder)] = EventTrace()
            trace.event(mapping)
            return CONSUMED
        if mapping.keys() >= _FRAME:
            return self._frame(mapping)
        if "state" in mapping and "size" in mapping:
            return block_of(mapping)
        if "blocks" in mapping and "total_size" in mapping and holder is not None:
            devices = self.segments.setdefault(self._known(holder), {})
            devices.setdefault(int(mapping.get("device", 0)), DeviceSegments()).add(mapping)
            return CONSUMED
        return mapping

    def line_of(self, frames: list[Any]) -> str | None:
        return users_line(frames) if all(type(frame) is TracebackFrame for frame in frames) else None

    def _known(self, holder: PickledList) -> int:
        """The identity of a list, which is kept so that no other ever has the same one."""
        self._holders[id(holder)] = holder
        return id(holder)

    def _frame(self, mapping: PickledDict) -> TracebackFrame:
        key = str(mapping["filename"]), int(mapping["line"]), str(mapping["name"])
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = frame_of(*key)
        return frame


def _account(file: Path, total_bytes: int, value: Any, consumer: SnapshotConsumer) -> SnapshotAccount:
    snapshot = {"segments": value} if type(value) is PickledList else value
    if not isinstance(snapshot, dict) or type(snapshot.get("segments")) is not PickledList:
        raise SnapshotError(
            f"{file} is a pickle of plain values, but no CUDA memory snapshot (it has no list 'segments'): "
            "torch.cuda.memory._dump_snapshot(FILE) writes one"
        )
    segments = consumer.segments.get(id(snapshot["segments"]), {})
    if snapshot["segments"]:
        raise SnapshotError(f"{file}: an item of 'segments' is not a segment (it has no 'blocks' and 'total_size')")
    traces, settings = _traces(file, snapshot, consumer), snapshot.get("allocator_settings")
    devices = sorted(segments.keys() | traces.keys())
    return SnapshotAccount(
        path=str(file),
        file_bytes=total_bytes,
        devices=tuple(
            _device_account(device, segments.get(device, DeviceSegments()), traces.get(device)) for device in devices
        ),
        allocator_settings=json.loads(json.dumps(settings, default=str)) if isinstance(settings, dict) else {},
        notes=tuple(_notes(traces, consumer)),
    )


def _traces(file: Path, snapshot: dict[str, Any], consumer: SnapshotConsumer) -> dict[int, EventTrace]:
    """The traces by device, which is the position of their list."""
    lists = snapshot.get("device_traces") or []
    if type(lists) not in (PickledList, list) or any(type(events) is not PickledList or events for events in lists):
        raise SnapshotError(f"{file}: 'device_traces' is not a list of events for each device: is the file whole?")
    traces = ((device, consumer.traces.get(id(events))) for device, events in enumerate(lists))
    return {device: trace for device, trace in traces if trace is not None}


def _notes(traces: dict[int, EventTrace], consumer: SnapshotConsumer) -> list[str]:
    notes: list[str] = []
    if not traces:
        notes.append(
            "no history was recorded, so that there is no peak and no timeline: call "
            "torch.cuda.memory._record_memory_history() before the code in question"
        )
    host = sum(trace.events for trace in consumer.traces.values()) - sum(trace.events for trace in traces.values())
    if host:
        notes.append(f"{host:,} events of pinned host memory are left out: this is the account of the devices")
    return notes


def _device_account(device: int, segments: DeviceSegments, trace: EventTrace | None) -> DeviceAccount:
    pools = segments.pools()
    alive = tuple(held(_sums([_named(address, block, trace) for address, block in segments.alive.items()])))
    return DeviceAccount(
        device=device,
        allocated_bytes=segments.allocated_bytes,
        reserved_bytes=segments.reserved_bytes,
        largest_free_bytes=segments.largest_free_bytes,
        pools=pools,
        alive=alive,
        history=_history(segments, trace) if trace else None,
        notes=(*(_device_notes(segments, trace) if trace else ()), *_private_pools(pools, alive)),
    )


def _private_pools(pools: tuple[PoolSegments, ...], alive: tuple[HeldMemory, ...]) -> Iterator[str]:
    """Notes on what each private pool holds, over its streams: the rest of the program cannot have it."""
    for name in dict.fromkeys(pool.pool for pool in pools if pool.pool.startswith(PRIVATE)):
        own = [pool for pool in pools if pool.pool == name]
        reserved, free = sum(pool.reserved_bytes for pool in own), sum(pool.free_bytes for pool in own)
        lines = [
            f"{size(holding.bytes)} by {holding.line or 'a line that is not known'}"
            for holding in alive
            if holding.pool == name
        ]
        yield (
            f"the {name} pool (of CUDA graphs, or a torch.cuda.MemPool) holds {size(reserved)}. {size(free)} of it are "
            "free, for its own graphs only: empty_cache() gives them back when these are gone. Alive there (outputs "
            f"that are still held, inputs): {', '.join(lines[:_LINES_TOLD]) or 'nothing'}"
        )


def _history(segments: DeviceSegments, trace: EventTrace) -> History:
    # blocks from before the first event that are still alive: alive at the peak too, whenever that was
    lasting = [block for address, block in segments.alive.items() if address not in trace.live]
    earlier = sum(block.size for block in lasting) + trace.freed_unseen_bytes
    reserved = segments.reserved_bytes - trace.reserved
    return History(
        events=trace.events,
        timed=trace.timed,
        peak_allocated_bytes=earlier + trace.peak.allocated,
        reserved_then_bytes=reserved + trace.peak.reserved,
        peak=_moment(trace.peak),
        peak_reserved_bytes=reserved + trace.peak_reserved.reserved,
        peak_reserved=_moment(trace.peak_reserved),
        earlier_bytes=earlier,
        holdings=tuple(_holdings(lasting, trace)),
        out_of_memory=tuple(_failure(failure, earlier, reserved) for failure in trace.failures),
        timeline=trace.timeline.finished(earlier, reserved),
    )


def _holdings(lasting: list[Alive], trace: EventTrace) -> list[HeldMemory]:
    sums = {owner: owned.copy() for owner, owned in trace.at_peak.items()}
    for owner, earlier_sum in _sums(lasting).items():
        sums.setdefault(owner, OwnedBytes()).add(earlier_sum.bytes, earlier_sum.blocks)
    holdings = held(sums)
    if unknown := trace.freed_unseen_bytes - trace.unseen_at_peak_bytes:
        holdings.append(HeldMemory(bytes=unknown, blocks=None, line=_BEFORE))
    return sorted(holdings, key=lambda holding: (-holding.bytes, holding.line, holding.pool))


def _named(address: int, block: Alive, trace: EventTrace | None) -> Alive:
    """A block without a traceback gets the one of its allocation, where that was recorded."""
    if block.owner.line or trace is None or address not in trace.live:
        return block
    return Alive(block.size, block.owner._replace(line=trace.live[address][1].line))


def _sums(alive: list[Alive]) -> dict[MemoryOwner, OwnedBytes]:
    sums: dict[MemoryOwner, OwnedBytes] = {}
    for block in alive:
        sums.setdefault(block.owner, OwnedBytes()).add(block.size, 1)
    return sums


def _moment(point: AllocatorState) -> TraceEvent:
    return TraceEvent(event=point.event, ms=point.ms, line=point.line)


def _failure(failure: FailedAllocation, earlier: int, reserved: int) -> OutOfMemory:
    return OutOfMemory(
        moment=_moment(failure.point),
        requested_bytes=failure.requested,
        device_free_bytes=failure.device_free,
        allocated_bytes=earlier + failure.point.allocated,
        reserved_bytes=reserved + failure.point.reserved,
    )


def _device_notes(segments: DeviceSegments, trace: EventTrace) -> list[str]:
    notes: list[str] = []
    if trace.freed_unseen_bytes:
        notes.append(
            f"{trace.freed_unseen_bytes:,} bytes were allocated before the first recorded event and freed later; which "
            "lines asked for them is not in the file. Record earlier, or with a larger max_entries"
        )
    if trace.unrecorded_frees:
        notes.append(
            f"{trace.unrecorded_frees:,} blocks were allocated where one was alive by the events: frees were not "
            "recorded (skip_actions), so that the peak is too high by what lay dead"
        )
    told_bytes = sum(size for size, _ in trace.live.values())
    booked = sum(block.size for address, block in segments.alive.items() if address in trace.live)
    if lost := [address for address in trace.live if address not in segments.alive]:
        notes.append(
            f"{len(lost):,} blocks are alive by the events and not in the segments: segments and events disagree"
        )
    elif booked - told_bytes > _WORTH_SAYING * max(booked, 1):
        notes.append(
            f"the allocator gave {booked - told_bytes:,} bytes more to the blocks alive in the end than the events "
            "tell (requests rounded to 512 bytes): the true peak is higher by about as much"
        )
    return notes
