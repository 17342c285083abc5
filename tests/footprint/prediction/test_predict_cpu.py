"""Predicted against what the CPU allocator really did."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.footprint.small_models import Attention, Convolutions, Recurrent
from togi.core.errors import SubjectError
from togi.footprint.account.watched import account_of
from togi.footprint.prediction.cpu import predict_cpu
from togi.footprint.step import make_step
from togi.subject.inputs import Subject


class Tied(nn.Module):
    """One weight under two names, a frozen one, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.frozen = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.ones(64))

    def forward(self, given: Tensor) -> Tensor:
        return self.frozen(self.second(self.first(given).tanh())) * self.scale


class DependsOnValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, given: Tensor) -> Tensor:
        return self.linear(given[given > 0].reshape(-1, 1).expand(-1, 4))


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "convolutions": lambda: (Convolutions(), torch.randn(4, 3, 32, 32)),
    "attention": lambda: (Attention(), torch.randn(16, 96, 32)),
    "tied": lambda: (Tied(), torch.randn(128, 64)),
    "recurrent": lambda: (Recurrent(), torch.randn(4, 20, 16)),
}


RUNS = ((False, "none"), (True, "momentum"), (True, "adamw"))
SOON = {("convolutions", "adamw"), ("attention", "momentum"), ("tied", "adamw"), ("recurrent", "none")}
"""Every model, and every kind of run; the others are thorough."""


@pytest.mark.parametrize(
    ("name", "train", "optimizer"),
    [
        pytest.param(name, *run, marks=() if (name, run[1]) in SOON else pytest.mark.thorough)
        for name in MODELS
        for run in RUNS
    ],
)
def test_the_prediction_is_within_one_percent(name: str, train: bool, optimizer: str) -> None:
    subject = Subject(*MODELS[name]())
    found = predict_cpu(make_step(subject, train=train, optimizer=optimizer))
    truth = account_of(make_step(subject, train=train, optimizer=optimizer))
    assert found.baseline_bytes == truth.baseline_bytes
    assert found.peak_bytes == pytest.approx(truth.peak_bytes, rel=0.01)
    assert sum(found.by_category.values()) == found.peak_bytes
    assert min(found.by_category.values()) > 0
    assert found.low_bytes <= found.peak_bytes <= found.high_bytes


def test_a_run_that_depends_on_values_is_refused() -> None:
    with pytest.raises(SubjectError, match="depends on values"):
        predict_cpu(make_step(Subject(DependsOnValues(), torch.randn(8)), train=False))


def test_a_module_that_does_nothing_is_refused() -> None:
    with pytest.raises(SubjectError, match="no operation of torch"):
        predict_cpu(make_step(Subject(nn.Identity(), torch.randn(8)), train=False))


def test_the_moment_is_the_operation_of_the_peak() -> None:
    found = predict_cpu(make_step(Subject(nn.Linear(8, 512), torch.randn(16, 8)), train=False))
    assert found.peak.op == "aten.addmm.default"


def test_the_users_module_keeps_its_values() -> None:
    module = nn.Linear(4, 4)
    before = module.weight.detach().clone()
    predict_cpu(make_step(Subject(module, torch.randn(2, 4)), train=True, optimizer="adam"))
    assert type(module.weight.data) is Tensor
    assert torch.equal(module.weight, before)
    assert module.weight.grad is None


def test_a_batch_that_does_not_fit_this_machine() -> None:
    subject = Subject(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 8)), torch.randn(2, 1024))
    found = predict_cpu(make_step(subject, train=True), batch=1 << 24)
    assert found.peak_bytes > 400 << 30


class Computing(nn.Module):
    """One function of what a layer returns."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(64, 256), function

    def forward(self, given: Tensor) -> Tensor:
        return self.function(self.layer(given))


CONVERTING: dict[str, Callable[[Tensor], Tensor]] = {
    "complex": lambda x: torch.fft.rfft(x).abs(),
    "two dtypes": lambda x: x + x.bfloat16(),
    "integers": lambda x: x.long() / 3,
    "comparison": lambda x: x > x.double(),
}


@pytest.mark.parametrize("name", CONVERTING)
def test_kernels_that_convert_their_operands_are_asked(name: str) -> None:
    subject = Subject(Computing(CONVERTING[name]), torch.randn(512, 64))
    truth = account_of(make_step(subject, train=False))
    assert predict_cpu(make_step(subject, train=False)).peak_bytes == pytest.approx(truth.peak_bytes, rel=1e-3)


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 10.0])
def test_a_workspace_that_values_decide_is_a_range_with_a_note(scale: float) -> None:
    subject = Subject(Computing(lambda x: torch.matrix_exp(x[:256] * scale)), torch.randn(256, 64))
    truth = account_of(make_step(subject, train=False))
    found = predict_cpu(make_step(subject, train=False))
    assert found.low_bytes < found.high_bytes
    assert found.low_bytes * 0.999 <= truth.peak_bytes <= found.high_bytes * 1.001
    assert any("depends on the values" in note and "matrix_exp" in note for note in found.notes)
