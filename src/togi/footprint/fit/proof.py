"""The planned step against the unmodified one, from equal beginnings.

A training step (``outcome_of``, ``compare``) is compared to the bit: loss, gradients, buffers, random state. So are the
outputs of an inference pass (``Outputs``). Where these differ (a matrix product of another size takes another kernel,
which sums in another order), their error against the module in float64 must be within a few times the unmodified
module's own, the unit by which togi judges everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from togi.core.quantities import first_line
from togi.decide.faithful import within
from togi.footprint.fit.result import Proof
from togi.footprint.step import Step
from togi.torch_internals.pytree import tree_flatten
from togi.verify.compare import identical, plain
from togi.verify.float64 import float64_arithmetic, nudged, nudged_inputs, wide, widened, widened_inputs
from togi.verify.units import FEW, error_in_units

_NUDGES = 8
_NAMED = 10
"""Differences that a proof lists."""


@dataclass(frozen=True)
class Outcome:
    """What a forward and a backward pass left behind."""

    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]
    random_state: Tensor


def outcome_of(step: Step) -> Outcome:
    """Of one run: forward, backward, and the optimizer where there is one."""
    loss = step.loss(step.module, step.sample)
    loss.backward()  # type: ignore[no-untyped-call]
    outcome = Outcome(
        loss=loss.detach().clone(),
        gradients={name: p.grad for name, p in step.module.named_parameters() if p.grad is not None},
        buffers={name: buffer.clone() for name, buffer in step.module.named_buffers()},
        random_state=torch.get_rng_state(),
    )
    if step.optimizer is not None:
        step.optimizer.step()
    return outcome


def compare(reference: Outcome, other: Outcome) -> Proof:
    """To the bit. Missing gradients count as different."""
    found: list[str] = []
    worst = 0.0
    if not _same_bits(reference.loss, other.loss):
        found.append(f"loss: {reference.loss.item()!r} became {other.loss.item()!r}")
    for name in sorted(reference.gradients.keys() | other.gradients.keys()):
        before, after = reference.gradients.get(name), other.gradients.get(name)
        if before is None or after is None:
            found.append(f"gradient of {name}: {'appeared' if before is None else 'is gone'}")
            worst = float("inf")
        elif not _same_bits(before, after):
            relative = _relative(before, after)
            worst = max(worst, relative)
            found.append(f"gradient of {name}: relative difference {relative:.1e}")
    for name, buffer in reference.buffers.items():
        if name not in other.buffers or not _same_bits(buffer, other.buffers[name]):
            found.append(f"buffer {name} differs afterwards")
    if not torch.equal(reference.random_state, other.random_state):
        found.append("the random state afterwards differs")
    return Proof(
        exact=not found, gradients=len(reference.gradients), differences=tuple(found[:_NAMED]), worst_relative=worst
    )


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """NaN equals the same NaN, and 0.0 does not equal -0.0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    return dense.contiguous().reshape(-1).view(torch.uint8)


def _relative(before: Tensor, after: Tensor) -> float:
    """NaN-safe: a difference that is no number is infinite."""
    scale = before.double().square().mean().sqrt()
    found = ((after.double() - before.double()).abs().max() / scale).item()
    return found if found == found else float("inf")


@dataclass
class Outputs:
    """What the unmodified module returns, and, once it is asked for, how exactly."""

    step: Step
    tensors: list[Tensor]
    structure: Any
    """What else is returned."""
    seed: int
    note: str = ""
    """Why there is no float64 to compare with."""
    _truth: list[Tensor] | None = None
    _nudges: list[list[Tensor]] = field(default_factory=list)

    def compare(self, tensors: Sequence[Tensor], structure: Any) -> Proof:
        """``exact``, or the largest error in units of the module's own."""
        alike = [(t.shape, t.dtype) for t in tensors] == [(t.shape, t.dtype) for t in self.tensors]
        if structure != self.structure or not alike:
            return Proof(exact=False, differences=("the result has another form",), units=float("inf"))
        different = [at for at, (a, b) in enumerate(zip(tensors, self.tensors, strict=True)) if not identical(a, b)]
        if not different:
            return Proof(exact=True, outputs=len(tensors))
        self._make_truth()
        errors = {at: self._units(at, tensors[at]) for at in different}
        differences = tuple(f"output {at}: {units:.2g} times the module's own error" for at, units in errors.items())
        return Proof(exact=False, outputs=len(tensors), units=max(errors.values()), differences=differences[:_NAMED])

    def _units(self, at: int, found: Tensor) -> float:
        assert self._truth is not None
        nudges = [nudge[at] for nudge in self._nudges]
        return error_in_units(found, self._truth[at], self.tensors[at], nudges)

    def _make_truth(self) -> None:
        if self._truth is not None:
            return
        module, sample = self.step.module, self.step.sample
        try:
            with torch.no_grad(), float64_arithmetic(), torch.random.fork_rng():
                torch.manual_seed(self.seed)
                wider = widened(module, str(self.tensors[0].device))
                given = widened_inputs(sample, str(self.tensors[0].device))
                truth = split_output(wider(*given.args, **given.kwargs))[0]
            if [t.shape for t in truth] != [t.shape for t in self.tensors]:
                raise ValueError("its outputs have other shapes in float64")
        except Exception as error:  # foreign code: a forward may insist on its own dtype
            self.note = f"It does not run in float64 ({first_line(error)}): outputs are compared with its own, nudged."
            truth = [wide(plain(t)) for t in self.tensors]
        self._truth = truth
        if self.note or any(t.numel() < FEW for t in self.tensors):
            self._nudges = [found for k in range(_NUDGES) if (found := self._nudged(k))]

    def _nudged(self, number: int) -> list[Tensor]:
        """Outputs with weights and inputs moved by a rounding: what any order of evaluation may give."""
        try:
            module = nudged(self.step.module, self.seed + number)
            given = nudged_inputs(self.step.sample, self.seed + number)
            with torch.no_grad(), torch.random.fork_rng():
                torch.manual_seed(self.seed)
                found = split_output(module(*given.args, **given.kwargs))[0]
        except Exception as error:  # foreign code: a module may insist on exact values
            self.note = self.note or f"The module's own error could not be sampled ({first_line(error)})."
            return []
        return found if [t.shape for t in found] == [t.shape for t in self.tensors] else []


def faithful(proof: Proof) -> bool:
    """Equal to the bit, or within rounding by the limit that verification uses."""
    return proof.exact or within(proof.units)


def outputs_of(step: Step, seed: int) -> tuple[list[Tensor], Any]:
    """Tensors that one pass returns, and the structure around them."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        return split_output(step.module(*step.sample.args, **step.sample.kwargs))


def split_output(output: Any) -> tuple[list[Tensor], Any]:
    """Tensors, and what else there is as text, in which objects count by their class."""
    leaves, form = tree_flatten(output)
    others = [repr(leaf) if isinstance(leaf, bool | int | float | str | None) else type(leaf) for leaf in leaves]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)], (str(form), str(others))
