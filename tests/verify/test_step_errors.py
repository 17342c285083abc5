"""The quick distance of two tensors is the careful one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from togi.verify.compare import difference
from togi.verify.step_errors import distance

TENSORS = {
    "many": lambda: torch.randn(3, 1 << 20),
    "one": lambda: torch.tensor(3.5),
    "none": lambda: torch.empty(0, 4),
    "zeros": lambda: torch.zeros(5, 5),
    "transposed": lambda: torch.randn(6, 7).t(),
    "tiny": lambda: torch.full((9,), 1e-30),
}


@pytest.mark.parametrize("name", TENSORS)
def test_the_quick_distance_is_the_careful_one(name: str) -> None:
    found: Tensor = TENSORS[name]()
    truth = found.double() * (1 + 1e-7) + 1e-9
    quick, careful = distance(found, truth, found), difference(found, truth, found)
    for measure in ("rms", "peak", "scale", "largest", "count", "misplaced"):
        assert getattr(quick, measure) == pytest.approx(getattr(careful, measure), rel=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_misplaced_or_right(value: float) -> None:
    truth = torch.tensor([1.0, 2.0])
    assert distance(torch.tensor([1.0, value]), truth, truth).misplaced == 1
    assert distance(truth, torch.tensor([1.0, value]), torch.tensor([1.0, value])).misplaced == 1
    both = torch.tensor([1.0, value])
    assert distance(both, both, both).rms == 0.0
