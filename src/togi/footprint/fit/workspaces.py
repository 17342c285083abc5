"""A real run of a step, watched: how long each call of the forward pass takes, and what kernels take for themselves.

A kernel's own memory (a convolution's reordered weights, a product's packed operands) is taken and given back within
one operation, so no ledger of tensors sees it. The allocator's events do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch._C._profiler import _RecordFunctionFast  # the cheap form of torch.profiler.record_function
from torch.profiler import ProfilerActivity, profile

from togi.footprint.account.allocations import MARK, Block, Stream, read_stream
from togi.footprint.fit.observe import timing
from togi.footprint.ledger import Ledger, Piece
from togi.footprint.step import Step


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
    ledger = _Marking()
    with profile(activities=activities, profile_memory=True) as profiler, ledger, timing(step.module) as milliseconds:
        run()
    stream = read_stream(profiler, device.partition(":")[0])
    found = workspaces(stream, ledger.pieces) if stream is not None else {}
    return Costs(milliseconds, found, ledger.operations)


def workspaces(stream: Stream, pieces: Iterable[Piece]) -> dict[int, int]:
    """By operation: the most that its own blocks took at once, less the results that a ledger books."""
    results: dict[int, int] = {}
    for piece in pieces:
        results[piece.born] = results.get(piece.born, 0) + piece.bytes
    own: dict[int, list[Block]] = {}
    for block in stream.blocks:
        own.setdefault(block.operation, []).append(block)
    found = {number: _most_at_once(blocks) - results.get(number, 0) for number, blocks in own.items()}
    return {number: bytes for number, bytes in found.items() if bytes > 0}


def _most_at_once(blocks: list[Block]) -> int:
    """Frees after the operation come later than all its allocations, and change nothing."""
    changes = [(block.order, block.bytes) for block in blocks]
    changes += [(block.freed, -block.bytes) for block in blocks if block.freed is not None]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


class _Marking(Ledger):  # type: ignore[no-untyped-call]
    """Also marks every operation in the profile."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _RecordFunctionFast(f"{MARK}{self.operations + 1}"):
            return super().__torch_dispatch__(func, types, args, kwargs)
