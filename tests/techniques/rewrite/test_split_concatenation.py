# ruff: noqa: ARG005 - all functions have one signature
"""A convolution of what was concatenated becomes a sum of convolutions where that is the same, and nowhere else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.small_modules import ComputesWith
from togi.core.errors import Refused
from togi.techniques import conformance
from togi.techniques.base import Applies, Refuses
from togi.techniques.rewrite.split_concatenation import SplitConcatenation

SPLIT = SplitConcatenation()


class Calls(ComputesWith):
    """x is ``[batch, 8, height, width]``."""

    def __init__(self, function, inputs=16, kernel_size=3, **kwargs):
        super().__init__(function)
        self.conv = nn.Conv2d(inputs, 8, kernel_size, **(kwargs or {"padding": 1}))


def joined(m, x):
    return m.conv(torch.cat([x, x * 2], 1))


def split(module, *samples):
    original = conformance.candidate_of(module, list(samples or [torch.randn(2, 8, 5, 6)]))
    return original, SPLIT.apply(original, {})


LAYERS = {
    "3 x 3": {"kernel_size": 3, "padding": 1},
    "without a bias": {"kernel_size": 3, "padding": 1, "bias": False},
    "1 x 1": {"kernel_size": 1, "padding": 0},
    "same": {"kernel_size": 3, "padding": "same"},
    "stride": {"kernel_size": 3, "stride": 2},
    "dilation": {"kernel_size": 3, "dilation": 2},
}


@pytest.mark.parametrize("case", LAYERS)
def test_every_kernel_becomes_a_sum(case, calls, error_units):
    sample = torch.randn(2, 8, 5, 6)
    original, result = split(Calls(joined, **LAYERS[case]), sample)
    found = calls(result)
    assert "cat" not in found
    assert found.count("conv2d") == 2
    assert found.count("add") == 1
    error_units(original, result, [sample, torch.randn(2, 8, 5, 6)])


FORMS = {
    "three pieces": (24, lambda m, x: m.conv(torch.cat([x, x * 2, x + 1], 1))),
    "counted from the end": (16, lambda m, x: m.conv(torch.cat([x, x.relu()], -3))),
    "something follows": (16, lambda m, x: joined(m, x).relu()),
    "pieces of other widths": (24, lambda m, x: m.conv(torch.cat([x, torch.cat([x, x * 2], 1).tanh()], 1))),
    "a piece is used elsewhere": (16, lambda m, x: (lambda y: joined(m, y) + y)(x * 3)),
    "written in place before": (16, lambda m, x: (lambda y: m.conv(torch.cat([y.add_(1), x], 1)))(x * 2)),
}


@pytest.mark.parametrize("case", FORMS)
def test_a_concatenation_is_split_however_it_is_written(case, calls, error_units):
    inputs, function = FORMS[case]
    sample = torch.randn(2, 8, 5, 6)
    original, result = split(Calls(function, inputs), sample)
    assert calls(result).count("conv2d") >= 2
    error_units(original, result, [sample])


def test_one_and_three_dimensions(calls, error_units):
    for layer, sample in (
        (nn.Conv1d(16, 8, 3, padding=1), torch.randn(2, 8, 9)),
        (nn.Conv3d(16, 8, 3, padding=1), torch.randn(1, 8, 3, 4, 5)),
    ):
        module = Calls(joined)
        module.conv = layer
        original, result = split(module, sample)
        assert "cat" not in calls(result)
        error_units(original, result, [sample])


def test_sizes_may_vary(calls, error_units):
    samples = [torch.randn(2, 8, 5, 6), torch.randn(2, 8, 7, 9)]
    original, result = split(Calls(joined), *samples)
    assert "cat" not in calls(result)
    error_units(original, result, [*samples, torch.randn(2, 8, 11, 8)])


def test_a_layer_that_is_used_twice_keeps_each_part_of_its_weight_once(calls, error_units):
    sample = torch.randn(1, 8, 5, 6)
    original, result = split(Calls(lambda m, x: joined(m, joined(m, x).relu())), sample)
    assert calls(result).count("conv2d") == 4
    assert [tuple(p.shape) for p in result.module.parameters() if p.dim() == 4] == [(8, 8, 3, 3)] * 2
    error_units(original, result, [sample])


def test_float64_stays_as_precise():
    sample = torch.randn(2, 8, 5, 6, dtype=torch.float64)
    original, result = split(Calls(joined).double(), sample)
    torch.testing.assert_close(result.module(sample), original.module(sample), rtol=1e-12, atol=1e-12)


def written(m, x):
    y = x * 2
    both = torch.cat([x, y], 1)
    y.add_(1)
    return m.conv(both) + y.sum()


LEFT_ALONE = {
    "it is used elsewhere": Calls(lambda m, x: (lambda y: m.conv(y) + y.sum())(torch.cat([x, x], 1))),
    "it is returned": Calls(lambda m, x: (lambda y: (m.conv(y), y))(torch.cat([x, x], 1))),
    "along the height": Calls(lambda m, x: m.conv(torch.cat([x, x], 2)), 8),
    "along the batch": Calls(lambda m, x: m.conv(torch.cat([x, x], 0)), 8),
    "something between": Calls(lambda m, x: m.conv(torch.cat([x, x * 2], 1).relu())),
    "too many pieces": Calls(lambda m, x: m.conv(torch.cat([x, x * 2, x + 1, x - 1], 1)), 32),
    "a piece of few channels": Calls(lambda m, x: m.conv(torch.cat([x, x[:, :2]], 1)), 10),
    "groups": Calls(joined, 16, 3, groups=2),
    "padding by reflection": Calls(joined, 16, 3, padding=1, padding_mode="reflect"),
    "weights are computed": Calls(lambda m, x: F.conv2d(torch.cat([x, x], 1), m.conv.weight * x.sum())),
    "types are promoted": Calls(lambda m, x: m.conv(torch.cat([x, (x > 0)], 1))),
    "a piece is written between": Calls(written),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_it_is_left_alone_where(case):
    with pytest.raises(Refused, match="one convolution"):
        split(LEFT_ALONE[case])


def test_it_conforms():
    conformance.check(SPLIT, [lambda: conformance.candidate_of(Calls(joined), [torch.randn(2, 8, 5, 6)])])


def test_a_model_without_concatenation_is_refused_before_anything_is_captured():
    def facts(function, inputs=16):
        return conformance.candidate_of(Calls(function, inputs), [torch.randn(2, 8, 5, 6)]).facts

    assert isinstance(SPLIT.applies(facts(lambda m, x: m.conv(x), 8)), Refuses)
    assert isinstance(SPLIT.applies(facts(lambda m, x: torch.cat([x, x], 1))), Refuses)
    for inputs, function in FORMS.values():
        assert SPLIT.applies(facts(function, inputs)) == Applies()
