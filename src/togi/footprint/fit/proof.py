"""The planned step against the unmodified one, from equal beginnings.

A training step (``outcome_of``, ``compare``) is compared to the bit: loss, gradients, buffers, random state. So are the
outputs of an inference pass (``Outputs``). Where these differ (a matrix product of another size takes another kernel,
which sums in another order), their error against the module in float64 must be within a few times the unmodified
module's own, the unit by which togi judges everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from togi.decide.faithful import within
from togi.footprint.fit.result import Proof
from togi.footprint.step import Step
from togi.verify.compare import identical
from togi.verify.units import OwnError, seeded_outputs

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

    @cached_property
    def own_error(self) -> OwnError:
        return OwnError(self.step.module, self.step.sample, self.tensors, self.seed)

    @property
    def note(self) -> str:
        """Why there is no float64 to compare with."""
        return self.own_error.note

    def compare(self, tensors: Sequence[Tensor], structure: Any) -> Proof:
        """``exact``, or the largest error in units of the module's own."""
        alike = [(t.shape, t.dtype) for t in tensors] == [(t.shape, t.dtype) for t in self.tensors]
        if structure != self.structure or not alike:
            return Proof(exact=False, differences=("the result has another form",), units=float("inf"))
        different = [at for at, (a, b) in enumerate(zip(tensors, self.tensors, strict=True)) if not identical(a, b)]
        if not different:
            return Proof(exact=True, outputs=len(tensors))
        errors = {at: self.own_error.units(at, tensors[at]) for at in different}
        differences = tuple(f"output {at}: {units:.2g} times the module's own error" for at, units in errors.items())
        return Proof(exact=False, outputs=len(tensors), units=max(errors.values()), differences=differences[:_NAMED])


def faithful(proof: Proof) -> bool:
    """Equal to the bit, or within rounding by the limit that verification uses."""
    return proof.exact or within(proof.units)


def outputs_of(step: Step, seed: int) -> tuple[list[Tensor], Any]:
    """Tensors that one pass returns, and the structure around them."""
    return seeded_outputs(step.module, step.sample, seed)
