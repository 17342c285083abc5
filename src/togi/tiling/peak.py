"""What a call allocates at its highest, by the allocator's own account."""

from __future__ import annotations

from typing import Any

import torch

from togi.torch_internals.profiler import profiler_is_on


def peak_bytes(run: Any, device: str) -> int | None:
    """The allocator's exact peak during ``run``; None where it cannot be had (a profiler is running already)."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    if device != "cpu" or profiler_is_on():
        return None
    from togi.measure.memory import torch_allocator_peak_bytes

    return torch_allocator_peak_bytes(run)
