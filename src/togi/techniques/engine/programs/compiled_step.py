"""A training step whose forward pass and loss, or whose module alone, ``torch.compile`` compiles."""

from __future__ import annotations

from typing import Any

import torch

from togi.core.errors import Refused
from togi.subject.training import TrainingStep
from togi.techniques.base import Options
from togi.torch_internals.modules import compile_calls, forget_compiled_call, runs_compiled
from togi.torch_internals.script import holds_torchscript


def compiled_step(step: TrainingStep, options: Options) -> TrainingStep:
    """Raises Refused for what is compiled already, for TorchScript, and for a loss that is inside of a loop body."""
    if runs_compiled(step.module):
        raise Refused("the module runs compiled already: hand over the one that was compiled")
    if holds_torchscript(step.module):
        raise Refused("it is TorchScript, which torch.compile does not take: train the module that it was made of")
    of_inductor: dict[str, Any] = {"fallback_random": True} if options.get("eager_random") else {}
    if options.get("of") == "module":
        compile_calls(step.module, options=of_inductor)
        return step.changed(lambda: forget_compiled_call(step.module))
    if step.train_step is not None:
        raise Refused("the loss is inside of the user's loop body: the module alone can be compiled")
    return step.changed(lambda: None, loss=torch.compile(step.loss, options=of_inductor))
