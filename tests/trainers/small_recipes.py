"""Records of training steps that nobody searched for: what is tested is the trainer that runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import togi
from togi.footprint.fit.plan import Plan
from togi.machine.describe import machine
from togi.subject.inputs import Subject
from togi.subject.training import TrainingStep
from togi.techniques import recipe
from togi.worker.training_survey import survey_step


class Wraps(torch.optim.Optimizer):
    """As accelerate's AcceleratedOptimizer: an optimizer by class, with the state of another, and without hooks."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state)  # type: ignore[assignment]
    param_groups = property(lambda self: self.optimizer.param_groups)  # type: ignore[assignment]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)


def recorded(
    module: nn.Module, batch: Any, optimizer: Callable[..., Any], *, plan: Plan | None = None, **how: Any
) -> togi.TrainingRecipe:
    """Of a step of a copy of the module. ``how``: its ``step`` or ``train_step``, and choices of techniques."""
    given = {name: how.pop(name) for name in ("step", "train_step") if name in how}
    step = TrainingStep.of(Subject(module, [batch], optimizer=optimizer, **given))
    facts = survey_step(step, seed=0, machine=machine("cpu")).facts
    return togi.TrainingRecipe.of(recipe(**how, plain_step={}), step, facts).model_copy(update={"plan": plan})
