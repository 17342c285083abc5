"""What a pool on a device holds is this process's, by NVML's word; else the whole device's, and a note says so."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
import torch

from togi.graphs import Pool, pool
from togi.graphs.recording import Recording

PLACE = torch.device("cuda:0")


@dataclass
class Card:
    """Bytes that this process holds, which NVML tells or does not, and that all hold."""

    own: int | None
    every: int


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    found = Card(own=700, every=5000)
    monkeypatch.setattr(pool.Cuda, "current", lambda _: nullcontext())
    monkeypatch.setattr(pool, "OnDevice", lambda: lambda run, _: run())
    monkeypatch.setattr(pool, "own_cuda_bytes", lambda _: found.own)
    monkeypatch.setattr(pool, "cuda_bytes_of_all", lambda _: found.every)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    return found


def captured(card: Card, own: int | None, every: int) -> Pool:
    """A graph is captured, after which so much is held."""
    held = Pool("1MiB", pool.Cuda(PLACE))

    def capture() -> Recording:
        before, card.own, card.every = card.own, own, every
        made = Recording(replay=lambda: None, inputs=(), outputs=())
        weakref.finalize(made, setattr, card, "own", before)
        return made

    held.record(("owner", 1), [capture], ())
    return held


def test_what_another_process_takes_meanwhile_is_not_the_graphs(card: Card) -> None:
    held = captured(card, own=760, every=9000)
    assert held.held_bytes == 60
    assert pool.Cuda(PLACE).note == ""
    held.drop(("owner", 1))
    assert card.own == 700
    assert held.held_bytes == 0


def test_without_nvml_it_is_that_of_the_device_with_a_note(card: Card) -> None:
    before = replace(card)
    card.own = None
    assert captured(card, own=None, every=9000).held_bytes == 9000 - before.every
    assert "other processes that take or free memory" in pool.Cuda(PLACE).note


def test_an_nvml_that_does_not_answer_once_changes_nothing(card: Card) -> None:
    assert captured(card, own=None, every=9000).held_bytes == 0
