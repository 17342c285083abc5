"""How far other outputs are off, in units of a module's own error."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from togi.decide.faithful import within
from togi.subject.inputs import Inputs
from togi.verify.own_error import OwnError, seeded_outputs


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 32)).eval()


SAMPLE = Inputs((torch.linspace(-1, 1, 8 * 64).reshape(8, 64),))


def test_rounding_is_within_and_a_small_lasting_error_is_not(module: nn.Module) -> None:
    outputs, _ = seeded_outputs(module, SAMPLE, 0)
    own = OwnError(module, SAMPLE, outputs, 0)
    assert own.units(0, outputs[0]) <= 1.0
    one_by_one = torch.cat([module(row[None]) for row in SAMPLE.args[0]]).detach()
    assert within(own.units(0, one_by_one))
    assert not within(own.units(0, outputs[0] * 1.0005)), "half a per mille is a hundred times the rounding"
    assert own.units(0, torch.full_like(outputs[0], math.nan)) == math.inf
    assert own.note == ""


class OnlyFloat32(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.float32:
            raise TypeError("float32 only")
        return x.softmax(-1)


def test_without_float64_the_nudged_module_says_what_rounding_explains() -> None:
    outputs, _ = seeded_outputs(OnlyFloat32(), SAMPLE, 0)
    own = OwnError(OnlyFloat32(), SAMPLE, outputs, 0)
    assert within(own.units(0, outputs[0] * (1 + 2.0**-23)))
    assert not within(own.units(0, outputs[0] * 1.001))
    assert "float32 only" in own.note


class OtherInFloat64(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1) * (1.01 if x.dtype is torch.float64 else 1.0)


def test_another_function_in_float64_is_no_measure() -> None:
    outputs, _ = seeded_outputs(OtherInFloat64(), SAMPLE, 0)
    own = OwnError(OtherInFloat64(), SAMPLE, outputs, 0)
    assert within(own.units(0, outputs[0] * (1 + 2.0**-23)))
    assert not within(own.units(0, outputs[0] * 1.001))
    assert "something else" in own.note


def test_structure_is_compared_next_to_the_tensors() -> None:
    one, other = nn.Identity(), nn.Flatten(0)
    (_, structure), (_, same), (found, _) = (
        seeded_outputs(one, SAMPLE, 0),
        seeded_outputs(one, SAMPLE, 0),
        seeded_outputs(other, SAMPLE, 0),
    )
    assert structure == same
    assert found[0].dim() == 1
