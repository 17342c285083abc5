"""What the profiler tells of a device whose allocator's frees it misses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.footprint.small_models import Attention, Convolutions, Recurrent
from togi.footprint.account import watch as watching
from togi.footprint.account.allocator_events import _allocations, read_allocations
from togi.footprint.account.watched import account_of
from togi.footprint.step import make_step
from togi.subject.inputs import Subject
from togi.torch_internals.profiler import EventType

KIB = 1024
BEFORE = 100 * KIB
"""What the allocator had given away before the run."""


def profile_of(*told: tuple[int, int, int]) -> Any:
    """A profile of a GPU with these events: address, bytes (negative: freed) and all that is given away since the
    start of the run."""
    events = [
        SimpleNamespace(
            tag=EventType.Allocation,
            children=(),
            parent=None,
            start_time_ns=number,
            extra_fields=SimpleNamespace(
                device="cuda:0", ptr=address, alloc_size=size, total_allocated=BEFORE + allocated
            ),
        )
        for number, (address, size, allocated) in enumerate(told)
    ]
    results = SimpleNamespace(experimental_event_tree=lambda: events)
    return SimpleNamespace(profiler=SimpleNamespace(kineto_results=results))


def test_the_sum_is_the_allocators_where_frees_are_not_told() -> None:
    allocations = read_allocations(
        profile_of((1, 8 * KIB, 8 * KIB), (2, 4 * KIB, 12 * KIB), (1, 2 * KIB, 6 * KIB), (2, -4 * KIB, 2 * KIB)), "cuda"
    )
    assert allocations is not None
    assert [total // KIB for _, total in allocations.sums] == [8, 12, 6, 2]
    first, second, again = allocations.blocks
    assert (first.freed, first.reused, second.freed, again.reused) == (None, 2, 3, None)
    allocations.free_dead([])
    assert (first.freed, second.freed, again.freed) == (2, 3, None)


def test_a_block_is_gone_once_its_storage_is_or_another_lies_there() -> None:
    allocations = read_allocations(profile_of((1, KIB, KIB), (2, KIB, KIB), (3, KIB, KIB), (1, KIB, KIB)), "cuda")
    assert allocations is not None
    first, second, third, _ = allocations.blocks
    for number, block in enumerate(allocations.blocks):
        block.operation = number
    allocations.free_dead([(first, 0), (second, None), (third, 3)])
    assert (first.freed, second.freed, third.freed) == (1, None, 4)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("made", [Convolutions, Attention, Recurrent])
def test_an_account_is_as_good_without_the_frees_outside_of_operators(
    monkeypatch: pytest.MonkeyPatch, made: type[nn.Module], train: bool
) -> None:
    """As on CUDA, where no event tells of them."""
    shapes = {Convolutions: (4, 3, 32, 32), Attention: (2, 48, 32), Recurrent: (4, 20, 16)}
    step = make_step(Subject(made(), torch.randn(shapes[made])), train=train)
    whole = account_of(step)
    lost: list[int] = []
    monkeypatch.setattr(
        watching, "read_allocations", lambda profiler, _: read_allocations(_as_on_cuda(profiler, lost), "cuda")
    )
    again = account_of(step)
    assert lost
    # a scalar that no storage is known of may count as if it lived on
    assert again.peak_bytes == pytest.approx(whole.peak_bytes, abs=64)
    assert again.by_category() == pytest.approx(whole.by_category(), abs=64)


def _as_on_cuda(profiler: Any, lost: list[int]) -> Any:
    """The profile with the allocator's sum in each event, and without the events outside of operators."""
    events = sorted(
        _allocations(profiler.profiler.kineto_results.experimental_event_tree()), key=lambda event: event.start_time_ns
    )
    living: dict[int, int] = {}
    told = []
    for event in events:
        address, size = event.extra_fields.ptr, event.extra_fields.alloc_size
        if size > 0:
            living[address] = size
        elif living.pop(address, None) is None:
            continue
        if size < 0 and event.parent is None:
            lost.append(address)
            continue
        fields = SimpleNamespace(device="cuda:0", ptr=address, alloc_size=size, total_allocated=sum(living.values()))
        told.append(
            SimpleNamespace(
                tag=event.tag, children=(), parent=event.parent, start_time_ns=event.start_time_ns, extra_fields=fields
            )
        )
    return SimpleNamespace(
        profiler=SimpleNamespace(kineto_results=SimpleNamespace(experimental_event_tree=lambda: told))
    )
