"""The profiler's parts without public names: cheap marks, kinds of events, whether it is on.

Behind it: torch._C._profiler (_RecordFunctionFast, _EventType), torch._C._autograd (DeviceType, _profiler_enabled),
torch.autograd.profiler._is_profiler_enabled (torch 2.9 to 2.15). When they go: ``torch.profiler.record_function``
marks ranges at ten times the cost; allocation events have no other form.
"""

from __future__ import annotations

import torch
from torch._C._autograd import DeviceType
from torch._C._autograd import _profiler_enabled as profiler_records
from torch._C._profiler import _EventType as EventType
from torch._C._profiler import _RecordFunctionFast as FastMark  # the cheap form of torch.profiler.record_function

__all__ = ["DeviceType", "EventType", "FastMark", "profiler_is_on", "profiler_records"]


def profiler_is_on() -> bool:
    """Whether a profiler is on in this process, as ``record_function`` asks; ``profiler_records``: in this thread."""
    return bool(torch.autograd.profiler._is_profiler_enabled)
