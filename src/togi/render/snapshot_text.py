"""A CUDA memory snapshot as text for a terminal (``togi memory FILE.pickle``). Its HTML page uses the same words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.quantities import milliseconds, size
from togi.footprint.snapshot.record import (
    DeviceAccount,
    HeldMemory,
    History,
    OutOfMemory,
    PoolSegments,
    SnapshotAccount,
    TraceEvent,
)
from togi.render.memory_text import Owner, owners, short_line, summed
from togi.render.terminal import bullets, clean, stack, table

_LINE = re.compile(r":\d+ in ")
_UNKNOWN = "(no traceback recorded)"


def snapshot_text(account: SnapshotAccount, *, limit: int = 10) -> RenderableType:
    """For each device the peak and its owners, failures, the state in the end and what was alive then."""
    notes = [
        *account.notes,
        *(f"device {device.device}: {note}" for device in account.devices for note in device.notes),
    ]
    if settings := account.allocator_settings.get("PYTORCH_CUDA_ALLOC_CONF"):
        notes.append(f"allocator settings: {settings}")
    nothing = Text("The snapshot holds no segment and no event: nothing was allocated on any device.", "bold")
    devices = [part for device in account.devices for part in _device(device, limit)]
    return stack(*(devices or [nothing]), bullets(notes))


def moment_text(moment: TraceEvent, history: History) -> str:
    """``event 1,200 of 5,000, after 31.2 ms``."""
    if moment.event < 0:
        return "before the first recorded event"
    after = f", after {milliseconds(moment.ms)}" if history.timed else ""
    return f"event {moment.event + 1:,} of {history.events:,}{after}"


def failure_text(failure: OutOfMemory, history: History) -> str:
    """Say what was asked for, what was free and what the allocator held then."""
    cached = failure.reserved_bytes - failure.allocated_bytes
    free = "" if failure.device_free_bytes is None else f", {size(failure.device_free_bytes)} free on the device"
    place = f", at {failure.moment.line}" if failure.moment.line else ""
    return (
        f"{size(failure.requested_bytes)} asked for{free}, {size(failure.allocated_bytes)} allocated and "
        f"{size(cached)} reserved but not allocated ({moment_text(failure.moment, history)}{place})"
    )


def fragmentation_text(history: History) -> str:
    """Say what the allocator held beyond what was allocated at the peak."""
    if history.fragmentation_bytes < 0:
        return "how much was reserved then is unknown: not all events of segments were recorded (skip_actions)"
    return (
        f"{size(history.reserved_then_bytes)} were reserved then, {size(history.fragmentation_bytes)} of it unused "
        "(cached or fragmented)"
    )


def line_text(held: HeldMemory) -> str:
    return held.line or _UNKNOWN


def by_line(held: Iterable[HeldMemory]) -> list[Owner]:
    """Line, bytes and blocks, the largest first; blocks is None where any owner's are unknown."""
    return summed(held, line_text)


def by_pool(held: Iterable[HeldMemory]) -> list[Owner]:
    """Pool and stream, bytes and blocks, the largest first."""
    return summed(held, _pool)


def _pool(held: HeldMemory) -> str:
    return "(unknown)" if held.stream is None else f"{held.pool or 'pool not recorded'}, stream {held.stream}"


def _device(device: DeviceAccount, limit: int) -> Iterator[RenderableType]:
    if (history := device.history) is not None:
        yield Group(*_peak(device, history))
        yield owners("by line, at the peak", _short(by_line(history.holdings)), limit)
        yield owners("by pool, at the peak", by_pool(history.holdings), limit)
    yield Text(f"Device {device.device} in the end", style="bold").append(f": {end_text(device)}", "not bold")
    if device.pools:
        yield _pools(device.pools)
    if device.alive:
        yield owners("alive in the end, by line", _short(by_line(device.alive)), limit)


def _peak(device: DeviceAccount, history: History) -> Iterator[Text]:
    text = Text(f"Device {device.device}: peak ", style="bold")
    text.append(size(history.peak_allocated_bytes), style="bold cyan").append(" allocated")
    yield text.append(f" at {moment_text(history.peak, history)}", style="dim")
    if history.peak.line:
        yield Text(f"  {clean(history.peak.line)}", style="dim")
    yield Text(f"  {fragmentation_text(history)}")
    when = moment_text(history.peak_reserved, history)
    yield Text(f"  peak {size(history.peak_reserved_bytes)} reserved").append(f" at {when}", style="dim")
    if history.earlier_bytes:
        yield Text(f"  {size(history.earlier_bytes)} were allocated before the first recorded event")
    for failure in history.out_of_memory:
        yield Text(f"  out of memory: {clean(failure_text(failure, history))}", style="bold red")


def end_text(device: DeviceAccount) -> str:
    """The state when the snapshot was taken."""
    return (
        f"{size(device.allocated_bytes)} allocated, {size(device.reserved_bytes)} reserved, largest free block "
        f"{size(device.largest_free_bytes)}"
    )


def _pools(pools: Sequence[PoolSegments]) -> Table:
    grid = table("segments in the end", "segments", "reserved", "allocated", "free", "largest free")
    for pool in pools:
        cells = (pool.reserved_bytes, pool.allocated_bytes, pool.free_bytes, pool.largest_free_bytes)
        name = f"{pool.pool or 'pool not recorded'}, stream {pool.stream}, {pool.kind}"
        grid.add_row(clean(name), f"{pool.segments:,}", *(size(cell) for cell in cells))
    return grid


def _short(sums: Iterable[Owner]) -> list[Owner]:
    """Lines without their folders."""
    return [(short_line(name) if _LINE.search(name) else name, bytes, blocks) for name, bytes, blocks in sums]
