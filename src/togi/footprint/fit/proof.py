"""Runs of a step from equal beginnings, compared to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from togi.footprint.fit.record import Proof
from togi.footprint.step import Step


@dataclass(frozen=True)
class Outcome:
    """What a forward and a backward pass left behind."""

    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]
    random_state: Tensor


@contextmanager
def same_beginning(module: nn.Module, seed: int) -> Iterator[None]:
    """Seeds torch; afterwards buffers hold what they held, and gradients are gone."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    torch.manual_seed(seed)
    try:
        yield
    finally:
        module.zero_grad()
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in buffers and not equal(buffer, buffers[name]):
                    buffer.copy_(buffers[name])


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
    """Missing gradients count as different."""
    found: list[str] = []
    worst = 0.0
    if not equal(reference.loss, other.loss):
        found.append(f"loss: {reference.loss.item()!r} became {other.loss.item()!r}")
    for name in sorted(reference.gradients.keys() | other.gradients.keys()):
        before, after = reference.gradients.get(name), other.gradients.get(name)
        if before is None or after is None:
            found.append(f"gradient of {name}: {'appeared' if before is None else 'is gone'}")
            worst = float("inf")
        elif not equal(before, after):
            relative = _relative(before, after)
            worst = max(worst, relative)
            found.append(f"gradient of {name}: relative difference {relative:.1e}")
    for name, buffer in reference.buffers.items():
        if name not in other.buffers or not equal(buffer, other.buffers[name]):
            found.append(f"buffer {name} differs afterwards")
    if not torch.equal(reference.random_state, other.random_state):
        found.append("the random state afterwards differs")
    return Proof(
        exact=not found, gradients=len(reference.gradients), differences=tuple(found[:10]), worst_relative=worst
    )


def equal(one: Tensor, other: Tensor) -> bool:
    """To the bit: NaN equals the same NaN, and 0.0 does not equal -0.0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    return dense.contiguous().reshape(-1).view(torch.uint8)


def _relative(before: Tensor, after: Tensor) -> float:
    """NaN-safe: a difference that is no number is infinite."""
    scale = before.double().square().mean().sqrt()
    ratio = ((after.double() - before.double()).abs().max() / scale).item()
    return ratio if ratio == ratio else float("inf")
