"""What a call allocates at its highest, by the allocator's own account."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
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

    with _quiet_profiler():
        return torch_allocator_peak_bytes(run)


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Kineto writes to stderr when it starts; its level is read from the environment at its first use."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        del os.environ["KINETO_LOG_LEVEL"]
