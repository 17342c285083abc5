"""training-mode, active-dropout, float64-parameters, duplicate-parameters."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.lint.rules.module_findings import findings, layers
from togi.lint.calls import ModuleRequest
from togi.lint.module.check import check_module
from togi.subject.inputs import Subject

SAMPLE = torch.randn(2, 256)


def network(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(256, 256), *more)


def test_training_mode_is_reported_with_the_layers_that_change() -> None:
    (finding,) = findings("training-mode", network(nn.BatchNorm1d(256), nn.Dropout()), SAMPLE, train=True)
    assert finding.layer == ""
    assert "BatchNorm1d x 1, Dropout x 1" in finding.evidence


@pytest.mark.parametrize("train", [False, True])
def test_training_mode_in_which_no_layer_changes_is_left_alone(train: bool) -> None:
    assert not findings("training-mode", network(nn.ReLU()), SAMPLE, train=train)


def test_a_norm_left_in_training_mode() -> None:
    module = network(nn.BatchNorm1d(256)).eval()
    module[1].train()
    (finding,) = findings("training-mode", module, SAMPLE, train=None)
    assert finding.layer == "1"


def test_a_subject_with_a_training_step_is_meant_to_train() -> None:
    module = network(nn.BatchNorm1d(256), nn.Dropout()).train()
    subject = Subject(module, SAMPLE, step=lambda module, sample: module(sample).sum())
    assert not check_module(subject, ModuleRequest(device="A100", rules=("training-mode",))).findings


def test_frozen_norms_in_a_module_in_eval_mode_are_fine() -> None:
    assert not findings("training-mode", network(nn.BatchNorm1d(256), nn.Dropout()), SAMPLE)


class Functional(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        options = {"training": self.training} if self.options.get("training") == "self" else self.options
        return F.dropout(x, **options)  # type: ignore[arg-type]


class Attention(nn.Module):
    def __init__(self, dropout_p: float) -> None:
        super().__init__()
        self.dropout_p = dropout_p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = x.view(1, 2, 4, -1)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=self.dropout_p)


@pytest.mark.parametrize("module", [Functional(), Functional(p=0.2), Functional(training=True), Attention(0.1)])
def test_dropout_that_is_on_in_eval_mode_is_reported(module: nn.Module) -> None:
    (finding,) = findings("active-dropout", module, SAMPLE)
    assert finding.place is not None
    assert finding.place.path.endswith("test_module_modes_and_parameters.py")
    assert "dropout" in finding.message or "dropout_p" in finding.remedy


@pytest.mark.parametrize(
    "module",
    [Functional(p=0.0), Functional(training=False), Functional(training="self"), Attention(0.0), nn.Dropout(0.5)],
)
def test_dropout_that_is_off_is_left_alone(module: nn.Module) -> None:
    assert not findings("active-dropout", module, SAMPLE)


def test_a_dropout_layer_left_on() -> None:
    module = network(nn.Dropout(0.1), nn.Dropout(0.0)).eval()
    module[1].train()
    module[2].train()
    assert layers(findings("active-dropout", module, SAMPLE, train=None)) == 1
    assert not findings("active-dropout", network(nn.Dropout()), SAMPLE, train=True), "training-mode says it"


def test_float64_parameters_are_counted() -> None:
    assert layers(findings("float64-parameters", network().double(), SAMPLE.double())) == 2
    assert not findings("float64-parameters", network(), SAMPLE)


class SmallConstant(nn.Module):
    def __init__(self, *, spreads: bool) -> None:
        super().__init__()
        self.spreads = spreads
        self.register_buffer("scale", torch.ones(256, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale if self.spreads else x * 2


def test_a_small_float64_buffer_counts_where_it_spreads() -> None:
    assert findings("float64-parameters", SmallConstant(spreads=True), SAMPLE)
    assert not findings("float64-parameters", SmallConstant(spreads=False), SAMPLE)


def test_equal_bytes_that_are_not_shared() -> None:
    module = network(nn.Linear(256, 256))
    module[1].load_state_dict(module[0].state_dict())
    (finding,) = findings("duplicate-parameters", module, SAMPLE)
    assert finding.cost.bytes == 256 * 256 * 4 + 256 * 4
    assert "0.weight and 1.weight are equal" in finding.evidence


def test_shared_parameters_are_no_duplicates() -> None:
    module = network(nn.Linear(256, 256))
    module[1].weight = module[0].weight
    assert not findings("duplicate-parameters", module, SAMPLE)


def test_parameters_that_share_memory_as_views_are_no_duplicates() -> None:
    module = network(nn.Linear(256, 256))
    module[1].weight = nn.Parameter(module[0].weight.data)
    assert not findings("duplicate-parameters", module, SAMPLE)


def test_fresh_constants_and_nearly_equal_weights_are_no_duplicates() -> None:
    module = network(nn.Linear(256, 256))
    module[1].load_state_dict(module[0].state_dict())
    with torch.no_grad():
        module[1].weight[255, 255] += 1.0
        module[1].bias += 1.0
    assert not findings("duplicate-parameters", module, SAMPLE)
    norms = nn.Sequential(nn.Linear(256, 20_000), nn.LayerNorm(20_000), nn.LayerNorm(20_000))
    assert not findings("duplicate-parameters", norms, SAMPLE)


def test_nan_is_not_equal_to_itself() -> None:
    module = network(nn.Linear(256, 256))
    with torch.no_grad():
        for part in module:
            part.weight.fill_(float("nan"))
    assert not findings("duplicate-parameters", module, SAMPLE)


def test_deep_copied_layers_get_a_remedy_of_their_own() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 512, batch_first=True)
    (finding,) = findings("duplicate-parameters", nn.TransformerEncoder(layer, 3), torch.randn(1, 5, 64))
    assert "initialisation of its own" in finding.remedy
