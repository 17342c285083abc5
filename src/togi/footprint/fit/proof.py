"""The planned step against the unmodified one, from equal beginnings.

A training step (``outcome_of``, ``compare``) is compared to the bit: loss, gradients, buffers, random state. Where the
unmodified step itself does not repeat to the bit (on a GPU, sums of atomic additions), the planned one may differ from
it by no more than it differs from itself, times a small number. The outputs of an inference pass (``Outputs``) are
compared to the bit too. Where these differ (a matrix product of another size takes another kernel, which sums in
another order), their error against the module in float64 must be within a few times the unmodified module's own, the
unit by which togi judges everything else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from togi.decide.faithful import within
from togi.footprint.fit.measure import random_state
from togi.footprint.fit.result import StepProof
from togi.footprint.step import Step
from togi.subject.behaviour import same
from togi.torch_internals.modes import without_modes
from togi.verify.compare import identical
from togi.verify.own_error import OwnError, seeded_outputs
from togi.verify.repeatability import apart, noise_limit

_NAMED = 10
"""Differences that a proof lists."""


@dataclass(frozen=True)
class PassOutcome:
    """All that a forward and a backward pass left behind."""

    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]
    random_state: Tensor
    moved: dict[str, Tensor] = field(default_factory=dict)
    """Parameters that the forward pass writes into, as a target encoder's."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All by the names that differences carry."""
        kinds = {"gradient of": self.gradients, "buffer": self.buffers, "parameter": self.moved}
        named = {f"{kind} {name}": tensor for kind, tensors in kinds.items() for name, tensor in tensors.items()}
        return {"loss": self.loss, **named}


class TrainingRun:
    """One run of a step: forward, backward, and the optimizer where there is one. Called once.

    What the comparison needs is taken when ``outcome`` is asked for. The call itself makes and keeps no tensor that
    ``Step.run`` does not, so a peak that is measured round it is the step's own.
    """

    def __init__(self, step: Step, moved: Collection[str] = ()) -> None:
        """``moved``: names of parameters that the forward pass writes into; they are compared too."""
        self._step, self._moved = step, moved
        self._loss: tuple[float, torch.dtype]

    def __call__(self) -> None:
        self._step.train_once(self._read)

    def _read(self, loss: Tensor) -> None:
        with without_modes():  # no operation of the step
            self._loss = loss.item(), loss.dtype

    @property
    def outcome(self) -> PassOutcome:
        """All that the call left behind; asked for before the module is put back."""
        value, dtype = self._loss
        parameters = dict(self._step.module.named_parameters())
        return PassOutcome(
            loss=torch.tensor(value, dtype=dtype),
            gradients={name: p.grad for name, p in parameters.items() if p.grad is not None},
            buffers={name: buffer.clone() for name, buffer in self._step.module.named_buffers()},
            moved={name: parameters[name].detach().clone() for name in self._moved},
            random_state=random_state(self._step.module),
        )


def outcome_of(step: Step, moved: Collection[str] = ()) -> PassOutcome:
    """The outcome of one run."""
    run = TrainingRun(step, moved)
    run()
    return run.outcome


Noise = Mapping[str, float]
"""By name (a gradient, a buffer, the loss), the largest relative difference between runs of the unmodified step."""

NOISE_SHARE = 4.0
"""How many times the largest difference that a few runs showed a planned step may differ."""


def compare(reference: PassOutcome, other: PassOutcome, noise: Noise = MappingProxyType({})) -> StepProof:
    """Compare them to the bit, or within ``noise`` where it has the name. Missing gradients count as different."""
    differences: list[str] = []
    worst, within_noise = 0.0, True
    expected, planned = reference.tensors, other.tensors
    for name in sorted(expected.keys() | planned.keys()):
        before, after = expected.get(name), planned.get(name)
        if before is None or after is None:
            differences.append(f"{name} {'appeared' if before is None else 'is gone'}")
            worst, within_noise = float("inf"), False
        elif not _same_bits(before, after):
            relative = _relative(before, after)
            worst = max(worst, relative) if name.startswith("gradient") else worst
            within_noise = within_noise and relative <= NOISE_SHARE * noise.get(name, 0.0)
            differences.append(f"{name}: relative difference {relative:.1e}")
    if not torch.equal(reference.random_state, other.random_state):
        differences.append("the random state afterwards differs")
        within_noise = False
    return StepProof(
        exact=not differences,
        within_noise=bool(differences) and within_noise,
        gradients=len(reference.gradients),
        differences=tuple(differences[:_NAMED]),
        worst_relative=worst,
    )


def noise_between(runs: Sequence[PassOutcome]) -> Noise | None:
    """The differences of runs of one step from the first; None where that is more than the order of sums explains."""
    noise: dict[str, float] = {}
    first, *others = runs
    expected = first.tensors
    for other in others:
        tensors = other.tensors
        if expected.keys() != tensors.keys() or not torch.equal(first.random_state, other.random_state):
            return None
        for name, tensor in expected.items():
            if _same_bits(tensor, tensors[name]):
                continue
            if tensor.shape != tensors[name].shape or apart(tensors[name], tensor) > noise_limit(tensor):
                return None
            noise[name] = max(noise.get(name, 0.0), _relative(tensor, tensors[name]))
    return noise


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """NaN equals the same NaN, and 0.0 does not equal -0.0."""
    return same([_dense(one)], [_dense(other)])


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout == torch.strided else tensor.detach().to_dense()


def _relative(before: Tensor, after: Tensor) -> float:
    """NaN-safe: a difference that is not a number is infinite."""
    scale = before.double().square().mean().sqrt()
    relative = ((after.double() - before.double()).abs().max() / scale).item()
    return relative if relative == relative else float("inf")


@dataclass
class Outputs:
    """The outputs of the unmodified module, and, once it is asked for, how exact they are."""

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
        """The reason why there is no float64 to compare with."""
        return self.own_error.note

    def compare(self, tensors: Sequence[Tensor], structure: Any) -> StepProof:
        """``exact``, or the largest error in units of the module's own."""
        alike = [(t.shape, t.dtype) for t in tensors] == [(t.shape, t.dtype) for t in self.tensors]
        if structure != self.structure or not alike:
            return StepProof(exact=False, differences=("the result has another form",), units=float("inf"))
        different = [at for at, (a, b) in enumerate(zip(tensors, self.tensors, strict=True)) if not identical(a, b)]
        if not different:
            return StepProof(exact=True, outputs=len(tensors))
        errors = {at: self.own_error.units(at, tensors[at]) for at in different}
        differences = tuple(f"output {at}: {units:.2g} times the module's own error" for at, units in errors.items())
        return StepProof(
            exact=False, outputs=len(tensors), units=max(errors.values()), differences=differences[:_NAMED]
        )


def faithful(proof: StepProof) -> bool:
    """Equal to the bit, or within rounding by the limit that verification uses."""
    return proof.exact or within(proof.units)


def outputs_of(step: Step, seed: int) -> tuple[list[Tensor], Any]:
    """Tensors that one pass returns, and the structure around them."""
    return seeded_outputs(step.module, step.sample, seed)
