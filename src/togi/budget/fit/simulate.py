"""The peak of a step under a plan, without running it: on fake tensors, which have sizes and no values.

The ledger books them as it books real ones. Where a model cannot run so (it decides by values), the step is run for
real under the same ledger, which takes as long as a step.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from togi.budget.fit.plan import Treatment
from togi.budget.fit.treated import treat, untreat
from togi.budget.ledger import Ledger
from togi.budget.step import Step


@dataclass
class Simulation:
    """A step that can be asked for its peak again and again."""

    step: Step
    mode: Any
    """The fake mode; None where the step is real."""
    note: str = ""

    def peak_bytes(self, treatments: Sequence[Treatment]) -> int:
        """Everything alive at the peak, what was there before the step included; raises what the step raises."""
        module, optimizer = self.step.module, self.step.optimizer
        parts = treat(module, treatments, keep_rng=self.mode is None)
        ledger = Ledger()
        ledger.enter([*module.parameters(), *module.buffers()], "parameter")
        ledger.enter([p.grad for p in module.parameters() if p.grad is not None], "gradient")
        ledger.enter(_tensors((self.step.sample.args, dict(self.step.sample.kwargs))), "input")
        if optimizer is not None:
            ledger.enter(_tensors(list(optimizer.state.values())), "optimizer")
        try:
            with torch.random.fork_rng(), ledger:
                self._run()
        finally:
            untreat(parts)
            module.zero_grad()
        return ledger.peak_bytes

    def _run(self) -> None:
        if self.mode is None:
            self.step.run()
            return
        with self.mode:
            self.step.run()


def simulate(step: Step) -> Simulation:
    """On fake tensors if the step runs on them, else on the real ones."""
    try:
        found = _fake(step)
        found.peak_bytes(())  # makes the optimizer's state, too
    except Exception as error:  # foreign code: a model may read values, or not be copied
        first = str(error).splitlines()[0] if str(error) else ""
        note = f"The step does not run on fake tensors ({type(error).__name__}: {first}); plans are tried on real ones."
        return Simulation(step, None, note)
    return found


def _fake(step: Step) -> Simulation:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    memo: dict[int, Any] = {}
    for tensor in [*step.module.parameters(), *step.module.buffers()]:
        memo[id(tensor)] = _fake_of(tensor, mode)
    module = copy.deepcopy(step.module, memo)
    optimizer = step.optimizer
    if optimizer is not None:
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        optimizer = type(optimizer)(parameters, **optimizer.defaults)
    sample = step.sample.map(mode.from_tensor)
    return Simulation(replace(step, module=module, sample=sample, optimizer=optimizer), mode)


def _fake_of(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    fake = mode.from_tensor(tensor.detach())
    return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake


def _tensors(values: Any) -> list[Tensor]:
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
