"""Merging is right for every kind of branch, and does not happen where it would be wrong or dearer."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from togi.core.errors import Refused
from togi.techniques import conformance
from togi.techniques.rewrite.merge_branches import MergeBranches

MERGE = MergeBranches()


def merge(module, *samples):
    original = conformance.candidate_of(module, list(samples))
    return original, MERGE.apply(original, {})


def images(batch=2, channels=4, size=12):
    return torch.randn(batch, channels, size, size)


def conv(*args, **kwargs):
    return nn.Sequential(nn.Conv2d(*args, bias=False, **kwargs), nn.BatchNorm2d(args[1]))


class Sum(nn.Module):
    """The sum of branches of one input, then a ReLU in place."""

    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x):
        total = self.branches[0](x)
        for branch in self.branches[1:]:
            total = total + branch(x)
        return total.relu_()


class Scale(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(channels, 1, 1))

    def forward(self, x):
        return x * self.scale


SUMS = {
    "RepVGG": (lambda: Sum(conv(4, 4, 3, padding=1), conv(4, 4, 1), nn.BatchNorm2d(4)), 4),
    "RepVGG, stride 2": (lambda: Sum(conv(4, 6, 3, padding=1, stride=2), conv(4, 6, 1, stride=2)), 4),
    "ACNet": (
        lambda: Sum(conv(4, 6, 3, padding=1), conv(4, 6, (1, 3), padding=(0, 1)), conv(4, 6, (3, 1), padding=(1, 0))),
        4,
    ),
    "only 1x3 and 3x1": (lambda: Sum(conv(4, 6, (1, 3), padding=(0, 1)), conv(4, 6, (3, 1), padding=(1, 0))), 4),
    "depthwise, large and small": (
        lambda: Sum(conv(6, 6, 7, padding=3, groups=6), conv(6, 6, 3, padding=1, groups=6), nn.Identity()),
        6,
    ),
    "groups with identity": (lambda: Sum(nn.Conv2d(6, 6, 3, padding=1, groups=2), nn.Identity()), 6),
    "scaled identity": (lambda: Sum(nn.Conv2d(4, 4, 3, padding=1), Scale(4)), 4),
    "average pool": (
        lambda: Sum(conv(4, 4, 3, padding=1, groups=4), nn.AvgPool2d(3, stride=1, padding=1), conv(4, 4, 1, groups=4)),
        4,
    ),
    "dilated, and pointwise": (lambda: Sum(conv(4, 4, 3, padding=2, dilation=2), conv(4, 4, 1)), 4),
    "dilated kernels of two sizes": (
        lambda: Sum(conv(4, 4, 5, padding=4, dilation=2), conv(4, 4, 3, padding=2, dilation=2)),
        4,
    ),
    "unpadded and cropping": (lambda: Sum(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, bias=False)), 4),
    "pointwise twice": (lambda: Sum(conv(4, 6, 1), conv(4, 6, 1)), 4),
    "pointwise after 3x3 beside 3x3": (
        lambda: Sum(nn.Sequential(nn.Conv2d(4, 2, 3, padding=1), nn.Conv2d(2, 6, 1)), conv(4, 6, 3, padding=1)),
        4,
    ),
}


@pytest.mark.parametrize("case", SUMS)
def test_every_kind_of_branch_becomes_one_call(case, randomise, error_units, calls):
    make, channels = SUMS[case]
    sample = images(channels=channels)
    original, result = merge(randomise(make()), sample)
    assert calls(result) == ["conv2d", "relu_"]
    error_units(original, result, [sample, images(channels=channels)])


def test_odd_sizes_with_stride(randomise, error_units, calls):
    sample = torch.randn(1, 4, 11, 14)
    original, result = merge(randomise(Sum(conv(4, 6, 3, padding=1, stride=2), conv(4, 6, 1, stride=2))), sample)
    assert calls(result) == ["conv2d", "relu_"]
    error_units(original, result, [sample])


@pytest.mark.parametrize(
    ("layer", "norm", "size"),
    [(nn.Conv1d, nn.BatchNorm1d, (2, 4, 9)), (nn.Conv3d, nn.BatchNorm3d, (1, 4, 5, 6, 7))],
)
def test_one_and_three_dimensions(layer, norm, size, randomise, error_units, calls):
    sample = torch.randn(size)
    module = randomise(Sum(layer(4, 4, 3, padding=1), layer(4, 4, 1), norm(4), nn.Identity()))
    original, result = merge(module, sample)
    assert len(calls(result)) == 2
    error_units(original, result, [sample])


@pytest.mark.parametrize(
    ("name", "sums"),
    [("repvgg_a0", 22), pytest.param("mobileone_s0", 43, marks=pytest.mark.thorough)],
)
def test_real_architectures_become_plain(name, sums, randomise, error_units, calls):
    sample = images(1, 3, 32)
    original, result = merge(randomise(timm.create_model(name)), sample)
    names = calls(result)
    assert names.count("conv2d") == sums
    assert not {"batch_norm", "add", "add_"} & set(names)
    error_units(original, result, [sample])


class ScaleFeatures(nn.Module):
    """One factor for each index of the last dimension."""

    def __init__(self, features):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(features))

    def forward(self, x):
        return x * self.scale


def test_factors_of_features_are_merged_into_a_linear_layer(error_units, calls):
    sample = torch.randn(2, 8, 8)
    original, result = merge(Sum(nn.Linear(8, 8), ScaleFeatures(8)), sample)
    assert calls(result) == ["linear", "relu_"]
    error_units(original, result, [sample])


class ScaleRows(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(rows, 1))

    def forward(self, x):
        return x * self.scale


@pytest.mark.parametrize(
    "other",
    [
        lambda: ScaleRows(8),
        lambda: nn.BatchNorm1d(8),
        lambda: nn.AvgPool1d(3, stride=1, padding=1),
        lambda: nn.Conv1d(8, 8, 3, padding=1),
    ],
)
def test_a_linear_layer_does_not_take_what_has_its_channels_elsewhere(other, randomise):
    """All sizes are 8, so that the shapes fit whichever dimension is meant."""
    with pytest.raises(Refused, match="fit together"):
        merge(randomise(Sum(nn.Linear(8, 8), other())), torch.randn(2, 8, 8))


class LowRank(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.down, self.up = nn.Linear(16, 16), nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x)) * 0.5


def test_a_low_rank_adapter_is_merged_into_its_layer(error_units, calls):
    sample = torch.randn(2, 3, 16)
    original, result = merge(LowRank(), sample)
    assert calls(result) == ["linear"]
    error_units(original, result, [sample])


def test_differences_and_factors_are_sums(error_units, calls):
    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            return torch.add(self.one(x) - self.two(x), x, alpha=0.25) + 3.0

    sample = images()
    original, result = merge(Difference(), sample)
    assert calls(result) == ["conv2d"]
    error_units(original, result, [sample])


def test_a_residual_from_elsewhere_stays(randomise, error_units, calls):
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = Sum(conv(4, 4, 3, padding=1), conv(4, 4, 1))
            self.first, self.second = conv(4, 4, 3, padding=1), conv(4, 4, 1)

        def forward(self, x):
            y = self.branches(x)
            return self.first(y) + x + self.second(y)

    sample = images()
    original, result = merge(randomise(Residual()), sample)
    assert calls(result) == ["conv2d", "relu_", "conv2d", "add_"]
    error_units(original, result, [sample])


def test_two_inputs_give_two_merged_calls(error_units, calls):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(4, 4, size, padding=size // 2) for size in (3, 1, 3, 1))

        def forward(self, x):
            a, b, c, d = self.layers
            y = x.tanh()
            return a(x) + b(x) + c(y) + d(y)

    sample = images()
    original, result = merge(Two(), sample)
    assert calls(result).count("conv2d") == 2
    error_units(original, result, [sample])


class WrittenBetween(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        y = x.tanh()
        view = y[:]
        first = self.one(y)
        view.mul_(2.0)
        return first + self.two(y)


class BranchReturned(WrittenBetween):
    def forward(self, x):
        first = self.one(x)
        return first + self.two(x), first


class ActivatedBranch(WrittenBetween):
    def forward(self, x):
        return self.one(x).relu() + self.two(x)


class Broadcast(WrittenBetween):
    def forward(self, x):
        return self.one(x) + self.two(x.mean((2, 3), keepdim=True))


class IntoTheInput(WrittenBetween):
    """The sum is written into the caller's tensor: that must go on."""

    def forward(self, x):
        x += self.one(x)
        return x * 1.5


NEGATIVE = {
    "the input is written between": WrittenBetween,
    "a branch is returned": BranchReturned,
    "a branch is activated": ActivatedBranch,
    "broadcast": Broadcast,
    "into the caller's tensor": IntoTheInput,
    "other groups": lambda: Sum(nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.Conv2d(4, 4, 3, padding=1)),
    "other dilation": lambda: Sum(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=2, dilation=2, bias=False)),
    "reflection": lambda: Sum(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), nn.Conv2d(4, 4, 3, padding=1)),
    "pool that ignores the padding": lambda: Sum(
        nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.AvgPool2d(3, 1, 1, count_include_pad=False)
    ),
    "7x1 and 1x7 would cost 3.5 times": lambda: Sum(
        nn.Conv2d(4, 4, (7, 1), padding=(3, 0)), nn.Conv2d(4, 4, (1, 7), padding=(0, 3))
    ),
}


@pytest.mark.parametrize("case", NEGATIVE)
def test_it_refuses_where_merging_would_be_wrong_or_dear(case, randomise):
    with pytest.raises(Refused, match="no sum"):
        merge(randomise(NEGATIVE[case]()), images())


def test_what_is_not_linear_stays_in_the_sum(randomise, error_units, calls):
    sample = images()
    original, result = merge(randomise(Sum(nn.Conv2d(4, 4, 2, stride=2), nn.AvgPool2d(2), nn.MaxPool2d(2))), sample)
    assert "max_pool2d" in calls(result)
    error_units(original, result, [sample])


def test_dynamic_sizes_stay_dynamic(randomise, error_units):
    samples = [images(2, size=12), images(3, size=17)]
    original, result = merge(randomise(Sum(conv(4, 6, 3, padding=1, stride=2), conv(4, 6, 1, stride=2))), *samples)
    error_units(original, result, [*samples, images(1, size=29)])


def test_conformance(randomise):
    def block():
        return conformance.candidate_of(randomise(SUMS["RepVGG"][0]()), [images()])

    conformance.check(MERGE, [block, lambda: conformance.candidate_of(nn.Conv2d(4, 4, 1), [images()])])


class WrittenTerm(nn.Module):
    """A sum that is written into a term that stays."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)])

    def forward(self, x):
        total = x.sin()
        for branch in self.branches:
            total += branch(x)
        return total


def test_a_sum_that_is_written_into_a_term_that_stays_counts_no_branch_twice(calls, error_units):
    x = images()
    original, result = merge(WrittenTerm().eval(), x)
    assert sorted(calls(result)) == ["add_", "conv2d", "sin"]
    error_units(original, result, [x])
