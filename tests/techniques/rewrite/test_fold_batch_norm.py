"""Folding is right for every kind of linear layer, and does not happen where it would be wrong."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from togi.core.errors import Refused
from togi.decide.faithful import MAX_UNITS
from togi.techniques import conformance
from togi.techniques.rewrite.fold_batch_norm import FoldBatchNorm

FOLD = FoldBatchNorm()


def fold(module, *samples, **kwargs):
    original = conformance.candidate_of(module, list(samples), **kwargs)
    return original, FOLD.apply(original, {})


def images(batch=2, channels=3, size=16):
    return torch.randn(batch, channels, size, size)


PAIRS = {
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 6, 3, padding=1), nn.BatchNorm1d(6)), (2, 3, 16)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, bias=False), nn.BatchNorm2d(6)), (2, 3, 16, 16)),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(3, 6, 3, dilation=2), nn.BatchNorm3d(6)), (2, 3, 8, 8, 8)),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.BatchNorm2d(8)), (2, 4, 8, 8)),
    "same padding": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3, padding="same"), nn.BatchNorm2d(6)), (2, 3, 8, 8)),
    "reflected": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(6)),
        (2, 3, 8, 8),
    ),
    "transposed 1d": (lambda: nn.Sequential(nn.ConvTranspose1d(4, 6, 3, stride=2), nn.BatchNorm1d(6)), (2, 4, 8)),
    "transposed 2d, groups": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), nn.BatchNorm2d(6)
        ),
        (2, 4, 8, 8),
    ),
    "transposed 3d": (
        lambda: nn.Sequential(nn.ConvTranspose3d(4, 6, 2, bias=False), nn.BatchNorm3d(6)),
        (2, 4, 4, 4, 4),
    ),
    "linear": (lambda: nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6)), (4, 5)),
    "norm without weights": (lambda: nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6, affine=False)), (2, 3, 4, 4)),
    "norm before linear": (lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 6)), (4, 5)),
    "norm before grouped conv": (lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, groups=2)), (2, 4, 8, 8)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_every_pair_is_folded_exactly(pair, randomise, error_units, calls):
    make, size = PAIRS[pair]
    sample = torch.randn(size)
    original, result = fold(randomise(make()), sample)
    assert "batch_norm" not in calls(result)
    error_units(original, result, [sample, torch.randn(size)])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["resnet18", "efficientnet_lite0"])
def test_real_architectures_lose_all_norms(name, randomise, error_units, calls):
    sample = images(size=32)
    original, result = fold(randomise(timm.create_model(name)), sample)
    assert "batch_norm" not in calls(result)
    error_units(original, result, [sample, images(size=32)])


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(6, 3, 3, 3))
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x):
        n = self.norm
        y = F.conv2d(F.pad(x, (1, 2, 1, 2)), self.kernel, stride=2)
        return F.batch_norm(y, n.running_mean, n.running_var, n.weight, n.bias).relu_()


def test_functional_code_with_its_own_padding_is_folded(randomise, error_units, calls):
    sample = images()
    original, result = fold(randomise(Functional()), sample)
    assert "batch_norm" not in calls(result)
    error_units(original, result, [sample])


class FrozenNorm(nn.Module):
    """As detection models have it: statistics are combined by arithmetic in the forward pass."""

    def __init__(self, channels):
        super().__init__()
        for name, tensor in {"weight": torch.rand(channels) + 0.5, "bias": torch.randn(channels),
                             "mean": torch.randn(channels), "var": torch.rand(channels) + 0.5}.items():  # fmt: skip
            self.register_buffer(name, tensor)

    def forward(self, x):
        scale = (self.weight * (self.var + 1e-5).rsqrt()).reshape(1, -1, 1, 1)
        return x * scale + (self.bias.reshape(1, -1, 1, 1) - self.mean.reshape(1, -1, 1, 1) * scale)


def test_frozen_batch_norm_is_folded(error_units, calls):
    sample = images()
    original, result = fold(nn.Sequential(nn.Conv2d(3, 6, 3), FrozenNorm(6)).eval(), sample)
    assert calls(result) == ["conv2d"]
    error_units(original, result, [sample])


def test_a_layer_scale_is_folded_into_its_linear_layer(error_units, calls):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.gamma = nn.Linear(4, 4), nn.Parameter(torch.rand(4))

        def forward(self, x):
            return x + self.linear(x) * self.gamma

    sample = torch.randn(2, 3, 4)
    original, result = fold(Scaled(), sample)
    assert "mul" not in calls(result)
    error_units(original, result, [sample])


class Block(nn.Module):
    """The base of the negative cases: ``conv`` and ``norm`` that a subclass calls in a way that forbids folding."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.other = nn.BatchNorm2d(3)


class UsedTwice(Block):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y.relu()


class Returned(Block):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y), y


class BatchStatistics(Block):
    def forward(self, x):
        return F.batch_norm(self.conv(x), None, None, self.norm.weight, self.norm.bias, training=True)


class DynamicWeight(Block):
    def forward(self, x):
        return self.norm(F.conv2d(x, self.conv.weight * x.mean(), padding=1))


class PaddedAfterNorm(Block):
    def forward(self, x):
        return self.conv(self.norm(x))


class WrittenBetween(Block):
    """The input of the norm changes before the convolution would read it."""

    def forward(self, x):
        y = x.tanh()
        z = self.norm(y)
        y.add_(1.0)
        return F.conv2d(z, self.conv.weight), y.mean()


class StatisticsChange(Block):
    def forward(self, x):
        y = self.norm(self.conv(x))
        self.norm.running_mean += 1.0
        return y


@pytest.mark.parametrize(
    "case", [UsedTwice, Returned, BatchStatistics, DynamicWeight, PaddedAfterNorm, WrittenBetween, StatisticsChange]
)
def test_it_refuses_where_folding_would_be_wrong(case, randomise):
    with pytest.raises(Refused, match="no batch norm"):
        fold(randomise(case()), images(size=8))


class SharedConv(Block):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.other(self.conv(x)).relu()


class SharedNorm(Block):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.norm(F.conv2d(x, self.conv.weight + 1.0, padding=1)).relu()


@pytest.mark.parametrize("case", [SharedConv, SharedNorm])
def test_shared_layers_get_weights_of_their_own(case, randomise, error_units, calls):
    sample = images()
    original, result = fold(randomise(case()), sample)
    assert "batch_norm" not in calls(result)
    error_units(original, result, [sample])


def test_a_block_that_is_called_twice_keeps_one_weight(randomise, error_units):
    class Twice(Block):
        def forward(self, x):
            return self.norm(self.conv(self.norm(self.conv(x))))

    sample = images()
    original, result = fold(randomise(Twice()), sample)
    assert len(list(result.module.parameters())) == 2
    error_units(original, result, [sample])


class Layers(nn.Module):
    """The base of cases in which layers look alike where the forward pass is written, and are not the same."""

    def __init__(self):
        super().__init__()
        self.layer, self.one, self.two = nn.Linear(4, 4), nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(4))


class ConstantOnTheLeft(Layers):
    def forward(self, x):
        return self.one * self.layer(x) + self.two * self.layer(x.sin())


class ComputedWeights(Layers):
    def __init__(self):
        super().__init__()
        self.v, self.w = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return F.linear(x, F.normalize(self.v)) * 2 + F.linear(x.sin(), F.normalize(self.w)) * 2


class BeforeAndAfter(Layers):
    def forward(self, x):
        return self.layer(x * 2) + self.layer(x.sin()) * 2


class VectorForAWeight(Layers):
    """Its result has no channels."""

    def forward(self, x):
        return F.linear(x[:, None] + self.layer.weight, self.one) * self.two


class VectorAfterAFactor(Layers):
    def forward(self, x):
        return F.linear(x * self.two, self.one)


class BroadcastBias(Layers):
    def forward(self, x):
        return F.linear(x, self.layer.weight, self.one[:1]) * self.two


@pytest.mark.parametrize("case", [VectorForAWeight, VectorAfterAFactor, BroadcastBias])
def test_what_is_no_layer_of_channels_is_left_alone(case):
    with pytest.raises(Refused, match="no batch norm"):
        fold(case(), torch.randn(2, 4))


@pytest.mark.parametrize("case", [ConstantOnTheLeft, ComputedWeights, BeforeAndAfter])
def test_only_the_same_layers_share_a_weight(case, error_units, calls):
    sample = torch.randn(2, 3, 4)
    original, result = fold(case(), sample)
    assert "mul" not in calls(result)
    error_units(original, result, [sample])


def test_a_layer_with_a_factor_on_its_left_keeps_one_weight(error_units):
    class Twice(Layers):
        def forward(self, x):
            return self.one * self.layer((self.one * self.layer(x)).sin())

    sample = torch.randn(2, 3, 4)
    original, result = fold(Twice(), sample)
    error_units(original, result, [sample])
    assert len(list(result.module.parameters())) == 2


def test_in_place_activations_on_the_norm_stay_right(randomise, error_units):
    class InPlace(Block):
        def forward(self, x):
            y = self.norm(self.conv(x))
            seen = y[:, :1]
            y.relu_()
            return y, seen + 0.5

    sample = images()
    original, result = fold(randomise(InPlace()), sample)
    error_units(original, result, [sample])


def test_weights_that_would_overflow_stay_as_they_are():
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)).eval()
    module[0].weight.data.fill_(1e30)
    module[1].running_var.fill_(1e-30)
    module[1].eps = 1e-38
    with pytest.raises(Refused):
        fold(module, torch.zeros(1, 1, 2, 2))


def test_double_precision_is_used_inside(randomise):
    """Folding in float32 would be off by several roundings; one rounding is at most half a unit in the last place."""
    module = randomise(nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)))
    _, result = fold(module, images())
    norm = module[1]
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    exact = module[0].weight.double() * scale.view(-1, 1, 1, 1)
    weight = next(p for p in result.module.parameters() if p.dim() == 4)
    assert torch.equal(weight, exact.float())


def test_dynamic_sizes_stay_dynamic(randomise, error_units):
    samples = [images(2, size=16), images(3, size=24)]
    original, result = fold(randomise(Functional()), *samples)
    assert original.signature.dynamic
    error_units(original, result, [*samples, images(5, size=40)])


def test_buffers_that_the_forward_pass_updates_are_still_updated(randomise):
    class Counting(Block):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.norm(self.conv(x)) * self.calls

    original, result = fold(randomise(Counting()), images())
    sample = images()
    with torch.no_grad():
        for _ in range(3):
            assert torch.allclose(original.module(sample), result.module(sample), atol=1e-5)
    assert {float(b) for b in result.module.buffers()} == {3.0}


def test_half_precision_weights_are_rounded_once(randomise, calls):
    module = randomise(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))).bfloat16()
    sample = images().bfloat16()
    original, result = fold(module, sample)
    assert calls(result) == ["conv2d"]
    with torch.no_grad():
        truth = module.double()(sample.double())
        error = (result.module(sample).double() - truth).square().mean().sqrt()
        eager = (original.module(sample).double() - truth).square().mean().sqrt()
    assert error <= MAX_UNITS * eager


def test_conformance(randomise):
    def conv() -> Tensor:
        return conformance.candidate_of(randomise(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))), [images()])

    conformance.check(FOLD, [conv, lambda: conformance.candidate_of(nn.Linear(2, 2), [torch.randn(1, 2)])])
