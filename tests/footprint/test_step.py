"""Account, prediction and plan take the optimizer that a subject brings, and its own loop body where it has one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.footprint.account.record import Category
from togi.footprint.account.watched import account_of
from togi.footprint.fit.training.fit import fit_training
from togi.footprint.prediction.cpu import predict_cpu
from togi.footprint.step import make_step
from togi.subject.inputs import Subject

WIDTH = 64
WEIGHT_BYTES, BIAS_BYTES = 4 * WIDTH * WIDTH, 4 * WIDTH


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU())]).train()


def square(module: nn.Module, sample: Tensor) -> Tensor:
    return module(sample).square().mean()


def momentum_of_weights(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """State for the weights alone: no name that togi knows makes such an optimizer."""
    weights = [p for p in parameters if p.dim() > 1]
    biases = [p for p in parameters if p.dim() == 1]
    return torch.optim.SGD([{"params": weights, "momentum": 0.9}, {"params": biases}], lr=1e-3)


def clipped(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = square(module, sample)
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def subject(**how: Any) -> Subject:
    return Subject(net(), torch.randn(32, WIDTH), optimizer=momentum_of_weights, **how)


@pytest.mark.parametrize("how", [{"step": square}, {"train_step": clipped}], ids=["loss", "own loop"])
def test_the_account_and_the_prediction_know_its_state(how: dict[str, Any]) -> None:
    account = account_of(make_step(subject(**how), train=True))
    assert account.by_category()[Category.OPTIMIZER] == 3 * WEIGHT_BYTES
    predicted = predict_cpu(make_step(subject(**how), train=True))
    assert predicted.by_category[Category.OPTIMIZER] == 3 * WEIGHT_BYTES
    assert predicted.peak_bytes == pytest.approx(account.peak_bytes, rel=0.01)


def test_a_name_takes_its_place() -> None:
    step = make_step(subject(step=square), train=True, optimizer="adam")
    assert isinstance(step.optimizer, torch.optim.Adam)
    account = account_of(step)
    assert account.by_category()[Category.OPTIMIZER] >= 2 * 3 * (WEIGHT_BYTES + BIAS_BYTES)
    assert isinstance(make_step(subject(step=square), train=True).optimizer, torch.optim.SGD)


def test_a_plan_is_proven_with_it() -> None:
    whole = fit_training(make_step(subject(step=square), train=True), 1 << 30)
    found = fit_training(make_step(subject(step=square), train=True), int(0.95 * whole.plain.peak_bytes))
    assert found.proof.exact, found.proof.differences
    assert found.static_bytes >= 3 * WEIGHT_BYTES * 3  # parameters, gradients, momenta
