"""The allocator's own events of a profiled run: every block, from birth to death, to the byte.

The profiler's event tree has no public form, so its shape is checked where it is read. Blocks that were there before
the run and are freed in it have an address that is not known: they are reported as such.

Source: torch/csrc/profiler/collection.h (ExtraFields<EventType::Allocation>), torch.profiler._memory_profiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.profiler import profile

MARK = "togi:"
"""Prefix of the ranges round dispatched operations; the number of the operation follows."""


@dataclass(eq=False)
class Block:
    """One allocation. Order is the position in the stream of allocations and frees."""

    bytes: int
    address: int
    born_ns: int
    order: int
    operation: int
    """The dispatched operation during which it was made, or the last one before (autograd's engine, hooks)."""
    maker: str
    """The innermost profiled operator, ``aten::mm``."""
    freed: int | None = None


@dataclass(frozen=True)
class Stream:
    """The blocks of one device, and the running sum."""

    blocks: tuple[Block, ...]
    sums: tuple[tuple[int, int], ...]
    """(time in ns, bytes above the start) after every allocation and free."""
    foreign_frees: int
    """Bytes freed that were allocated before the run."""

    @property
    def peak_order(self) -> int:
        return max(range(len(self.sums)), key=lambda order: self.sums[order][1])

    def alive_at(self, order: int) -> Iterator[Block]:
        return (b for b in self.blocks if b.order <= order and (b.freed is None or b.freed > order))


def read_stream(profiler: profile, device: str) -> Stream | None:
    """The stream on ``device`` (``cpu`` or ``cuda``); None where this torch reports none."""
    results = getattr(getattr(profiler, "profiler", None), "kineto_results", None)
    if results is None or not hasattr(results, "experimental_event_tree"):
        return None
    events = [event for event in _allocations(results.experimental_event_tree()) if _device(event) == device]
    if not events:
        return None
    events.sort(key=lambda event: event.start_time_ns)
    living: dict[int, Block] = {}
    blocks: list[Block] = []
    sums: list[tuple[int, int]] = []
    total = foreign = latest = 0
    for order, event in enumerate(events):
        size, address = int(event.extra_fields.alloc_size), int(event.extra_fields.ptr)
        total += size
        sums.append((int(event.start_time_ns), total))
        if size > 0:
            operation, maker = _maker(event)
            latest = latest if operation is None else operation
            block = Block(size, address, int(event.start_time_ns), order, latest, maker)
            living[address] = block
            blocks.append(block)
        elif address in living:
            living.pop(address).freed = order
        else:
            foreign -= size
    return Stream(tuple(blocks), tuple(sums), foreign)


def _allocations(roots: list[Any]) -> Iterator[Any]:
    from torch._C._profiler import _EventType  # not in torch's public names

    queue = list(roots)
    while queue:
        event = queue.pop()
        queue.extend(event.children)
        if event.tag == _EventType.Allocation:
            yield event


def _device(event: Any) -> str:
    return str(event.extra_fields.device).partition(":")[0]


def _maker(event: Any) -> tuple[int | None, str]:
    maker, parent = "", event.parent
    while parent is not None:
        name = parent.name
        if name.startswith(MARK):
            return int(name.removeprefix(MARK)), maker
        maker = maker or name
        parent = parent.parent
    return None, maker
