"""mergeable-branches, channels-off-multiple, not-captured."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from tests.lint.rules.module_findings import findings, layers
from togi.subject.program import ProgramModule


class Branches(nn.Module):
    def __init__(self, stride: int = 1, *, leak: bool = False) -> None:
        super().__init__()
        self.large, self.small, self.leak = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1, stride=stride), leak
        self.stride = stride

    def forward(self, x: torch.Tensor) -> object:
        small = self.small(x)
        if self.stride > 1:
            small = nn.functional.interpolate(small, scale_factor=self.stride)
        y = self.large(x) + small
        return (y, small) if self.leak else y


SAMPLE = torch.randn(1, 8, 16, 16)


def test_branches_that_can_be_merged_are_counted() -> None:
    (finding,) = findings("mergeable-branches", Branches(), SAMPLE)
    assert finding.message.startswith("1 parallel branch in 1 sum ")


@pytest.mark.parametrize("module", [Branches(stride=2), Branches(leak=True), nn.Sequential(nn.Conv2d(8, 8, 1))])
def test_branches_that_cannot_be_merged_are_left_alone(module: nn.Module) -> None:
    assert not findings("mergeable-branches", module, SAMPLE)


def test_repvgg_names_its_blocks() -> None:
    (finding,) = findings("mergeable-branches", timm.create_model("repvgg_a0"), torch.randn(1, 3, 64, 64))
    assert finding.count == 22
    assert finding.evidence.startswith("stem, stages.0.0, stages.0.1 and 19 others")


def test_residual_connections_are_not_branches() -> None:
    assert not findings("mergeable-branches", timm.create_model("resnet18"), torch.randn(1, 3, 64, 64))


def body(width: int, **options: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(16, width, 3, **options), nn.ReLU(), nn.Conv2d(width, 16, 3))


def test_channels_off_the_multiple_and_what_padding_costs() -> None:
    (finding,) = findings("channels-off-multiple", body(60), torch.randn(1, 16, 32, 32))
    assert "60 (next: 64)" in finding.message
    assert "all can be padded exactly" in finding.evidence
    assert "padding adds 6.7 %" in finding.cost.text


@pytest.mark.parametrize("width", [64, 3, 5])
def test_channels_on_the_multiple_or_too_few(width: int) -> None:
    assert not findings("channels-off-multiple", body(width), torch.randn(1, 16, 32, 32))


def test_for_int8_channels_off_a_multiple_of_32_are_reported() -> None:
    sample = torch.randn(1, 16, 32, 32)
    assert "48 (next: 64)" in findings("channels-off-multiple", body(48), sample, dtype="int8")[0].message
    assert not findings("channels-off-multiple", body(48), sample)


def test_grouped_convolutions_are_left_alone() -> None:
    module = nn.Sequential(nn.Conv2d(60, 60, 3, groups=60), nn.Conv2d(60, 64, 1))
    assert not findings("channels-off-multiple", module, torch.randn(1, 60, 32, 32))


def test_a_vocabulary_off_the_multiple_is_reported_but_cannot_be_padded() -> None:
    module = nn.Sequential(nn.Embedding(5003, 64), nn.Linear(64, 5003))
    (finding,) = findings("channels-off-multiple", module, torch.zeros(1, 8, dtype=torch.long))
    assert "5003 (next: 5008)" in finding.message
    assert "none can be padded exactly" in finding.evidence
    assert "pad_channels" not in finding.remedy


def test_few_classes_are_too_small_to_matter() -> None:
    module = nn.Sequential(body(64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    assert layers(findings("channels-off-multiple", module, torch.randn(1, 16, 64, 64))) == 0


class Keeps(nn.Module):
    """Chooses rows by their values, which no graph of fixed sizes can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
        self.head = Chosen()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


@pytest.fixture
def however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a busy machine makes of a module's share of the time."""
    monkeypatch.setattr("togi.program.uses.LEAST_SHARE", 1e-3)


class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x[x[:, 0] > 0]
        if len(kept) > 1:
            x = kept
        return self.body(x)  # type: ignore[no-any-return]


@pytest.mark.usefixtures("however_long")
def test_what_cannot_be_captured_is_named_with_the_line_and_the_module_inside() -> None:
    reported = findings("not-captured", Keeps(), torch.randn(64, 64))
    assert [finding.layer for finding in reported] == ["", "head"]
    for finding in reported:
        assert "a branch or a size depends on the values of a tensor" in finding.message
        assert f"{Path(__file__).name}:" in finding.message
        assert "if len(kept) > 1:" in finding.message
    assert reported[1].evidence.startswith("Chosen: ")


@pytest.mark.usefixtures("however_long")
def test_of_a_program_only_the_modules_are_named() -> None:
    model = Keeps().eval()

    def call(x: torch.Tensor) -> list[float]:
        return model(x).sum(1).tolist()  # type: ignore[no-any-return]

    reported = findings("not-captured", ProgramModule(call), torch.randn(64, 64))
    assert [finding.layer for finding in reported] == ["model", "model.head"]


def test_what_is_captured_is_not_named() -> None:
    assert not findings("not-captured", Branches(), SAMPLE)
