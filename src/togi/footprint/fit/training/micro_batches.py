"""Micro-batches of the step that is to fit (``subject/micro_batches``), shown on it by ``micro_batch_proof``."""

from __future__ import annotations

import dataclasses

from togi.footprint.step import Step
from togi.subject.inputs import Inputs
from togi.subject.micro_batches import Weigh, accumulated_loss, shares_in, split


def accumulated(step: Step, parts: int) -> Step:
    """A step whose ``loss`` is ``accumulated_loss`` of its own."""
    return dataclasses.replace(step, loss=accumulated_loss(step.loss, parts))


def shares_of(step: Step, parts: int, weigh: Weigh | None) -> list[tuple[Inputs, float]]:
    """The parts of the step's sample, and what each counts; the sum is 1."""
    pieces = split(step.sample, parts)
    return list(zip(pieces, shares_in(pieces, weigh), strict=True))
