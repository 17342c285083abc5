"""Notes on leaner optimizers name measured bytes, and only what torch offers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from togi.footprint.fit.training import optimizer_advice
from togi.footprint.fit.training.optimizer_advice import advise
from togi.footprint.step import Step, mean_of_outputs
from togi.measure.memory import torch_allocator_peak_bytes
from togi.subject.inputs import Inputs

MIB = 1 << 20


def _step(make: Any, module: nn.Module | None = None) -> Step:
    module = module or nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
    return Step(
        module=module,
        sample=Inputs((torch.randn(2, 512),)),
        train=True,
        loss=mean_of_outputs,
        optimizer=make(module.parameters()) if make else None,
    )


def _temporaries(optimizer: torch.optim.Optimizer) -> int:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()

    def again() -> None:
        optimizer.step()

    return torch_allocator_peak_bytes(again) or 0


@pytest.mark.parametrize("kind", [torch.optim.Adam, pytest.param(torch.optim.AdamW, marks=pytest.mark.thorough)])
def test_foreach_is_told_what_it_costs(kind: Any) -> None:
    step = _step(lambda parameters: kind(parameters, foreach=True))
    fused, adafactor = advise(step)
    saved = _temporaries(kind(step.module.parameters(), foreach=True)) - _temporaries(
        kind(step.module.parameters(), fused=True)
    )
    assert saved >= 4 * MIB  # of the size of all parameters
    assert f"{kind.__name__}(fused=True) instead of {kind.__name__}(foreach=True)" in fused
    (told,) = re.findall(r"by ([\d.]+) MiB", fused)
    assert float(told) == pytest.approx(saved / MIB, abs=0.01)
    assert "Another algorithm" in adafactor
    (keeps, instead) = re.findall(r"keeps ([\d.]+) \w+ of state instead of ([\d.]+) MiB", adafactor)[0]
    assert float(instead) == pytest.approx(2 * sum(p.nbytes for p in step.module.parameters()) / MIB, abs=0.01)
    assert float(keeps) > 0


def test_what_is_lean_already_is_left_alone() -> None:
    assert not any("fused" in note for note in advise(_step(lambda p: torch.optim.Adam(p, fused=True))))
    assert advise(_step(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False))) == ()
    assert advise(_step(None)) == ()
    assert advise(_step(lambda p: torch.optim.Adam(p, foreach=True), nn.Linear(512, 4))) == ()


def test_the_optimizer_and_its_parameters_stay_as_they_are() -> None:
    step = _step(lambda parameters: torch.optim.Adam(parameters, lr=0.5, foreach=True))
    weights = [p.clone() for p in step.module.parameters()]
    advise(step)
    assert step.optimizer is not None
    assert not step.optimizer.state
    assert all(p.grad is None for p in step.module.parameters())
    assert all(torch.equal(p, w) for p, w in zip(step.module.parameters(), weights, strict=True))


def test_groups_frozen_parameters_and_optimizers_without_these_ways() -> None:
    module = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 1024))
    module[0].requires_grad_(False)
    groups = [{"params": list(module[0].parameters())}, {"params": list(module[1].parameters()), "lr": 0.1}]
    step = _step(lambda _: torch.optim.Adam(groups, foreach=True), module)
    assert any("fused=True" in note for note in advise(step))

    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 1.0})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data -= parameter.grad

    assert advise(_step(Own)) == ()
    assert advise(_step(torch.optim.LBFGS)) == ()


def test_what_is_too_large_to_copy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_advice, "_COPIED_BYTES", 1000)
    (note,) = advise(_step(lambda parameters: torch.optim.Adam(parameters)))
    assert "not measured" in note
