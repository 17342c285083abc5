"""Padded layers compute the same, and what cannot be padded stays as it is."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from togi.core.errors import Refused
from togi.techniques import conformance
from togi.techniques.rewrite.fold_batch_norm import FoldBatchNorm
from togi.techniques.rewrite.pad_channels import PadChannels

PAD = PadChannels()


def pad(module, *samples, multiple=8, **kwargs):
    original = conformance.candidate_of(module, list(samples), **kwargs)
    return original, PAD.apply(original, {"multiple": multiple})


def images(batch=2, channels=3, size=12):
    return torch.randn(batch, channels, size, size)


def out_channels(candidate):
    """Output channels of each layer with weights, in order of the graph."""
    nodes = candidate.module.graph.graph.nodes
    layers = [n for n in nodes if any(word in str(n.target) for word in ("conv", "linear")) and n.op == "call_function"]
    return [n.meta["val"].shape[-1 if "linear" in str(n.target) else 1] for n in layers]


def bottleneck(inner):
    return nn.Sequential(nn.Conv2d(3, inner, 3, padding=1), nn.ReLU6(), nn.Conv2d(inner, 5, 1))


@pytest.mark.parametrize(("inner", "multiple", "expected"), [(6, 8, 8), (12, 16, 16), (13, 8, 16), (24, 16, 32)])
def test_inner_channels_become_a_multiple(inner, multiple, expected, error_units):
    sample = images()
    original, result = pad(bottleneck(inner), sample, multiple=multiple)
    assert out_channels(result) == [expected, 5]
    error_units(original, result, [sample])


class Residual(nn.Module):
    """Both operands of the sum have the same channels."""

    def __init__(self, channels=6):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.inner = nn.Conv2d(channels, channels, 3, padding=1)
        self.head = nn.Linear(channels, 4)

    def forward(self, x):
        x = self.norm(self.stem(x)).relu_()
        x = x + F.silu(self.inner(x))
        return self.head(x.mean((2, 3)))


class SqueezeExcite(Residual):
    """A product with one factor per channel, from a bottleneck of its own, and a depthwise convolution."""

    def __init__(self, channels=12):
        super().__init__(channels)
        self.depthwise = nn.Conv2d(channels, 2 * channels, 3, groups=channels)
        self.reduce, self.expand = nn.Conv2d(2 * channels, 7, 1), nn.Conv2d(7, 2 * channels, 1)
        self.last = nn.Conv2d(2 * channels, channels, 1)

    def forward(self, x):
        x = F.hardswish(self.depthwise(self.stem(x)))
        factor = self.expand(self.reduce(F.adaptive_avg_pool2d(x, 1)).relu()).sigmoid()
        return self.head(self.last(x * factor).amax((2, 3)))


class Dense(Residual):
    """Concatenations: new channels lie in the middle."""

    def forward(self, x):
        a = self.stem(x)
        b = torch.cat([x, a.tanh(), F.max_pool2d(self.inner(a), 3, 1, 1)], 1)
        return F.conv2d(b, self.weights[:, : b.shape[1]]).flatten(1)

    def __init__(self, channels=6):
        super().__init__(channels)
        self.weights = nn.Parameter(torch.randn(5, 3 + 2 * channels, 1, 1))


class Flattened(Residual):
    """The linear layer sees channels times pixels; the size comes from ``view``."""

    def __init__(self, channels=6):
        super().__init__(channels)
        self.head = nn.Linear(channels * 16, 4)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.stem(x), 4)
        return self.head(x.view(x.shape[0], -1))


class Tokens(Residual):
    """Channels move to the last dimension and meet a constant."""

    def __init__(self, channels=6):
        super().__init__(channels)
        self.position = nn.Parameter(torch.randn(1, 144, channels))

    def forward(self, x):
        return self.head(F.gelu(self.stem(x).flatten(2).transpose(1, 2) + self.position) * 0.5 / 3)


class Upsampled(Residual):
    def __init__(self, channels=6):
        super().__init__(channels)
        self.up = nn.ConvTranspose2d(channels, channels, 2, stride=2)
        self.deep = nn.ConvTranspose2d(channels, channels, 2, stride=2, groups=channels)
        self.out = nn.Conv2d(channels, 3, 1)

    def forward(self, x):
        y = F.interpolate(self.deep(self.up(self.stem(x))), scale_factor=0.5, mode="bilinear")
        return self.out(F.pad(y, (1, 1, 1, 1), mode="reflect"))


@pytest.mark.parametrize("case", [Residual, SqueezeExcite, Dense, Flattened, Tokens, Upsampled])
@pytest.mark.parametrize("multiple", [8, 16])
def test_channels_are_followed_through(case, multiple, randomise, error_units):
    sample = images()
    channels = {8: 6, 16: 12}[multiple]
    original, result = pad(randomise(case(channels)), sample, multiple=multiple)
    assert {6: 8, 12: 16}[channels] in out_channels(result)
    error_units(original, result, [sample, images()])


def test_a_multilayer_perceptron(error_units):
    sample = torch.randn(3, 5, 10)
    module = nn.Sequential(nn.Linear(10, 30), nn.GELU(), nn.Linear(30, 21), nn.Tanh(), nn.Linear(21, 7))
    original, result = pad(module, sample)
    assert out_channels(result) == [32, 24, 7]
    error_units(original, result, [sample])


@pytest.mark.parametrize(
    ("name", "options"),
    [("mobilenetv3_small_050", {}), ("densenet121", {"growth_rate": 12, "block_config": (2, 2)})],
)
def test_real_architectures(name, options, randomise, error_units):
    sample = images(1, 3, 64)
    original, result = pad(randomise(timm.create_model(name, **options)), sample, multiple=16)
    assert sum(count % 16 > 0 for count in out_channels(result)) < sum(count % 16 > 0 for count in _counts(original))
    error_units(original, result, [sample])


def test_it_refuses_an_architecture_of_round_numbers(randomise):
    with pytest.raises(Refused, match="no layer inside"):
        pad(randomise(timm.create_model("resnet18")), images(1, 3, 64), multiple=16)


def _counts(candidate):
    modules = candidate.module.modules()
    return [m.weight.shape[0] for m in modules if isinstance(m, nn.Conv2d | nn.Linear)]


class Negative(Residual):
    def __init__(self):
        super().__init__(6)
        self.layer_norm = nn.LayerNorm(6)


class Returned(Negative):
    def forward(self, x):
        return self.inner(x := self.stem(x)), x


class Normalised(Negative):
    def forward(self, x):
        return self.head(self.layer_norm(self.stem(x).mean((2, 3))))


class Split(Negative):
    def forward(self, x):
        a, b = self.stem(x).chunk(2, 1)
        return F.conv2d(a * b, self.inner.weight[:, :3])


class Averaged(Negative):
    def forward(self, x):
        return self.stem(x).mean(1)


class Divided(Negative):
    """Zeros by zeros would be NaN."""

    def forward(self, x):
        y = self.stem(x)
        return self.head((y / self.norm(y)).mean((2, 3)))


class AddedToInput(Negative):
    def forward(self, x, other):
        return self.inner(self.stem(x) + other)


class ClampedByChannel(Negative):
    """The limits are a tensor, one for each channel."""

    def __init__(self):
        super().__init__()
        self.lowest = nn.Parameter(torch.randn(6, 1, 1))

    def forward(self, x):
        return self.head(torch.clamp(self.stem(x), min=self.lowest).mean((2, 3)))


class Squared(Negative):
    """Both operands of one layer."""

    def forward(self, x):
        y = self.stem(x).mean((2, 3))
        return y @ y.t()


class IntoAVector(Negative):
    """A product with a vector has no channels."""

    def forward(self, x):
        return F.linear(self.stem(x).mean((2, 3)), self.norm.weight)


class BroadcastBias(Negative):
    def forward(self, x):
        return self.head(F.linear(x.mean((2, 3)), self.stem.weight[:, :, 0, 0], self.norm.bias[:1]).tanh())


@pytest.mark.parametrize(
    "case",
    [
        Returned,
        Normalised,
        Split,
        Averaged,
        Divided,
        AddedToInput,
        ClampedByChannel,
        Squared,
        IntoAVector,
        BroadcastBias,
    ],
)
def test_it_refuses_where_channels_are_mixed_or_leave(case, randomise):
    sample = (images(), images(channels=6)) if case is AddedToInput else images()
    with pytest.raises(Refused, match="no layer inside"):
        pad(randomise(case()), sample)


def test_few_channels_do_not_grow_beyond_half():
    with pytest.raises(Refused, match="no layer inside"):
        pad(bottleneck(5), images())


@pytest.mark.parametrize("multiple", [0, 1, -8, "8", 8.0, None])
def test_an_impossible_multiple_is_refused(multiple):
    with pytest.raises(Refused, match="whole number"):
        pad(bottleneck(6), images(), multiple=multiple)


def test_dynamic_sizes_stay_dynamic(randomise, error_units):
    samples = [images(2, size=12), images(3, size=16)]
    original, result = pad(randomise(Residual()), *samples)
    error_units(original, result, [*samples, images(1, size=20)])


def test_it_follows_another_rewrite(randomise, error_units):
    sample = images()
    original = conformance.candidate_of(randomise(Residual()), [sample])
    result = PAD.apply(FoldBatchNorm().apply(original, {}), {"multiple": 8})
    assert set(out_channels(result)) == {8, 4}
    error_units(original, result, [sample])


def test_conformance(randomise):
    builders = [
        lambda: conformance.candidate_of(randomise(Residual(12)), [images()]),
        lambda: conformance.candidate_of(nn.Linear(2, 2), [torch.randn(1, 2)]),
    ]
    conformance.check(PAD, builders)
