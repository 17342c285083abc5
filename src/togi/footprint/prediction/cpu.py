"""The peak of torch's CPU allocator, kernels' own needs included.

The ledger's peak is a lower bound. Operations are asked in the order of how high they could reach, until none that is
left could be higher: only those near the peak are run (best-first branch and bound).
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch

from togi.footprint.prediction.probe import Probe
from togi.footprint.prediction.recording import Call, Recording

_WORKSPACE_X = 2
"""A kernel is taken to need at most that many times its arguments and results beside them: reorders, per-thread
buffers."""
_CHANNEL_BLOCK = 16
"""oneDNN pads the channels of every group to blocks: of a depthwise weight it makes up to 256 times as much."""


class Height(NamedTuple):
    """The highest that the run gets."""

    peak_bytes: int
    call: Call
    workspace_bytes: int
    """Taken by the kernel itself, beyond its results; 0 where the peak is between operations' starts and ends."""
    unmeasured: tuple[Call, ...]
    """Operations that could be higher and could not be run."""

    @property
    def high_bytes(self) -> int:
        return max([self.peak_bytes, *(bound(call) for call in self.unmeasured)])


def bound(call: Call) -> int:
    """Bytes that cannot be exceeded while the operation runs."""
    extra = _WORKSPACE_X * (call.read_bytes + call.made_bytes + _blocked_weight_bytes(call))
    return call.before_bytes + call.made_bytes + extra


def _blocked_weight_bytes(call: Call) -> int:
    """Of a grouped convolution's weight: (groups x outputs, inputs, *kernel) with both channels padded."""
    place = {"aten::convolution": 1, "aten::convolution_backward": 2}.get(call.func.name().partition(".")[0])
    if place is None:
        return 0
    positional = call.args[0]
    weight, groups = positional[place], positional[-1 if place == 1 else -2]
    outputs, inputs = (-(-size // _CHANNEL_BLOCK) for size in (weight.shape[0] // groups, weight.shape[1]))
    return int(groups * outputs * inputs * _CHANNEL_BLOCK**2 * prod(weight.shape[2:]) * weight.dtype.itemsize)


def highest(recording: Recording, probe: Probe) -> Height:
    """The peak, each operation that could be it run alone."""
    best = Height(recording.peak_bytes, recording.calls[max(0, recording.peak_at - 1)], 0, ())
    unmeasured: list[Call] = []
    for call in sorted(filter(_may_need_workspace, recording.calls), key=bound, reverse=True):
        if bound(call) <= best.peak_bytes:
            break
        measured = probe.peak_bytes(call)
        if measured is None:
            unmeasured.append(call)
        elif call.before_bytes + measured > best.peak_bytes:
            best = Height(call.before_bytes + measured, call, measured - call.made_bytes, ())
    return best._replace(unmeasured=tuple(c for c in unmeasured if bound(c) > best.peak_bytes))


def _may_need_workspace(call: Call) -> bool:
    """Views and pointwise operations write their results and nothing else."""
    func = call.func
    return not (func.is_view or torch.Tag.pointwise in func.tags)
