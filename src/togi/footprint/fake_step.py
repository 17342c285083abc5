"""A step on fake tensors: shapes, dtypes and strides of the real one, and no values.

The fake tensors are on the CPU even where another device is predicted: fake CUDA tensors fail under autograd in a torch
that was built without CUDA, and can abort the process.

Source: torch.fx docs, "Fake tensor".
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from togi.footprint.step import Step, with_batch
from togi.subject.inputs import Inputs
from togi.torch_internals.fake import FakeTensorMode
from togi.torch_internals.modules import own_buffers, own_parameters


def fake_copy(step: Step) -> tuple[Step, FakeTensorMode]:
    """A copy of ``step`` on fake tensors, to be run under the mode returned; ``step`` stays as it is.

    It takes a fraction of a second and no memory. Optimizer state is there, as before any step but the first.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    shared = {id(tensor): tensor for tensor in (*step.module.parameters(), *step.module.buffers())}
    fake = fake_step(replace(step, module=copy.deepcopy(step.module, shared)), mode)
    if fake.optimizer is not None:
        with mode:
            fake.run()
    return fake, mode


def fake_step(step: Step, mode: FakeTensorMode, *, batch: int | None = None, foreach: bool | None = None) -> Step:
    """The step with every parameter, buffer and input of it replaced. Changes the module in place.

    Args:
        batch: rows of the inputs, as for ``make_step``; they are never made.
        foreach: whether the optimizer treats all parameters at once; None for its own choice, which is made by device.
    """
    fakes: dict[int, nn.Parameter] = {}
    for part in step.module.modules():
        for name, parameter in list(own_parameters(part).items()):
            if parameter is not None:
                own_parameters(part)[name] = fakes.setdefault(id(parameter), _fake_parameter(parameter, mode))
        for name, buffer in list(own_buffers(part).items()):
            if buffer is not None:
                own_buffers(part)[name] = mode.from_tensor(buffer)
    optimizer = step.optimizer
    if optimizer is not None:
        groups = [
            {**group, "params": [fakes[id(parameter)] for parameter in group["params"]], "foreach": foreach}
            for group in optimizer.param_groups
        ]
        make: Any = type(optimizer)
        optimizer = make(groups)
    sample = step.sample.map(mode.from_tensor)
    with mode:
        return replace(step, sample=sample if batch is None else _of_batch(sample, batch), optimizer=optimizer)


def _of_batch(sample: Inputs, batch: int) -> Inputs:
    """``with_batch`` without a list of as many tensors as rows; it also says whether there is a batch at all."""
    one = with_batch(sample, 1)
    return one.map(lambda tensor: tensor.new_empty((batch, *tensor.shape[1:])) if tensor.dim() else tensor)


def _fake_parameter(parameter: nn.Parameter, mode: FakeTensorMode) -> nn.Parameter:
    fake: Tensor = mode.from_tensor(parameter.detach())
    return nn.Parameter(fake, requires_grad=parameter.requires_grad)
