"""The profiler's parts without public names: cheap marks, kinds of events, whether it is on.

Behind it: torch._C._profiler (_RecordFunctionFast, _EventType), torch._C._autograd (DeviceType, _profiler_enabled),
torch.autograd.profiler._is_profiler_enabled (torch 2.9 to 2.15). When they go: ``torch.profiler.record_function``
marks ranges at ten times the cost; allocation events have no other form.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C._autograd import DeviceType
from torch._C._autograd import _profiler_enabled as profiler_records
from torch._C._profiler import _EventType as EventType
from torch._C._profiler import _RecordFunctionFast as FastMark  # the cheap form of torch.profiler.record_function
from torch.profiler import ProfilerActivity, profile

__all__ = ["DeviceType", "EventType", "FastMark", "memory_profile", "profiler_is_on", "profiler_records"]

_LEVEL = "KINETO_LOG_LEVEL"


@contextmanager
def memory_profile(device: str = "cpu") -> Iterator[profile]:
    """A profile with every allocation on the CPU and on ``device``, which writes nothing to the terminal."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.startswith("cuda") else [])
    # Without acc_events torch before 2.12 warns of what concerns schedules alone. With it every event is made a Python
    # object at the end, which nobody asks for here: seconds, for a pass of a hundred thousand operators.
    accumulated = torch.__version__ < "2.12"
    with _quiet(), profile(activities=activities, profile_memory=True, acc_events=accumulated) as running:
        yield running


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler's library, Kineto, writes to stderr when it starts (that it finds no GPU), at a level that it reads
    from the environment at its first use. A level that the user set stays."""
    if _LEVEL in os.environ:
        yield
        return
    os.environ[_LEVEL] = "99"
    try:
        yield
    finally:
        del os.environ[_LEVEL]


def profiler_is_on() -> bool:
    """Return whether a profiler is on in this process, as ``record_function`` asks; ``profiler_records``: in this
    thread."""
    return bool(torch.autograd.profiler._is_profiler_enabled)
