"""Micro-batches of the step that is to fit (``subject/micro_batches``), shown on it by ``micro_batch_proof``."""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from togi.core.errors import FitError
from togi.footprint.step import Step
from togi.subject.inputs import Inputs
from togi.subject.micro_batches import Weigh, backward, split, weighted


def accumulated(step: Step, parts: int) -> Step:
    """A step that runs as ``Plan.backward`` will, so that its peak is the plan's.

    Its ``loss`` runs all backward passes and adds the gradients to ``.grad``; the ``backward()`` of that loss adds
    nothing. Any other use of the loss raises FitError.
    """

    def loss(module: nn.Module, sample: Inputs) -> Tensor:
        total = backward(module, sample, step.loss, parts).requires_grad_()
        total.register_hook(_check_upstream)  # type: ignore[no-untyped-call]
        return total

    return dataclasses.replace(step, loss=loss)


def _check_upstream(upstream: Tensor) -> None:
    if not bool((upstream == 1).all()):
        raise FitError(
            f"the loss of a step in micro-batches was scaled by {upstream.item():g} after its gradients were made: "
            "scale it in the step, or call micro_batches.backward with scale=."
        )


def shares_of(step: Step, parts: int, weigh: Weigh | None) -> list[tuple[Inputs, float]]:
    """The parts of the step's sample that count, and how much each does; the sum is 1."""
    return weighted(split(step.sample, parts), weigh)
