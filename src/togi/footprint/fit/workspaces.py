"""A real run of a step, watched: how long each call of the forward pass takes, and what kernels take for themselves.

A kernel's own memory (a convolution's reordered weights, a product's packed operands) is taken and given back within
one operation, so no ledger of tensors sees it. The allocator's events do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch.profiler import ProfilerActivity, profile

from togi.footprint.account.allocator_events import Allocation, Allocations, MarkingTracker, read_allocations
from togi.footprint.fit.observe import timing
from togi.footprint.step import Step
from togi.footprint.storage_tracker import StorageLifetime


@dataclass(frozen=True)
class Costs:
    """What a step on fake tensors cannot say."""

    milliseconds: dict[str, float] = field(default_factory=dict)
    """Of every call of the forward pass, by its name."""
    workspaces: dict[int, int] = field(default_factory=dict)
    """Bytes that operations take beside their results, by the operation's number in the step."""
    operations: int = 0


def costs_of(step: Step, run: Callable[[], None], device: str = "cpu") -> Costs:
    """Of ``run``, which is one run of ``step`` on real tensors."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.startswith("cuda") else [])
    ledger = MarkingTracker()
    with profile(activities=activities, profile_memory=True) as profiler, ledger, timing(step.module) as milliseconds:
        run()
    allocations = read_allocations(profiler, device.partition(":")[0])
    found = workspaces(allocations, ledger.lifetimes) if allocations is not None else {}
    return Costs(milliseconds, found, ledger.operations)


def workspaces(allocations: Allocations, pieces: Iterable[StorageLifetime]) -> dict[int, int]:
    """By operation: the most that its own blocks took at once, less the results that a ledger books."""
    results: dict[int, int] = {}
    for piece in pieces:
        results[piece.born] = results.get(piece.born, 0) + piece.bytes
    own: dict[int, list[Allocation]] = {}
    for block in allocations.blocks:
        own.setdefault(block.operation, []).append(block)
    found = {number: _most_at_once(blocks) - results.get(number, 0) for number, blocks in own.items()}
    return {number: bytes for number, bytes in found.items() if bytes > 0}


def _most_at_once(blocks: list[Allocation]) -> int:
    """Frees after the operation come later than all its allocations, and change nothing."""
    changes = [(block.order, block.bytes) for block in blocks]
    changes += [(block.freed, -block.bytes) for block in blocks if block.freed is not None]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
