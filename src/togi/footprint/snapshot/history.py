"""What events and segments say together: absolute sums, owners at the peak, what the file does not know."""

from __future__ import annotations

from togi.footprint.snapshot.record import DeviceAccount, Held, History, Moment, OutOfMemory
from togi.footprint.snapshot.segments import Alive, DeviceSegments, Owner, Sum, held
from togi.footprint.snapshot.trace import Failure, Point, Trace

_BEFORE = "(before the recorded history)"
_WORTH_SAYING = 0.01


def device_account(device: int, segments: DeviceSegments, trace: Trace | None) -> DeviceAccount:
    return DeviceAccount(
        device=device,
        allocated_bytes=segments.allocated_bytes,
        reserved_bytes=segments.reserved_bytes,
        largest_free_bytes=segments.largest_free_bytes,
        pools=segments.pools(),
        alive=tuple(held(_sums([_named(address, one, trace) for address, one in segments.alive.items()]))),
        history=_history(segments, trace) if trace else None,
        notes=tuple(_notes(segments, trace)) if trace else (),
    )


def _history(segments: DeviceSegments, trace: Trace) -> History:
    lasting = _lasting(segments, trace)
    earlier = sum(one.size for one in lasting) + trace.freed_unseen_bytes
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
        out_of_memory=tuple(_failure(one, earlier, reserved) for one in trace.failures),
        timeline=trace.course.timeline(earlier, reserved),
    )


def _lasting(segments: DeviceSegments, trace: Trace) -> list[Alive]:
    """Blocks from before the first event that are still alive: alive at the peak too, whenever that was."""
    return [one for address, one in segments.alive.items() if address not in trace.live]


def _holdings(lasting: list[Alive], trace: Trace) -> list[Held]:
    sums = {owner: _copy(one) for owner, one in trace.at_peak.items()}
    for owner, one in _sums(lasting).items():
        sums.setdefault(owner, Sum()).add(one.bytes, one.blocks)
    found = held(sums)
    if unknown := trace.freed_unseen_bytes - trace.unseen_at_peak_bytes:
        found.append(Held(bytes=unknown, blocks=None, line=_BEFORE))
    return sorted(found, key=lambda one: (-one.bytes, one.line, one.pool))


def _named(address: int, one: Alive, trace: Trace | None) -> Alive:
    """A block without a traceback gets the one of its allocation, where that was recorded."""
    if one.owner.line or trace is None or address not in trace.live:
        return one
    return Alive(one.size, one.owner._replace(line=trace.live[address][1].line))


def _sums(alive: list[Alive]) -> dict[Owner, Sum]:
    sums: dict[Owner, Sum] = {}
    for one in alive:
        sums.setdefault(one.owner, Sum()).add(one.size, 1)
    return sums


def _copy(one: Sum) -> Sum:
    copied = Sum()
    copied.add(one.bytes, one.blocks)
    return copied


def _moment(point: Point) -> Moment:
    return Moment(event=point.event, ms=point.ms, line=point.line)


def _failure(failure: Failure, earlier: int, reserved: int) -> OutOfMemory:
    return OutOfMemory(
        moment=_moment(failure.point),
        requested_bytes=failure.requested,
        device_free_bytes=failure.device_free,
        allocated_bytes=earlier + failure.point.allocated,
        reserved_bytes=reserved + failure.point.reserved,
    )


def _notes(segments: DeviceSegments, trace: Trace) -> list[str]:
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
    told = sum(size for size, _ in trace.live.values())
    booked = sum(one.size for address, one in segments.alive.items() if address in trace.live)
    if lost := [address for address in trace.live if address not in segments.alive]:
        notes.append(
            f"{len(lost):,} blocks are alive by the events and not in the segments: segments and events disagree"
        )
    elif booked - told > _WORTH_SAYING * max(booked, 1):
        notes.append(
            f"the allocator gave {booked - told:,} bytes more to the blocks alive in the end than the events tell "
            "(requests rounded to 512 bytes): the true peak is higher by about as much"
        )
    return notes
