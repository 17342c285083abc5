# ruff: noqa: ARG005 - all functions have one signature
"""A convolution takes in the upsampling before it where that is the same, and nowhere else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.small_modules import ComputesWith
from togi.core.errors import Refused
from togi.techniques import conformance
from togi.techniques.base import Applies, Refuses
from togi.techniques.rewrite.fold_upsampling import FoldUpsampling

FOLD = FoldUpsampling()


class Calls(ComputesWith):
    """x is ``[batch, 4, height, width]``."""

    def __init__(self, function, kernel_size=3, **kwargs):
        super().__init__(function)
        self.conv = nn.Conv2d(4, 4, kernel_size, **(kwargs or {"padding": 1}))


def up(x, mode="nearest"):
    return F.interpolate(x, scale_factor=2, mode=mode)


def plain(m, x):
    return m.conv(up(x))


def folded(module, *samples):
    original = conformance.candidate_of(module, list(samples or [torch.randn(2, 4, 5, 6)]))
    return original, FOLD.apply(original, {})


LAYERS = {
    "3 x 3": {"kernel_size": 3, "padding": 1},
    "without a bias": {"kernel_size": 3, "padding": 1, "bias": False},
    "unpadded": {"kernel_size": 3},
    "padded by more": {"kernel_size": 3, "padding": 2},
    "same": {"kernel_size": 3, "padding": "same"},
    "5 x 5": {"kernel_size": 5, "padding": 2},
    "even": {"kernel_size": 2, "padding": 1},
    "sides differ": {"kernel_size": (3, 5), "padding": (1, 0)},
}


@pytest.mark.parametrize("case", LAYERS)
def test_every_kernel_becomes_one_call(case, calls, error_units):
    sample = torch.randn(2, 4, 5, 6)
    original, result = folded(Calls(plain, **LAYERS[case]), sample)
    assert calls(result) == ["conv_transpose2d"]
    error_units(original, result, [sample, torch.randn(2, 4, 5, 6)])


FORMS = {
    "by a size": lambda m, x: m.conv(F.interpolate(x, size=(10, 12))),
    "something follows": lambda m, x: m.conv(up(x)).relu(),
    "a module": lambda m, x: m.conv(nn.Upsample(scale_factor=2)(x)),
}


@pytest.mark.parametrize("case", FORMS)
def test_upsampling_is_folded_however_it_is_written(case, calls, error_units):
    sample = torch.randn(2, 4, 5, 6)
    original, result = folded(Calls(FORMS[case]), sample)
    assert calls(result)[0] == "conv_transpose2d"
    error_units(original, result, [sample])


def test_sizes_may_vary(calls, error_units):
    samples = [torch.randn(2, 4, 5, 6), torch.randn(2, 4, 7, 9)]
    original, result = folded(Calls(plain), *samples)
    assert "conv_transpose2d" in calls(result)
    error_units(original, result, [*samples, torch.randn(2, 4, 11, 8)])


def test_a_layer_that_is_used_twice_keeps_one_weight_for_both(calls, error_units):
    sample = torch.randn(1, 4, 5, 6)
    original, result = folded(Calls(lambda m, x: m.conv(up(m.conv(up(x)).relu()))), sample)
    assert calls(result).count("conv_transpose2d") == 2
    assert [tuple(p.shape) for p in result.module.parameters() if p.dim() == 4] == [(4, 4, 4, 4)]
    error_units(original, result, [sample])


def test_float64_stays_as_precise():
    sample = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    original, result = folded(Calls(plain).double(), sample)
    torch.testing.assert_close(result.module(sample), original.module(sample), rtol=1e-12, atol=1e-12)


def written(m, x):
    y = x * 2
    bigger = up(y)
    y.add_(1)
    return m.conv(bigger) + y.sum()


LEFT_ALONE = {
    "what is upsampled is used elsewhere": Calls(lambda m, x: (lambda y: m.conv(y) + y)(up(x))),
    "what is upsampled is returned": Calls(lambda m, x: (lambda y: (m.conv(y), y))(up(x))),
    "bilinear": Calls(lambda m, x: m.conv(up(x, "bilinear"))),
    "nearest-exact": Calls(lambda m, x: m.conv(up(x, "nearest-exact"))),
    "by three": Calls(lambda m, x: m.conv(F.interpolate(x, scale_factor=3))),
    "by two in one direction": Calls(lambda m, x: m.conv(F.interpolate(x, scale_factor=(2, 1)))),
    "to another size": Calls(lambda m, x: m.conv(F.interpolate(x, size=(10, 13)))),
    "it is concatenated": Calls(lambda m, x: m.conv(torch.cat([up(x)[:, :2], up(x)[:, 2:]], 1))),
    "something between": Calls(lambda m, x: m.conv(up(x).relu())),
    "stride": Calls(plain, 3, stride=2),
    "dilation": Calls(plain, 3, dilation=2),
    "groups": Calls(plain, 3, groups=2),
    "1 x 1": Calls(plain, 1, padding=0),
    "padding beyond the kernel": Calls(plain, 3, padding=3),
    "padding by reflection": Calls(plain, 3, padding=1, padding_mode="reflect"),
    "weights are computed": Calls(lambda m, x: F.conv2d(up(x), m.conv.weight * x.sum())),
    "it is written between": Calls(written),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_it_is_left_alone_where(case):
    with pytest.raises(Refused, match="upsampling by two"):
        folded(LEFT_ALONE[case])


def test_it_conforms():
    conformance.check(FOLD, [lambda: conformance.candidate_of(Calls(plain), [torch.randn(2, 4, 5, 6)])])


def test_a_model_without_upsampling_is_refused_before_anything_is_captured():
    def facts(function):
        return conformance.candidate_of(Calls(function), [torch.randn(2, 4, 5, 6)]).facts

    assert isinstance(FOLD.applies(facts(lambda m, x: m.conv(x))), Refuses)
    assert isinstance(FOLD.applies(facts(lambda m, x: up(x))), Refuses)
    for function in FORMS.values():
        assert FOLD.applies(facts(function)) == Applies()
