"""A step on fake tensors, which have sizes and no values: it takes a fraction of a second and no memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from togi.footprint.step import Step


@contextmanager
def on_fake_tensors(step: Step) -> Iterator[Step]:
    """A copy of ``step`` whose parameters, buffers, inputs and optimizer state are fake; to be run inside."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    memo: dict[int, Any] = {}
    for tensor in [*step.module.parameters(), *step.module.buffers()]:
        memo[id(tensor)] = _fake_of(tensor, mode)
    module = copy.deepcopy(step.module, memo)
    optimizer = step.optimizer
    if optimizer is not None:
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        optimizer = type(optimizer)(parameters, **optimizer.defaults)
    with mode:
        fake = replace(step, module=module, sample=step.sample.map(mode.from_tensor), optimizer=optimizer)
        if optimizer is not None:
            fake.run()  # makes its state, which is there before a step
        yield fake


def _fake_of(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    fake = mode.from_tensor(tensor.detach())
    return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
