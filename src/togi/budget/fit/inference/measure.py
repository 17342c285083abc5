"""A pass measured: its peak by the allocator, with what it returned, and its time."""

from __future__ import annotations

import gc
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from togi.budget.fit.errors import FitError
from togi.budget.fit.inference.proof import run_for_outputs
from togi.budget.guard.foresee import tensors_of
from togi.budget.step import Step
from togi.measure.memory import torch_allocator_peak_bytes


class Measured(NamedTuple):
    """One pass."""

    peak_bytes: int
    """What is there before (parameters, buffers, inputs) and how far the pass rises above it, outputs included."""
    outputs: list[Tensor]
    form: Any
    """What else is returned."""


def measure(step: Step, device: str, seed: int) -> Measured:
    """One pass under the allocator's eyes. Raises FitError where it cannot be seen."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        outputs, form = run_for_outputs(step, seed)
        torch.cuda.synchronize()
        return Measured(before_bytes(step) + torch.cuda.max_memory_allocated() - before, outputs, form)
    kept: list[Any] = []
    rise = torch_allocator_peak_bytes(lambda: kept.extend(run_for_outputs(step, seed)))
    if rise is None:
        raise FitError("the profiler reports no memory here, so no peak can be measured and no plan trusted")
    return Measured(before_bytes(step) + rise, *kept)


def pass_ms(step: Step, device: str) -> float:
    _wait(device)
    started = time.perf_counter()
    step.run()
    _wait(device)
    return (time.perf_counter() - started) * 1e3


def before_bytes(step: Step) -> int:
    """Parameters, buffers and inputs; a storage that is shared counts once."""
    inputs = tensors_of((step.sample.args, dict(step.sample.kwargs)))
    return storages_bytes([*step.module.parameters(), *step.module.buffers(), *inputs])


def storages_bytes(tensors: list[Tensor]) -> int:
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
