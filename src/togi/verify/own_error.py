"""A module's own error on one sample: the measure of what runs next to it in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.quantities import first_line
from togi.subject.behaviour import cuda_devices
from togi.subject.inputs import Inputs
from togi.subject.plain_tensors import plain
from togi.torch_internals.float32 import ieee_float32
from togi.torch_internals.tensors import tree_flatten
from togi.verify.float64 import float64_arithmetic, nudged, nudged_inputs, wide, widened, widened_inputs
from togi.verify.reference import branched
from togi.verify.units import FEW, NUDGES_FEW, error_in_units


class OwnError:
    """A module's own error on one sample, and how far other outputs for that sample are off, in units of it.

    For what runs next to the module in one process (a plan, a technique tried alone). Trials are verified by
    ``verdict``, on many inputs and for more than numbers. The truth, in float64, is made when it is first asked for;
    where there is none, the outputs themselves serve, with nudged runs next to them.
    """

    def __init__(self, module: nn.Module, sample: Inputs, outputs: Sequence[Tensor], seed: int) -> None:
        """``outputs``: what ``seeded_outputs(module, sample, seed)`` returned, on any device."""
        self._module, self._sample, self._outputs, self._seed = module, sample, outputs, seed
        self.note = ""
        """Why there is no float64 to compare with."""
        self._truth: list[Tensor] | None = None
        self._nudges: list[list[Tensor]] = []

    def units(self, at: int, found: Tensor) -> float:
        """Measure how far ``found``, another output ``at`` (of the same shape), is from the truth."""
        if self._truth is None:
            self._truth = self._make_truth()
        return error_in_units(found, self._truth[at], self._outputs[at], [nudge[at] for nudge in self._nudges])

    def _make_truth(self) -> list[Tensor]:
        device = str(self._outputs[0].device)
        try:
            with float64_arithmetic():
                module, sample = widened(self._module, device), widened_inputs(self._sample, device)
                truth, _ = seeded_outputs(module, sample, self._seed)
            if [t.shape for t in truth] != [t.shape for t in self._outputs]:
                raise ValueError("its outputs have other shapes in float64")
            moved = filter(None, (self._nudged(number) for number in range(NUDGES_FEW)))
            if branched(range(len(truth)), [plain(t) for t in self._outputs], truth, moved):
                raise ValueError("in float64 it computes something else")
        except Exception as error:  # foreign code: a forward may insist on its own dtype
            self.note = f"Float64 cannot measure it ({first_line(error)}): outputs are compared with its own, nudged."
            truth = [wide(plain(t)) for t in self._outputs]
        if self.note or any(t.numel() < FEW for t in self._outputs):
            self._nudges = [found for number in range(NUDGES_FEW) if (found := self._nudged(number))]
        return truth

    def _nudged(self, number: int) -> list[Tensor]:
        """Outputs with weights and inputs moved by a rounding: what any order of evaluation may give."""
        try:
            module, sample = nudged(self._module, self._seed + number), nudged_inputs(self._sample, self._seed + number)
            outputs, _ = seeded_outputs(module, sample, self._seed)
        except Exception as error:  # foreign code: a module may insist on exact values
            self.note = self.note or f"The module's own error could not be sampled ({first_line(error)})."
            return []
        return outputs if [t.shape for t in outputs] == [t.shape for t in self._outputs] else []


def seeded_outputs(module: nn.Module, sample: Inputs, seed: int) -> tuple[list[Tensor], Any]:
    """Tensors that one pass without autograd returns, and the structure around them (comparable with ``==``). Float32
    is multiplied in IEEE float32: what is compared is the arithmetic, not TensorFloat-32's rounding."""
    with torch.no_grad(), ieee_float32(), torch.random.fork_rng(cuda_devices()):
        torch.manual_seed(seed)
        return outputs_in(module(*sample.args, **sample.kwargs))


def outputs_in(output: Any) -> tuple[list[Tensor], Any]:
    """Tensors, and what else there is as text, in which objects count by their class."""
    leaves, form = tree_flatten(output)
    forms = [repr(leaf) if isinstance(leaf, bool | int | float | str | None) else type(leaf) for leaf in leaves]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)], (str(form), str(forms))
