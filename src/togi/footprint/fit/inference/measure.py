"""A pass measured: its peak by the allocator, with what it returned."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from togi.footprint.fit.inference.proof import run_for_outputs
from togi.footprint.fit.measured import measured_peak_bytes
from togi.footprint.step import Step


class Measured(NamedTuple):
    """One pass."""

    peak_bytes: int
    """What is there before (parameters, buffers, inputs) and how far the pass rises above it, outputs included."""
    outputs: list[Tensor]
    form: Any
    """What else is returned."""


def measure(step: Step, device: str, seed: int) -> Measured:
    """One pass under the allocator's eyes. Raises FitError where it cannot be seen."""
    kept: list[Any] = []
    peak_bytes = measured_peak_bytes(step, lambda: kept.extend(run_for_outputs(step, seed)), device)
    return Measured(peak_bytes, *kept)
