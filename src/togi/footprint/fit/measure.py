"""Runs of a step: their start, what is there before them, and their peak by torch's allocator."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from togi.core.errors import FitError
from togi.footprint.step import Step
from togi.measure.memory import torch_allocator_peak_bytes
from togi.subject.behaviour import SavedBuffers
from togi.torch_internals.layouts import NoStorage, storages_of
from togi.torch_internals.tensors import storage_key, tensors_of


@contextmanager
def same_start(module: nn.Module, seed: int) -> Iterator[None]:
    """Seeds torch; afterwards buffers, gradients that were not there and the random state are what they were."""
    state, without = SavedBuffers(module), [p for p in module.parameters() if p.grad is None]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            yield
        finally:
            for parameter in without:
                parameter.grad = None
            state.restore()


def random_state(module: nn.Module) -> Tensor:
    """Of the generators that a step may draw from: the CPU's, and CUDA's where the module lies there."""
    on_device = any(parameter.is_cuda for parameter in module.parameters())
    return torch.cat([torch.get_rng_state(), torch.cuda.get_rng_state()]) if on_device else torch.get_rng_state()


@contextmanager
def deterministic() -> Iterator[None]:
    """Torch takes kernels whose sums come out alike in every run, where it has such; the others stay, unnamed."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*deterministic", UserWarning)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def measured_peak_bytes(step: Step, run: Callable[[], None], device: str = "cpu") -> int:
    """What is there before, and how far ``run``, which is the step in some form, rises above it.

    Raises:
        FitError: the allocator cannot be observed here.
    """
    gc.collect()
    before = bytes_of(tensors_before(step))
    rise = torch_allocator_peak_bytes(run, device)
    if rise is None:
        raise FitError("the profiler reports no memory here, so no peak can be measured and no plan trusted")
    return before + rise


def static_bytes(step: Step) -> int:
    """What is there in every step: parameters, buffers, inputs, optimizer state, and a gradient for each parameter."""
    gradients = sum(p.nbytes for p in step.module.parameters() if p.requires_grad)
    return bytes_of(tensors_before(step)) + gradients


def tensors_before(step: Step) -> Iterable[Tensor]:
    """Parameters, buffers, inputs, optimizer state."""
    state = list(step.optimizer.state.values()) if step.optimizer is not None else []
    yield from step.module.parameters()
    yield from step.module.buffers()
    yield from step.sample.tensors()
    yield from tensors_of(state)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Of their storages, each once. A tensor whose memory torch does not show counts nothing, as in an account."""
    storages: dict[int, int] = {}
    for tensor in tensors:
        with suppress(NoStorage):
            storages |= {storage_key(storage): storage.nbytes() for storage in storages_of(tensor)}
    return sum(storages.values())
