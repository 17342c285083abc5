"""Reads the allocator's own events of a profiled run: every allocation with its free, to the byte.

The profiler's event tree has no public form, so its shape is checked where it is read. Frees of what
was there before the run lower the running sum; whose they are is not known. On CUDA a profile has no event
for what is freed outside of operators (seen with torch 2.11): the sum is the allocator's own, which comes
with every event.

Source: torch/csrc/profiler/collection.h (ExtraFields<EventType::Allocation>), torch.profiler._memory_profiler.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from torch.profiler import profile

from togi.measure.memory import torch_allocator_peak_bytes
from togi.torch_internals.profiler import EventType, FastMark, memory_profile

MARK = "operation of togi "
"""Prefix of the ranges round dispatched operations; the number of the operation follows."""


@dataclass(eq=False)
class Allocation:
    """One allocation. ``order`` and ``freed`` are positions among all allocations and frees."""

    bytes: int
    address: int
    born_ns: int
    order: int
    operation: int
    """The dispatched operation during which it was made, or the last one before (autograd's engine, hooks)."""
    maker: str
    """The innermost profiled operator, ``aten::mm``."""
    freed: int | None = None
    reused: int | None = None
    """The order of an allocation at the same address, where no event told that this one was freed."""


@dataclass(frozen=True)
class Allocations:
    """Everything that was allocated on one device, and the running sum."""

    blocks: tuple[Allocation, ...]
    sums: tuple[tuple[int, int], ...]
    """(time in ns, bytes above the start) after every allocation and free."""

    @cached_property
    def operations(self) -> list[int]:
        """The operation that was running, or the last one before, at every allocation and free."""
        operation_of = {block.order: block.operation for block in self.blocks}
        return list(
            accumulate(range(len(self.sums)), lambda now, order: max(now, operation_of.get(order, now)), initial=0)
        )[1:]

    @property
    def peak_order(self) -> int:
        return max(range(len(self.sums)), key=lambda order: self.sums[order][1])

    def free_dead(self, deaths: Iterable[tuple[Allocation, int | None]]) -> None:
        """Settle when those were freed of which no event told. ``deaths``: each with the operation after which nothing
        held it any more, if one is known."""
        died = {block: operation for block, operation in deaths if operation is not None}
        for block in self.blocks:
            if block.freed is None and block in died:
                block.freed = max(block.order + 1, self.place_after(died[block]))
            if block.freed is None or (block.reused is not None and block.reused < block.freed):
                block.freed = block.reused

    def place_after(self, operation: int) -> int:
        """The place of the first allocation or free after that operation."""
        return bisect_right(self.operations, operation)

    def with_unseen_frees(self, frees: Iterable[tuple[int, int]]) -> Allocations:
        """``frees``: (operation, bytes) of what was there before and went without an event, after that operation."""
        changes = [0] * (len(self.sums) + 1)
        for operation, freed_bytes in frees:
            changes[self.place_after(operation)] -= freed_bytes
        return Allocations(
            self.blocks,
            tuple((at_ns, total + gone) for (at_ns, total), gone in zip(self.sums, accumulate(changes), strict=False)),
        )

    def alive_at(self, order: int) -> Iterator[Allocation]:
        return (b for b in self.blocks if b.order <= order and (b.freed is None or b.freed > order))


def operation_mark(number: int) -> FastMark:
    """A range in the profile round the operation of this number, which tells its allocations from others."""
    return FastMark(f"{MARK}{number}")


def read_allocations(profiler: profile, device: str) -> Allocations | None:
    """The allocations on ``device`` (``cpu`` or ``cuda``); None where this torch reports none."""
    results = getattr(getattr(profiler, "profiler", None), "kineto_results", None)
    if results is None or not hasattr(results, "experimental_event_tree"):
        return None
    on_any = _allocations(results.experimental_event_tree())
    events = [event for event in on_any if str(event.extra_fields.device).partition(":")[0] == device]
    if not events:
        return None
    events.sort(key=lambda event: event.start_time_ns)
    living: dict[int, Allocation] = {}
    blocks: list[Allocation] = []
    sums: list[tuple[int, int]] = []
    total = latest = 0
    start = _allocated(events[0]) - int(events[0].extra_fields.alloc_size)
    for event in events:
        size, address, order = int(event.extra_fields.alloc_size), int(event.extra_fields.ptr), len(sums)
        if size > 0:
            operation, maker = _maker(event)
            latest = latest if operation is None else operation
            block = Allocation(size, address, int(event.start_time_ns), order, latest, maker)
            if address in living:
                living[address].reused = order
            living[address] = block
            blocks.append(block)
        elif address in living:
            living.pop(address).freed = order
        elif device == "cpu":  # its size is that of whatever lay there in an earlier profile, if any did
            continue
        total = total + size if device == "cpu" else _allocated(event) - start
        sums.append((int(event.start_time_ns), total))
    return Allocations(tuple(blocks), tuple(sums))


def _allocated(event: Any) -> int:
    """The bytes that the allocator had given away after the event, which the CPU's does not count."""
    return int(event.extra_fields.total_allocated)


def rise_bytes(run: Callable[[], object], device: str = "cpu") -> int | None:
    """The rise of the allocator in ``run`` above what is there before it; None where torch reports no memory, or it
    takes none. On the CPU what goes of what was there before is not seen to go."""
    if not device.startswith("cpu"):
        return torch_allocator_peak_bytes(run, device)
    with memory_profile() as profiler:
        run()
    allocations = read_allocations(profiler, "cpu")
    return None if allocations is None else max(0, *(total for _, total in allocations.sums))


def _allocations(roots: list[Any]) -> Iterator[Any]:
    queue = list(roots)
    while queue:
        event = queue.pop()
        queue.extend(event.children)
        if event.tag == EventType.Allocation:
            yield event


def _maker(event: Any) -> tuple[int | None, str]:
    maker, parent = "", event.parent
    while parent is not None:
        name = parent.name
        if name.startswith(MARK):
            return int(name.removeprefix(MARK)), maker
        maker = maker or name
        parent = parent.parent
    return None, maker
