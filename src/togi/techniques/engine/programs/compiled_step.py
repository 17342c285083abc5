"""A training step of which ``torch.compile`` compiles forward and loss, the module alone, or the blocks that repeat;
and how much of what such code computes is kept for its backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from togi.core.errors import Refused
from togi.subject.architecture import repeated_parts
from togi.subject.inputs import Inputs
from togi.subject.training import TrainingStep
from togi.techniques.base import Options
from togi.torch_internals.compiler import keeping_activations
from togi.torch_internals.modules import (
    compile_calls,
    compiled_original,
    forget_compiled_call,
    runs_compiled,
    surround_compiled_calls,
)
from togi.torch_internals.script import holds_torchscript


def compiled_step(step: TrainingStep, options: Options) -> TrainingStep:
    """Raises Refused for what is compiled already, for TorchScript, for a loss that is inside of a loop body, and where
    blocks are asked for and none repeat."""
    if runs_compiled(step.module):
        raise Refused("the module runs compiled already: hand over the one that was compiled")
    if holds_torchscript(step.module):
        raise Refused("it is TorchScript, which torch.compile does not take: train the module that it was made of")
    of_inductor: dict[str, Any] = {"fallback_random": True} if options.get("eager_random") else {}
    if options.get("of") == "blocks":
        return _with_compiled_blocks(step, of_inductor)
    if options.get("of") == "module":
        compile_calls(step.module, options=of_inductor)
        return step.changed(lambda: forget_compiled_call(step.module))
    if step.train_step is not None:
        raise Refused("the loss is inside of the user's loop body: the module alone can be compiled")
    return step.changed(lambda: None, loss=torch.compile(step.loss, options=of_inductor), loss_is_compiled=True)


def _with_compiled_blocks(step: TrainingStep, of_inductor: dict[str, Any]) -> TrainingStep:
    kinds = repeated_parts(step.module)
    if not kinds:
        raise Refused("no block of the module is there three times and more: compile all of it")
    if any(map(runs_compiled, step.module.modules())):
        raise Refused("parts of the module run compiled already: hand over what was compiled")
    for first, *others in kinds:
        compile_calls(first, options=of_inductor, alike=others)
    blocks: list[nn.Module] = [block for blocks in kinds for block in blocks]

    def undo() -> None:
        for block in blocks:
            forget_compiled_call(block)

    return step.changed(undo)


def is_compiled(step: TrainingStep) -> bool:
    """Its loss runs compiled, or its module or a part of that does."""
    return step.loss_is_compiled or any(map(runs_compiled, step.module.modules()))


def partitioned_step(step: TrainingStep, keep: float) -> TrainingStep:
    """The compiled step, of whose activations the partitioner keeps about this share for the backward pass.

    Raises Refused where calls of what runs compiled look like others.
    """
    if any(compiled_original(part) is not None for part in step.module.modules()):
        raise Refused("a module is what torch.compile returned: hand over the one that was compiled")
    undo = surround_compiled_calls(step.module, lambda: keeping_activations(keep))
    if not step.loss_is_compiled:
        return step.changed(undo)
    compiled = step.loss

    def loss(module: nn.Module, sample: Inputs) -> Tensor:
        with keeping_activations(keep):
            return compiled(module, sample)

    return step.changed(undo, loss=loss)
