"""``togi memory --train`` and ``togi fit`` take the optimizer and the loop body that a subject brings."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import togi
from togi.cli.app import run
from togi.core.errors import FitError

WIDTH = 64
STATE_BYTES = 3 * 4 * WIDTH * WIDTH


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU())]).train()


def square(module: nn.Module, sample: Tensor) -> Tensor:
    return module(sample).square().mean()


def momentum_of_weights(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
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


def with_optimizer() -> togi.Subject:
    return togi.Subject(net(), torch.randn(32, WIDTH), step=square, optimizer=momentum_of_weights)


def with_loop() -> togi.Subject:
    return togi.Subject(net(), torch.randn(32, WIDTH), train_step=clipped, optimizer=momentum_of_weights)


def with_an_instance() -> togi.Subject:
    optimizer: Any = torch.optim.SGD(net().parameters(), lr=0.1)
    return togi.Subject(net(), torch.randn(32, WIDTH), step=square, optimizer=optimizer)


def state_bytes(capsys: pytest.CaptureFixture[str]) -> int:
    holdings = json.loads(capsys.readouterr().out)["holdings"]
    return sum(holding["bytes"] for holding in holdings if holding["category"] == "optimizer state")


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("subject", ["with_optimizer", "with_loop"])
def test_memory_accounts_for_the_subjects_own_step(subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", f"{__file__}:{subject}", "--train", "--json"]) == 0
    assert state_bytes(capsys) == STATE_BYTES
    assert run(["memory", f"{__file__}:{subject}", "--train", "--optimizer", "sgd", "--json"]) == 0
    assert state_bytes(capsys) == 0


@pytest.mark.usefixtures("in_this_process")
def test_fit_plans_with_the_subjects_own_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fit", f"{__file__}:with_optimizer", "--memory", "1GiB", "--time-limit", "4s", "--json"]
    assert run(command) == 0
    own = json.loads(capsys.readouterr().out)
    assert own["proof"]["exact"]
    assert run([*command, "--optimizer", "sgd"]) == 0
    assert own["static_bytes"] - json.loads(capsys.readouterr().out)["static_bytes"] == STATE_BYTES


@pytest.mark.usefixtures("in_this_process")
def test_fit_takes_a_function_that_makes_the_optimizer() -> None:
    given: dict[str, Any] = {"memory": "1GiB", "step": square, "time_limit_s": 4}
    found = togi.fit(net(), torch.randn(32, WIDTH), optimizer=momentum_of_weights, **given)
    assert found.fits
    without = togi.fit(net(), torch.randn(32, WIDTH), **given)
    assert found.static_bytes - without.static_bytes == STATE_BYTES


@pytest.mark.usefixtures("in_this_process")
def test_what_cannot_be_used_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FitError, match="Give togi fit a subject with step="):
        togi.fit(with_loop(), memory="1GiB")
    assert run(["memory", f"{__file__}:with_an_instance", "--train"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "optimizer is a SGD, and togi trains copies of the module" in said
