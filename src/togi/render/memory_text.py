"""Memory as text for a terminal: an account and its changes, a prediction, a CUDA memory snapshot (``togi memory``).

The HTML page of a snapshot uses the same words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.quantities import milliseconds, plural, seconds, size
from togi.core.records import Record
from togi.footprint.account.record import BEFORE_THE_RUN, Account, Category, HeldName, Holding, Kept
from togi.footprint.prediction.record import Prediction
from togi.footprint.snapshot.record import DeviceAccount, Held, History, OutOfMemory, Pool, SnapshotAccount, TraceEvent
from togi.render.terminal import bullets, clean, stack, table

AnyHeld = TypeVar("AnyHeld", Holding, Held)
Owner = tuple[str, int, int | None]
"""Name, bytes, and blocks, which are None where they are unknown."""
_NO_MODULE = "(outside of modules)"


class Change(Record):
    """Bytes of one owner at the two peaks."""

    owner: str
    before_bytes: int
    after_bytes: int

    @property
    def gained_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


class AccountChange(Record):
    """The difference of two runs at their peaks; owners without a difference are left out."""

    before_bytes: int
    after_bytes: int
    by_category: tuple[Change, ...]
    by_module: tuple[Change, ...]
    by_line: tuple[Change, ...]


def account_text(account: Account, *, limit: int = 10) -> RenderableType:
    """The peak and its moment, its owners by category, by module and by line, what is kept, what could go earlier."""
    made = [holding for holding in account.holdings if holding.category not in BEFORE_THE_RUN]
    kept = [kept for kept in account.kept if kept.category not in BEFORE_THE_RUN]
    all_made = f", of {size(sum(one.bytes for one in made))} that the run made"
    return stack(
        Group(*_headline(account)),
        _categories(account.by_category(), account.peak_bytes),
        owners(f"by module{all_made}", summed(made, lambda h: h.module or _NO_MODULE), limit) if made else None,
        owners(f"by line{all_made}", summed(made, lambda h: short_line(h.line) or f"({h.op})"), limit)
        if made
        else None,
        _kept(kept, limit) if kept else None,
        *_names(account.held_names),
        bullets([*account.notes, *_costs(account)]),
    )


def short_line(line: str) -> str:
    """``resnet.py:154 in forward``: the file's name is enough next to its function."""
    path, _, rest = line.partition(":")
    return f"{Path(path).name}:{rest}" if line else ""


def _headline(account: Account) -> Iterable[Text]:
    peak = account.peak
    text = Text("Peak ", style="bold").append(size(account.peak_bytes), style="bold cyan")
    text.append(f" in {peak.op or 'an operation'}", style="bold")
    text.append(f" of {peak.module}" if peak.module else "").append(f", {peak.phase}" if peak.phase else "")
    yield text.append(f", {peak.share_of_run:.0%} of the way through the run", style="dim")
    if peak.line:
        yield Text(f"  {clean(peak.line)}", style="dim")
    if account.minimum_bytes:
        needed = "parameters, inputs, outputs" + (", gradients, optimizer state" if account.train else "")
        yield Text(f"  {account.factor_x:.2f} x the least possible, {size(account.minimum_bytes)} ({needed})")


def _categories(by_category: Mapping[Category, int], peak_bytes: int) -> Table:
    made = table("at the peak", "bytes", "share")
    for category, bytes in by_category.items():
        made.add_row(category.value, size(bytes), f"{bytes / peak_bytes:.1%}")
    return made


def owners(title: str, sums: Sequence[Owner], limit: int) -> Table:
    """Name, bytes and blocks of the largest owners; blocks are None where they are unknown."""
    made = table(title, "bytes", "blocks")
    for name, bytes, blocks in sums[:limit]:
        made.add_row(Text(clean(name), overflow="fold"), size(bytes), "" if blocks is None else f"{blocks:,}")
    if rest := sums[limit:]:
        more = f"and {plural(len(rest), 'smaller one')}: --json has them all"
        made.add_row(more, size(sum(bytes for _, bytes, _ in rest)), "", style="dim")
    return made


def summed(held: Iterable[AnyHeld], name: Callable[[AnyHeld], str]) -> list[Owner]:
    """Owners of the same name together, the largest first."""
    sums: dict[str, tuple[int, int | None]] = {}
    for one in held:
        bytes, blocks = sums.get(name(one), (0, 0))
        both = None if blocks is None or one.blocks is None else blocks + one.blocks
        sums[name(one)] = (bytes + one.bytes, both)
    rows = [(owner, bytes, blocks) for owner, (bytes, blocks) in sums.items()]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def _kept(kept: Sequence[Kept], limit: int) -> Table:
    total = sum(one.bytes for one in kept)
    made = table(
        f"kept for backward: {size(total)} in {plural(len(kept), 'tensor')}", "bytes", "kept by", left=("kept by",)
    )
    for one in kept[:limit]:
        origin = " ".join(filter(None, (one.module, one.op.removeprefix("aten."), short_line(one.line))))
        made.add_row(Text(clean(origin), overflow="fold"), size(one.bytes), ", ".join(one.kept_by))
    if rest := kept[limit:]:
        made.add_row(f"and {len(rest)} more", size(sum(one.bytes for one in rest)), "", style="dim")
    return made


def deletions(held: Sequence[HeldName]) -> Iterator[tuple[str, str]]:
    """For each line, the names to delete there, and ``before net.py:12 in forward lowers the peak by 2 MiB``."""
    by_line: dict[str, list[HeldName]] = {}
    for one in held:
        by_line.setdefault(one.line, []).append(one)
    for line, names in by_line.items():
        saved = f"before {short_line(line)} lowers the peak by {size(names[0].saved_bytes)}"
        yield ", ".join(sorted({one.name for one in names})), saved


def _names(held: Sequence[HeldName]) -> Iterable[Text]:
    for names, saved in deletions(held):
        text = Text(f"del {names}", style="bold yellow").append(f" {saved}")
        yield text.append(": nobody uses them after it", style="dim")


def _costs(account: Account) -> Iterable[str]:
    if account.plain_ms:
        yield f"watched in {account.watched_ms:,.0f} ms; unwatched the run took {account.plain_ms:,.0f} ms"


def account_change(before: Account, after: Account) -> AccountChange:
    """From ``before`` to ``after``. Lines are compared by file name and function, since numbers shift."""
    return AccountChange(
        before_bytes=before.peak_bytes,
        after_bytes=after.peak_bytes,
        by_category=_changes(before, after, lambda holding: holding.category.value),
        by_module=_changes(before, after, lambda holding: holding.module or _NO_MODULE),
        by_line=_changes(before, after, lambda holding: _function(holding.line) or f"({holding.op})"),
    )


def change_text(change: AccountChange, *, limit: int = 10) -> RenderableType:
    """The headline, then the owners that changed most."""
    verb = "grew" if change.after_bytes > change.before_bytes else "shrank"
    moved = abs(change.after_bytes - change.before_bytes)
    if not moved:
        return Text(f"The peak is the same as before, {size(change.after_bytes)}.", style="bold")
    headline = Text(f"The peak {verb} by {size(moved)}", style="bold")
    headline.append(f", from {size(change.before_bytes)} to {size(change.after_bytes)}", style="not bold")
    groups = {"by category": change.by_category, "by module": change.by_module, "by line": change.by_line}
    return stack(headline, *(_changed(title, rows[:limit]) for title, rows in groups.items() if rows))


def _changes(before: Account, after: Account, name: Callable[[Holding], str]) -> tuple[Change, ...]:
    sums: dict[str, list[int]] = {}
    for place, account in enumerate((before, after)):
        for holding in account.holdings:
            sums.setdefault(name(holding), [0, 0])[place] += holding.bytes
    found = [Change(owner=owner, before_bytes=b, after_bytes=a) for owner, (b, a) in sums.items() if a != b]
    return tuple(sorted(found, key=lambda change: (-abs(change.gained_bytes), change.owner)))


def _function(line: str) -> str:
    """``resnet.py in forward`` of ``resnet.py:154 in forward``."""
    file, _, rest = short_line(line).partition(":")
    return f"{file}{rest[rest.find(' ') :]}" if rest else file


def _changed(title: str, rows: Sequence[Change]) -> Table:
    made = table(title, "before", "after", "change")
    for row in rows:
        sign, style = ("+", "red") if row.gained_bytes > 0 else ("-", "green")
        changed = Text(f"{sign}{size(abs(row.gained_bytes))}", style=style)
        made.add_row(Text(clean(row.owner), overflow="fold"), size(row.before_bytes), size(row.after_bytes), changed)
    return made


def prediction_text(found: Prediction) -> RenderableType:
    """The peak with its range, its moment, its owners, and the batches that fit."""
    predicted = f"predicted without running the model, in {seconds(found.seconds)}"
    return stack(
        Group(*_predicted(found)),
        _categories(found.by_category, found.peak_bytes),
        *(_batches(found, found.memory_bytes) if found.memory_bytes is not None else ()),
        bullets([*found.notes, predicted]),
    )


def _predicted(found: Prediction) -> list[Text]:
    peak = found.peak
    text = Text("Predicted peak ", style="bold").append(size(found.peak_bytes), style="bold cyan")
    text.append(f" on {found.device}{', compiled' if found.compiled else ''}", style="bold").append(
        _range(found.low_bytes, found.high_bytes)
    )
    where = f"  in {peak.op or 'an operation'}" + (f" of {peak.module}" if peak.module else "")
    lines = [text, Text(clean(f"{where}, {peak.phase}" + (f", {peak.line}" if peak.line else "")), style="dim")]
    if found.device != "cpu":
        reserved = Text(f"  {size(found.reserved_bytes)} reserved by the caching allocator")
        reserved.append(_range(found.reserved_low_bytes, found.reserved_high_bytes))
        reserved.append(f"; the context takes {size(found.context_low_bytes)} to {size(found.context_high_bytes)} more")
        lines += [reserved, Text(f"  at most {size(found.device_high_bytes)} of the device, all told")]
    return lines


def _range(low: int, high: int) -> str:
    return f" ({size(low)} to {size(high)})" if low != high else ""


def _batches(found: Prediction, memory_bytes: int) -> Iterator[RenderableType]:
    if not found.largest_batch:
        yield Text(f"Not even a batch of 1 fits {size(memory_bytes)}", style="bold yellow")
    else:
        text = Text(f"The largest batch that fits {size(memory_bytes)} is ", style="bold")
        yield text.append(f"{found.largest_batch:,}", style="cyan")
    made = table("batch", "peak", "reserved", "at most, all told", wide=False)
    for need in found.batches:
        made.add_row(f"{need.batch:,}", size(need.peak_bytes), size(need.reserved_bytes), size(need.device_high_bytes))
    yield made


_LINE = re.compile(r":\d+ in ")
_UNKNOWN = "(no traceback recorded)"


def snapshot_text(account: SnapshotAccount, *, limit: int = 10) -> RenderableType:
    """For each device the peak and its owners, failures, the state in the end and what was alive then."""
    notes = [*account.notes, *(f"device {one.device}: {note}" for one in account.devices for note in one.notes)]
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
    """What was asked for, what was free and what the allocator held then."""
    cached = failure.reserved_bytes - failure.allocated_bytes
    free = "" if failure.device_free_bytes is None else f", {size(failure.device_free_bytes)} free on the device"
    place = f", at {failure.moment.line}" if failure.moment.line else ""
    return (
        f"{size(failure.requested_bytes)} asked for{free}, {size(failure.allocated_bytes)} allocated and "
        f"{size(cached)} reserved but not allocated ({moment_text(failure.moment, history)}{place})"
    )


def fragmentation_text(history: History) -> str:
    """What the allocator held beyond what was allocated at the peak."""
    if history.fragmentation_bytes < 0:
        return "how much was reserved then is unknown: not all events of segments were recorded (skip_actions)"
    return (
        f"{size(history.reserved_then_bytes)} were reserved then, {size(history.fragmentation_bytes)} of it unused "
        "(cached or fragmented)"
    )


def line_text(held: Held) -> str:
    return held.line or _UNKNOWN


def by_line(held: Iterable[Held]) -> list[Owner]:
    """Line, bytes and blocks, the largest first; blocks is None where any owner's are unknown."""
    return summed(held, line_text)


def by_pool(held: Iterable[Held]) -> list[Owner]:
    """Pool and stream, bytes and blocks, the largest first."""
    return summed(held, _pool)


def _pool(one: Held) -> str:
    return "(unknown)" if one.stream is None else f"{one.pool or 'pool not recorded'}, stream {one.stream}"


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


def _pools(pools: Sequence[Pool]) -> Table:
    made = table("segments in the end", "segments", "reserved", "allocated", "free", "largest free")
    for pool in pools:
        cells = (pool.reserved_bytes, pool.allocated_bytes, pool.free_bytes, pool.largest_free_bytes)
        name = f"{pool.pool or 'pool not recorded'}, stream {pool.stream}, {pool.kind}"
        made.add_row(clean(name), f"{pool.segments:,}", *(size(cell) for cell in cells))
    return made


def _short(sums: Iterable[Owner]) -> list[Owner]:
    """Lines without their folders."""
    return [(short_line(name) if _LINE.search(name) else name, bytes, blocks) for name, bytes, blocks in sums]
