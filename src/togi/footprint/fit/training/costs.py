"""Costs of a real run of a step: how long each call of the forward pass takes, and what kernels take for themselves.

A kernel's own memory (a convolution's reordered weights, a product's packed operands) is taken and given back within
one operation, so no tracker of storages sees it; the allocator's events do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from togi.core.quantities import first_line
from togi.footprint.account.allocator_events import Allocation, Allocations, operation_mark, read_allocations
from togi.footprint.fit.training.observe import Observed, observe, watched_by
from togi.footprint.fit.training.recompute import Operation, StoredValue
from togi.footprint.fit.training.recording import ForwardRecording
from togi.footprint.fit.training.saved_tensors import SavedTensorHooks
from togi.footprint.step import Step, fake_copy
from togi.footprint.storage_tracker import StorageLifetime, StorageTracker
from togi.torch_internals.autograd import top_saved_tensor_hooks
from togi.torch_internals.cuda import wait_for_device
from togi.torch_internals.profiler import memory_profile


@contextmanager
def timing(module: nn.Module) -> Iterator[dict[str, float]]:
    """Enter it round a run: it fills in the milliseconds of every call by its name."""
    milliseconds: dict[str, float] = {}
    with watched_by(module, lambda: SavedTensorHooks({}, top_saved_tensor_hooks(), _Timed(milliseconds))):
        yield milliseconds


class _Timed(ForwardRecording):
    """Also takes the time of every call; on a GPU it waits for the end."""

    def __init__(self, milliseconds: dict[str, float]) -> None:
        super().__init__()
        self._milliseconds = milliseconds

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        started = time.perf_counter()
        results = func(*args, **kwargs)
        wait_for_device()
        self._last_ms = (time.perf_counter() - started) * 1e3
        return results

    def _made(self, operation: Operation, name: str, values: Sequence[tuple[StoredValue, Tensor]]) -> None:
        # a model that is called twice in a step has two calls of a name
        self._milliseconds[name] = max(self._last_ms, self._milliseconds.get(name, 0.0))


@dataclass(frozen=True)
class MeasuredCosts:
    """The figures that a step on fake tensors cannot give."""

    milliseconds: dict[str, float] = field(default_factory=dict)
    """Of every call of the forward pass, by its name."""
    workspaces: dict[int, int] = field(default_factory=dict)
    """Bytes that operations take besides their results, by the operation's number in the step."""
    operations: int = 0
    made: dict[int, int] = field(default_factory=dict)
    """Bytes of new storages, by the number of the operation in whose results they came."""


def costs_of(step: Step, run: Callable[[], None], device: str = "cpu") -> MeasuredCosts:
    """Measure ``run``, which is one run of ``step`` on real tensors."""
    tracker = StorageTracker(mark=operation_mark)
    with memory_profile(device) as profiler, tracker, timing(step.module) as milliseconds:
        run()
    allocations = read_allocations(profiler, device.partition(":")[0])
    workspace_bytes = workspaces(allocations, tracker.lifetimes) if allocations is not None else {}
    return MeasuredCosts(milliseconds, workspace_bytes, tracker.operations, made_by_operation(tracker.lifetimes))


def observe_cheaply(step: Step, costs: MeasuredCosts, start: AbstractContextManager[None]) -> tuple[Observed, str]:
    """On fake tensors if the step does the same on them and takes as much memory, else on the real ones."""
    try:
        fake, mode = fake_copy(step)
        with mode:
            observed = observe(fake, costs.milliseconds)
        if list(dict.fromkeys(call.name for call in observed.calls)) == list(costs.milliseconds):
            if made_by_operation(observed.lifetimes) == costs.made:
                return observed, ""
            note = "Some operations take other memory on real tensors than on fake ones; it was watched on real ones."
        else:
            note = "The step runs other operations on fake tensors than on real ones; it was watched on real ones."
    except Exception as error:  # foreign code: a model may read values, or not be copied
        reason = f"{type(error).__name__}: {first_line(error)}"
        note = f"The step does not run on fake tensors ({reason}); it was watched on real ones."
    with start:
        return observe(step, costs.milliseconds), note


def made_by_operation(lifetimes: Iterable[StorageLifetime]) -> dict[int, int]:
    """Bytes of the storages that operations made, by the operation's number."""
    made: dict[int, int] = {}
    for lifetime in lifetimes:
        if lifetime.op and lifetime.bytes:
            made[lifetime.born] = made.get(lifetime.born, 0) + lifetime.bytes
    return made


def workspaces(allocations: Allocations, lifetimes: Iterable[StorageLifetime]) -> dict[int, int]:
    """Bytes by operation: the most that its own blocks took at once, less the results that a tracker books."""
    results: dict[int, int] = {}
    for lifetime in lifetimes:
        results[lifetime.born] = results.get(lifetime.born, 0) + lifetime.bytes
    own: dict[int, list[Allocation]] = {}
    for block in allocations.blocks:
        own.setdefault(block.operation, []).append(block)
    workspace_bytes = {number: _most_at_once(blocks) - results.get(number, 0) for number, blocks in own.items()}
    return {number: bytes for number, bytes in workspace_bytes.items() if bytes > 0}


def _most_at_once(blocks: list[Allocation]) -> int:
    """Frees after the operation come later than all its allocations, and change nothing."""
    changes = [(block.order, block.bytes) for block in blocks]
    changes += [(block.freed, -block.bytes) for block in blocks if block.freed is not None]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
