"""Makes the account of a watched run.

It joins the storages of a watched run with the allocator's events: every allocation gets an owner and every
byte of the peak a line, so that the owners sum to the peak.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

from togi.footprint.account.allocator_events import Allocation, Allocations
from togi.footprint.account.record import (
    BEFORE_THE_RUN,
    Account,
    Category,
    CategoryTimeline,
    HeldName,
    Holding,
    KeptStorage,
    PeakMoment,
)
from togi.footprint.account.watch import AccountWatch, TensorName
from togi.footprint.storage_tracker import StorageLifetime, category_of

_BEFORE = "(libraries, before the run)"
_WORTH = 0.005
"""Share of the peak below which a name is not worth a line of code."""
_POINTS = 1200
"""More than a picture has columns."""


def account_from(watch: AccountWatch) -> Account:
    """The account of a run that has been watched."""
    allocations = watch.allocations
    order, owner = allocations.peak_order, _owners(watch)
    allocations.free_dead((block, lifetime.died) for block, lifetime in owner.items())
    holdings = _holdings_at(watch, order, owner)
    outputs = sum(lifetime.bytes for lifetime in watch.tracker.lifetimes if lifetime.category == Category.OUTPUT)
    return Account(
        device=watch.device,
        train=watch.backward_at is not None,
        peak_bytes=sum(holding.bytes for holding in holdings),
        baseline_bytes=sum(lifetime.bytes for lifetime in watch.existing) + watch.unowned_bytes,
        peak=_moment(watch, order, owner),
        holdings=holdings,
        kept=_kept_by_autograd(watch),
        held_names=_held_names(watch, order, owner),
        minimum_bytes=sum(lifetime.bytes for lifetime in watch.existing if lifetime.category in BEFORE_THE_RUN)
        + outputs,
        timeline=_timeline(watch, owner),
        watched_ms=watch.ms,
        notes=watch.tracker.notes,
    )


def _owners(watch: AccountWatch) -> dict[Allocation, StorageLifetime]:
    """The storage that each allocation holds. Allocations without one are workspace."""
    by_address: dict[int, list[Allocation]] = {}
    for block in watch.allocations.blocks:
        by_address.setdefault(block.address, []).append(block)
    owners: dict[Allocation, StorageLifetime] = {}
    for address, lifetimes in watch.tracker.addresses.items():
        blocks = by_address.get(address, [])
        born = [block.operation for block in blocks]
        for lifetime in lifetimes:
            number = bisect_right(born, lifetime.born) - 1
            if number >= 0 and blocks[number] not in owners:
                owners[blocks[number]] = lifetime
    return owners


def _holdings_at(watch: AccountWatch, order: int, owner: Mapping[Allocation, StorageLifetime]) -> tuple[Holding, ...]:
    """Who held what after that allocation, the largest first; equal owners are one."""
    operation = watch.allocations.operations[order]
    sums: dict[tuple[Category, str, str, str, str], list[int]] = {}

    def add(bytes: int, category: Category, module: str = "", line: str = "", op: str = "", phase: str = "") -> None:
        total = sums.setdefault((category, module, line, op, phase), [0, 0])
        total[0] += bytes
        total[1] += 1

    if watch.unowned_bytes:
        add(watch.unowned_bytes, Category.WORKSPACE, op=_BEFORE)
    for lifetime in watch.existing:
        if lifetime.alive_at(operation):
            add(lifetime.bytes, Category(lifetime.category), lifetime.where.module)
    for block in watch.allocations.alive_at(order):
        if (held := owner.get(block)) is None:
            add(block.bytes, Category.WORKSPACE, op=block.maker)
        else:
            where = held.where
            add(block.bytes, _category(held, watch), where.module, where.line, held.op, where.phase)
    holdings = (
        Holding(bytes=bytes, blocks=blocks, category=category, module=module, line=line, op=op, phase=phase)
        for (category, module, line, op, phase), (bytes, blocks) in sums.items()
    )
    return tuple(sorted(holdings, key=lambda holding: -holding.bytes))


def _moment(watch: AccountWatch, order: int, owner: Mapping[Allocation, StorageLifetime]) -> PeakMoment:
    """The operation that ran when the allocation at ``order`` was made."""
    block = next(block for block in watch.allocations.blocks if block.order == order)
    maker = owner.get(block) or next(
        (lifetime for b, lifetime in owner.items() if b.operation == block.operation), None
    )
    first, last = watch.allocations.sums[0][0], watch.allocations.sums[-1][0]
    share = (block.born_ns - first) / (last - first) if last > first else 0.0
    if maker is None:
        return PeakMoment(op=block.maker, share_of_run=share)
    where = maker.where
    return PeakMoment(op=maker.op, module=where.module, line=where.line, phase=where.phase, share_of_run=share)


def _kept_by_autograd(watch: AccountWatch) -> tuple[KeptStorage, ...]:
    """The largest first; what was there before the run (weights) included, since autograd keeps a reference to it."""
    entries = [
        KeptStorage(
            bytes=lifetime.bytes,
            kept_by=tuple(sorted(set(places))),
            category=_category(lifetime, watch),
            module=lifetime.where.module,
            line=lifetime.where.line,
            op=lifetime.op,
        )
        for lifetime, places in watch.kept.items()
    ]
    return tuple(sorted(entries, key=lambda entry: -entry.bytes))


def _held_names(watch: AccountWatch, order: int, owner: Mapping[Allocation, StorageLifetime]) -> tuple[HeldName, ...]:
    """Names that hold memory at the peak which nobody uses again, with what deleting them would save."""
    operation, peak = watch.allocations.operations[order], watch.allocations.sums[order][1]
    names = next((names for at, names in reversed(watch.names_at_peaks) if at <= operation), {})
    idle = {
        lifetime: who
        for lifetime, who in names.items()
        if _idle(lifetime, operation, watch) and lifetime.bytes >= _WORTH * peak
    }
    block_of = {lifetime: block for block, lifetime in owner.items()}
    held_names: list[HeldName] = []
    for line in {name.line for who in idle.values() for name in who}:
        held = [lifetime for lifetime, who in idle.items() if any(name.line == line for name in who)]
        again = _held_again(watch, {name for lifetime in held for name in idle[lifetime] if name.line == line})
        early = {block_of[lifetime]: lifetime.used for lifetime in (*held, *again) if lifetime in block_of}
        saved = peak - _peak_with(watch.allocations, early)
        held_names += [
            HeldName(name=name.name, line=line, bytes=lifetime.bytes, saved_bytes=saved)
            for lifetime in held
            for name in dict.fromkeys(idle[lifetime])
            if name.line == line and saved > 0
        ]
    return tuple(sorted(held_names, key=lambda name: (-name.saved_bytes, name.line, name.name)))


def _held_again(watch: AccountWatch, names: Collection[TensorName]) -> list[StorageLifetime]:
    """The storages that the same names held, and nobody used again, wherever a peak was reached: in other passes of a
    loop."""
    return [
        lifetime
        for at, names_held in watch.names_at_peaks
        for lifetime, who in names_held.items()
        if any(name in names for name in who) and _idle(lifetime, at, watch)
    ]


def _idle(lifetime: StorageLifetime, operation: int, watch: AccountWatch) -> bool:
    """Nobody uses it again, nothing but the name keeps it, and it was made in this run. An output may be used after the
    run, where it is still there: what a loop keeps from the pass before is not."""
    is_kept = lifetime in watch.kept or lifetime.category in (Category.GRADIENT, Category.OPTIMIZER)
    is_kept = is_kept or (lifetime.category == Category.OUTPUT and lifetime.died is None)
    return lifetime.used < operation and not is_kept and lifetime.op != ""


def _peak_with(allocations: Allocations, early: Mapping[Allocation, int]) -> int:
    """The peak if each of these were freed after the operation given for it."""
    changes = [0] * (len(allocations.sums) + 1)
    for block, operation in early.items():
        freed = len(allocations.sums) if block.freed is None else block.freed
        changes[min(freed, max(block.order + 1, allocations.place_after(operation)))] -= block.bytes
        changes[freed] += block.bytes
    return max(total + less for (_, total), less in zip(allocations.sums, accumulate(changes), strict=False))


def _timeline(watch: AccountWatch, owner: Mapping[Allocation, StorageLifetime]) -> CategoryTimeline:
    """The bytes of each category over the run. What was there before it counts from its start on."""
    sums = watch.allocations.sums
    changes: dict[Category, list[int]] = {}

    def series(category: Category) -> list[int]:
        return changes.setdefault(category, [0] * (len(sums) + 1))

    for block in watch.allocations.blocks:
        held = owner.get(block)
        of = series(_category(held, watch) if held else Category.WORKSPACE)
        of[block.order] += block.bytes
        of[len(sums) if block.freed is None else block.freed] -= block.bytes
    for lifetime in watch.existing:
        of = series(Category(lifetime.category))
        of[0] += lifetime.bytes
        if lifetime.died is not None:
            of[watch.allocations.place_after(lifetime.died)] -= lifetime.bytes
    if watch.unowned_bytes:
        series(Category.WORKSPACE)[0] += watch.unowned_bytes
    orders = _points([total for _, total in sums])
    return CategoryTimeline(
        ms=tuple((sums[order][0] - sums[0][0]) * 1e-6 for order in orders),
        bytes={category: _sums_at(of, orders) for category, of in changes.items()},
    )


def _points(totals: Sequence[int]) -> list[int]:
    """The places of the highest and of the last total of every stretch, so that no peak is lost."""
    width = max(1, 2 * len(totals) // _POINTS)
    places: set[int] = set()
    for first in range(0, len(totals), width):
        stretch = range(first, min(first + width, len(totals)))
        places |= {max(stretch, key=totals.__getitem__), stretch[-1]}
    return sorted(places)


def _sums_at(changes: Sequence[int], places: Sequence[int]) -> tuple[int, ...]:
    total, sums = 0, []
    for change in changes:
        total += change
        sums.append(total)
    return tuple(sums[place] for place in places)


def _category(lifetime: StorageLifetime, watch: AccountWatch) -> Category:
    return category_of(lifetime, watch.backward_at, watch.kept)
