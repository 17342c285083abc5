"""Denormals are flushed during a call and only then; a model that is known to meet none is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from togi.techniques import Applies, conformance
from togi.techniques.runtime.flush_denormal import FlushDenormal, flushing

FLUSH = FlushDenormal()
SMALLEST = torch.tensor([1], dtype=torch.int32).view(torch.float32)


class Decays(nn.Module):
    """A filter whose state falls below the smallest normal number."""

    def forward(self, x):
        return x + x * 1e-30 * 1e-12


def flushes():
    return bool(((SMALLEST * 1.0).view(torch.int32) == 0).item())


def test_the_mode_holds_for_the_block_and_nests():
    assert not flushes()
    with flushing():
        assert flushes()
        with flushing():
            assert flushes()
        assert flushes()
    assert not flushes()


def test_the_mode_ends_with_an_error():
    with pytest.raises(ValueError, match="no"), flushing():
        raise ValueError("no")
    assert not flushes()


def test_it_refuses_where_there_is_nothing_to_flush():
    facts = conformance.candidate_of(Decays(), [torch.ones(3)]).facts
    assert FLUSH.applies(facts.model_copy(update={"denormals": True})) == Applies()
    answer = FLUSH.applies(facts.model_copy(update={"denormals": False}))
    assert "nothing to flush" in answer.reason


def test_a_call_is_made_in_the_mode():
    class Asks(Decays):
        def forward(self, x):
            self.flushed = flushes()
            return super().forward(x)

    start = conformance.candidate_of(Asks(), [torch.ones(3)])
    result = FLUSH.apply(FLUSH.configure(start, {}), {})
    result.runnable()(torch.ones(3))
    assert start.module.flushed
    assert not flushes()


def test_conformance():
    conformance.check(
        FLUSH,
        [
            lambda: conformance.candidate_of(Decays(), [torch.ones(3)]),
            lambda: conformance.candidate_of(nn.Linear(2, 2), [torch.ones(1, 2)]),
        ],
    )
