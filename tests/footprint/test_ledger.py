"""The ledger books every storage once, from birth to death, on real and on fake tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from togi.footprint.ledger import Ledger
from togi.footprint.whereabouts import Whereabouts

KIB = 1024


def test_births_deaths_and_peak() -> None:
    with Ledger() as ledger:
        first = torch.zeros(KIB // 4)
        second = first + 1
        del first
        third = second.view(2, -1).sum()
        del second
    assert [piece.bytes for piece in ledger.pieces] == [KIB, KIB, 4]
    assert [piece.died is None for piece in ledger.pieces] == [False, False, True]
    assert ledger.peak_bytes == 2 * KIB
    assert ledger.current_bytes == third.untyped_storage().nbytes() == 4


def test_what_was_entered_keeps_its_category_and_is_booked_once() -> None:
    linear = nn.Linear(8, 8)
    ledger = Ledger()
    ledger.enter(linear.parameters(), "parameter")
    ledger.enter([linear.weight.view(-1)], "input")
    with ledger:
        linear(torch.ones(1, 8))
    assert [piece.category for piece in ledger.pieces][:2] == ["parameter", "parameter"]
    assert sum(piece.category == "input" for piece in ledger.pieces) == 0


def test_lines_are_the_users() -> None:
    with Ledger(where=Whereabouts().now) as ledger:
        kept = nn.functional.gelu(torch.ones(4))  # the line
    assert kept.numel() == 4
    assert all("test_ledger.py" in piece.where.line for piece in ledger.pieces)


@pytest.mark.parametrize("layers", [1, 4])
def test_fake_run_books_the_same_as_a_real_one(layers: int) -> None:
    def run() -> int:
        module = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(layers)])
        ledger = Ledger()
        ledger.enter(module.parameters(), "parameter")
        with ledger:
            module(torch.ones(32, 64)).sum().backward()
            module.zero_grad()
        return ledger.peak_bytes

    with FakeTensorMode():
        fake = run()
    assert fake == run()


def test_a_storage_that_takes_the_place_of_a_dead_one_is_another() -> None:
    with Ledger() as ledger:
        for _ in range(50):
            torch.ones(KIB)
    assert len(ledger.pieces) == 50
    assert ledger.current_bytes == 0
    assert ledger.peak_bytes == 4 * KIB


def test_a_resized_storage_is_buried_and_booked_again() -> None:
    with Ledger() as ledger:
        tensor = torch.ones(KIB // 4)
        tensor.resize_(KIB)
    assert ledger.current_bytes == 4 * KIB == tensor.untyped_storage().nbytes()


def test_backward_belongs_to_the_module_and_line_of_its_forward() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            hidden = self.first(given).sigmoid()
            return self.second(hidden)

    model = Model()
    whereabouts = Whereabouts(model)
    ledger = Ledger(where=whereabouts.now)
    ledger.enter(model.parameters(), "parameter")
    with whereabouts.following(), ledger:
        model(torch.ones(4, 16)).sum().backward()
    backward = [piece for piece in ledger.pieces if piece.where.phase == "backward"]
    sigmoid = next(piece for piece in backward if "sigmoid_backward" in piece.op)
    assert sigmoid.where.module == ""
    assert {piece.where.module for piece in backward if "aten.mm" in piece.op} == {"first", "second"}
    assert "in forward" in sigmoid.where.line
