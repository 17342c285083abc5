"""bias-before-norm, conv-batchnorm-unfolded, norm-with-statistics-at-inference, memory-bound-separable-convolution."""

from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.lint.rules.module_findings import findings, layers

IMAGE = torch.randn(1, 3, 32, 32)


def two(conv: nn.Module, norm: nn.Module) -> nn.Module:
    return nn.Sequential(conv, norm, nn.ReLU())


class TwoReaders(nn.Module):
    """The norm is not all that reads the convolution's result."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.conv, self.norm, self.how = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), how

    def forward(self, x: torch.Tensor) -> object:
        y = self.conv(x)
        if self.how == "returned":
            return self.norm(y), y
        if self.how == "view returned":
            return self.norm(y), y.flatten(1)
        if self.how == "added":
            return self.norm(y) + y
        if self.how == "called twice":
            return self.norm(y).mean() + self.conv(x + 1).mean()
        return self.norm(y.relu())


class SharedConvolution(nn.Module):
    """One convolution before two norms: the bias is without effect in both."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.one, self.other = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(self.conv(x)) + self.other(self.conv(2 * x))


WITH = [
    (two(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), IMAGE),
    (two(nn.Conv2d(4, 8, 3, groups=4), nn.BatchNorm2d(8)), torch.randn(1, 4, 32, 32)),
    (two(nn.ConvTranspose2d(3, 8, 3), nn.BatchNorm2d(8)), IMAGE),
    (two(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False)), IMAGE),
    (two(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8)), IMAGE),
    (two(nn.Conv2d(3, 8, 3), nn.GroupNorm(8, 8)), IMAGE),
    (two(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8)), torch.randn(2, 3, 50)),
    (two(nn.Linear(16, 32), nn.BatchNorm1d(32)), torch.randn(4, 16)),
    (SharedConvolution(), IMAGE),
]
WITHOUT = [
    (two(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)), IMAGE),
    (two(nn.Linear(16, 32), nn.LayerNorm(32)), torch.randn(4, 16)),
    (two(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)), IMAGE),
    (nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3)), IMAGE),
    *((TwoReaders(how), IMAGE) for how in ("returned", "view returned", "added", "called twice", "activated")),
]


@pytest.mark.parametrize(("module", "sample"), WITH)
def test_a_bias_that_the_norm_takes_out_is_reported(module: nn.Module, sample: torch.Tensor) -> None:
    (finding,) = findings("bias-before-norm", module, sample)
    assert "bias=False" in finding.remedy
    assert finding.layer in dict(module.named_modules())


@pytest.mark.parametrize(("module", "sample"), WITHOUT)
def test_a_bias_that_has_an_effect_is_left_alone(module: nn.Module, sample: torch.Tensor) -> None:
    assert not findings("bias-before-norm", module, sample)


@settings(max_examples=15, deadline=None)
@given(
    channels=st.sampled_from([4, 8]),
    bias=st.booleans(),
    norm=st.sampled_from(["batch", "instance", "layer", "group", "none"]),
)
def test_bias_is_reported_exactly_where_removing_it_changes_nothing(channels: int, bias: bool, norm: str) -> None:
    """The definition: with the batch's statistics (or the mean of each channel), the output does not move."""
    norms = {
        "batch": nn.BatchNorm2d(channels, track_running_stats=False),
        "instance": nn.InstanceNorm2d(channels),
        "layer": nn.LayerNorm([channels, 30, 30]),
        "group": nn.GroupNorm(2, channels),
        "none": nn.Identity(),
    }
    module = nn.Sequential(nn.Conv2d(3, channels, 3, bias=bias), norms[norm])
    reported = findings("bias-before-norm", module, IMAGE)
    if not bias:
        assert not reported
        return
    with torch.no_grad():
        before = module(IMAGE)
        module[0].bias.zero_()
        same = torch.allclose(before, module(IMAGE), atol=1e-4)
    assert bool(reported) == same


def test_bias_before_norm_in_known_architectures() -> None:
    image = torch.randn(1, 3, 64, 64)
    features = torchvision.models.vgg11_bn().features  # the classifier's weights are all that the whole model moves
    assert layers(findings("bias-before-norm", features, image)) == 8
    assert not findings("bias-before-norm", torchvision.models.resnet18(), image)
    assert not findings("bias-before-norm", timm.create_model("vit_tiny_patch16_224", img_size=64), image)


@pytest.mark.parametrize(("module", "sample"), [case for i, case in enumerate(WITH) if i not in (3, 4, 5)])
def test_a_batch_norm_that_can_be_folded_is_reported(module: nn.Module, sample: torch.Tensor) -> None:
    assert layers(findings("conv-batchnorm-unfolded", module, sample)) == (2 if module is WITH[-1][0] else 1)


@pytest.mark.parametrize(
    ("module", "sample"), [WITH[3], WITH[4], *((TwoReaders(how), IMAGE) for how in ("returned", "added", "activated"))]
)
def test_a_batch_norm_that_cannot_be_folded_is_left_alone(module: nn.Module, sample: torch.Tensor) -> None:
    assert not findings("conv-batchnorm-unfolded", module, sample)


def test_the_advice_names_the_option_for_transposed_convolutions() -> None:
    plain, transposed = nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(3, 8, 3)
    norm = nn.BatchNorm2d(8)
    remedies = [
        findings("conv-batchnorm-unfolded", module, IMAGE)[0].remedy
        for module in (
            two(plain, norm),
            two(transposed, norm),
            nn.Sequential(two(transposed, norm), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)),
        )
    ]
    assert "transpose" not in remedies[0]
    assert remedies[1].endswith("for each, with transpose=True.")
    assert remedies[2].endswith("with transpose=True where the convolution is transposed.")


def test_folding_counts_like_the_technique() -> None:
    """Every norm that the rule names, the technique folds."""
    from togi.techniques import conformance
    from togi.techniques.rewrite.fold_batch_norm import FoldBatchNorm

    image = torch.randn(1, 3, 64, 64)
    for name in ("resnet18", "mobilenetv3_small_100"):
        module = timm.create_model(name).eval()
        folded = FoldBatchNorm().apply(conformance.candidate_of(module, [image]), {})
        (finding,) = findings("conv-batchnorm-unfolded", module, image)
        assert f"folded {finding.count} " in folded.notes[-1]


def test_nothing_to_fold_after_folding() -> None:
    module = torch.nn.utils.fusion.fuse_conv_bn_eval(nn.Conv2d(3, 8, 3).eval(), nn.BatchNorm2d(8).eval())
    assert not findings("conv-batchnorm-unfolded", nn.Sequential(module, nn.ReLU()), IMAGE)


class Convolutions(nn.Module):
    def __init__(self, norm: type[nn.Module], **options: object) -> None:
        super().__init__()
        parts = [(nn.Conv2d(8, 8, 3, padding=1), norm(8, **options), nn.ReLU()) for _ in range(3)]
        self.body = nn.Sequential(*(layer for part in parts for layer in part))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def test_norms_that_compute_statistics() -> None:
    sample = torch.randn(1, 8, 64, 64)
    rule = "norm-with-statistics-at-inference"
    assert layers(findings(rule, Convolutions(nn.InstanceNorm2d), sample)) == 3
    assert layers(findings(rule, Convolutions(nn.BatchNorm2d, track_running_stats=False), sample)) == 3
    assert not findings(rule, Convolutions(nn.BatchNorm2d), sample)
    assert not findings(rule, Convolutions(nn.BatchNorm2d), sample, train=True)


def test_norms_that_hardly_count_are_silent() -> None:
    module = timm.create_model("vit_tiny_patch16_224", img_size=64)
    assert not findings("norm-with-statistics-at-inference", module, torch.randn(1, 3, 64, 64))


class StandardisedConvolution(nn.Conv2d):
    """Weight standardisation as BiT has it: the same result in every pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = nn.functional.batch_norm(self.weight.view(1, self.out_channels, -1), None, None, training=True)
        return nn.functional.conv2d(x, weight.reshape_as(self.weight))


def test_weights_standardised_in_every_pass() -> None:
    module = nn.Sequential(StandardisedConvolution(64, 64, 3), nn.ReLU())
    (finding,) = findings("norm-with-statistics-at-inference", module, torch.randn(1, 64, 8, 8))
    assert "weight standardisation" in finding.message
    assert "once, before inference" in finding.remedy


def test_separable_convolutions_wait_for_memory_on_a_gpu_with_fast_matrix_units() -> None:
    module, image = timm.create_model("mobilenetv2_100"), torch.randn(1, 3, 224, 224)
    rule = "memory-bound-separable-convolution"
    (finding,) = findings(rule, module, image, device="H100", dtype="float16")
    assert "not measured" in finding.cost.text
    assert not finding.cost.measured
    assert not findings(rule, timm.create_model("resnet18"), image, device="H100", dtype="float16")


def test_separable_convolutions_pay_where_arithmetic_is_scarce() -> None:
    """A V100 in float32 has 17 FLOP for each byte; a dense 7x7 convolution needs 49 times the products."""
    body = nn.Sequential(nn.Conv2d(64, 64, 7, padding=3, groups=64), nn.Conv2d(64, 64, 1))
    sample = torch.randn(1, 64, 64, 64)
    assert not findings("memory-bound-separable-convolution", body, sample, device="V100", dtype="float32")
