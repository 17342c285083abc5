"""``with togi.memory()`` where there is nothing to see, or something is in its way."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import togi
from togi.core.errors import TogiError
from togi.footprint.account.watched import account_of
from togi.footprint.step import make_step
from togi.subject.inputs import Subject


def allocate() -> None:
    torch.zeros(1000)


def test_code_that_allocates_nothing_goes_on_and_the_account_says_why() -> None:
    with togi.memory() as watched:
        pass
    with pytest.raises(TogiError, match="nothing was allocated by torch's cpu allocator in this thread"):
        _ = watched.account


def test_code_in_other_threads_is_said_not_to_be_seen() -> None:
    with togi.memory() as watched:
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
    with pytest.raises(TogiError, match="Other threads that the code starts are not seen"):
        _ = watched.account


def test_a_block_inside_another_is_refused_and_the_outer_one_goes_on() -> None:
    with togi.memory() as outer:
        with pytest.raises(TogiError, match="one after the other"), togi.memory():
            pass
        kept = torch.zeros(1000)
    assert outer.account.peak_bytes == kept.nbytes


def test_a_block_under_a_profiler_is_refused() -> None:
    with torch.profiler.profile(), pytest.raises(TogiError, match="profiler is running already"), togi.memory():
        pass


@pytest.mark.parametrize("before", [allocate, lambda: 1 / 0])
def test_the_next_block_works_whatever_the_last_one_did(before: Callable[[], object]) -> None:
    try:
        with togi.memory() as first:
            before()
    except ZeroDivisionError:
        with pytest.raises(TogiError, match="must not raise"):
            _ = first.account
    with togi.memory() as second:
        allocate()
    assert second.account.peak_bytes == 4000


@pytest.mark.parametrize("passes", [2, 4])
def test_what_a_loop_keeps_from_the_pass_before_is_named(passes: int) -> None:
    module, given = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 256)), torch.randn(256, 64)

    def loop() -> None:
        for _ in range(passes):
            out = module(given)
        del out

    with torch.no_grad(), togi.memory() as watched:
        loop()
    (held,) = watched.account.held_names
    assert (held.name, held.bytes, held.saved_bytes) == ("out", 256 * 256 * 4, 256 * 256 * 4)


def test_a_buffer_that_is_replaced_counts_until_it_goes() -> None:
    class Replacing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(10_000))

        def forward(self, given: Tensor) -> Tensor:
            self.mean = self.mean.neg()
            return given.repeat(12_000)

    found = account_of(make_step(Subject(Replacing().eval(), (torch.ones(1),)), train=False))
    assert found.peak_bytes == pytest.approx(4 + 40_000 + 48_000, abs=64)
    assert sum(values[-1] for values in found.timeline.bytes.values()) <= found.peak_bytes
