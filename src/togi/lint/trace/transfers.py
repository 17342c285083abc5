"""Copies between the host and the simulated GPU: who waits for them.

Rules of the CUDA runtime and of PyTorch's copy kernel (aten/src/ATen/native/cuda/Copy.cu; CUDA Runtime API, "API
synchronization behavior"):

- a blocking copy in either direction ends with ``memcpy_and_sync``: the host waits, and the debug mode sees it;
- ``non_blocking=True`` from pinned memory returns at once;
- ``non_blocking=True`` from pageable memory is staged by the driver before it returns: it does not wait for the GPU's
  queue, but it overlaps with nothing;
- ``non_blocking=True`` to a new CPU tensor gets pinned memory from PyTorch and returns at once, while copying into
  existing pageable memory waits, unseen by the debug mode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from togi.lint.trace.placement import is_pinned
from togi.lint.trace.recorder import Recorder

TO_DEVICE = "values are copied from the host's pageable memory, and the host waits for everything queued before"
TO_DEVICE_PINNED = "values are copied from pinned memory, but blocking: the host waits for everything queued before"
STAGED = "the copy is not asynchronous: the memory is pageable, so the driver stages it before it returns"
ASYNCHRONOUS = "values are copied to the GPU, asynchronously"
TO_HOST = "values are copied to the host, which waits for them"
TO_HOST_ASYNCHRONOUS = "values are copied to the host asynchronously: synchronise before reading them"
TO_HOST_PAGEABLE = "the copy is not asynchronous: its target is pageable memory, so the host waits"


def record_transfer(
    recorder: Recorder,
    op: str,
    source: Tensor,
    target: torch.device,
    *,
    non_blocking: bool,
    into: Tensor | None = None,
) -> None:
    """Record a copy of ``source`` to the other device. ``into``: existing memory that it is copied into."""
    moved_bytes = source.numel() * source.element_size()
    if moved_bytes == 0:
        return
    if target.type == "cuda":
        pinned = is_pinned(source)
        if non_blocking:
            _record(recorder, op, source, ASYNCHRONOUS if pinned else STAGED, waits=False)
        else:
            _record(recorder, op, source, TO_DEVICE_PINNED if pinned else TO_DEVICE, waits=True)
    elif not non_blocking:
        _record(recorder, op, source, TO_HOST, waits=True)
    elif into is None or is_pinned(into):
        _record(recorder, op, source, TO_HOST_ASYNCHRONOUS, waits=False)
    else:
        _record(recorder, op, source, TO_HOST_PAGEABLE, waits=True, seen=False)


def _record(recorder: Recorder, op: str, source: Tensor, why: str, *, waits: bool, seen: bool = True) -> None:
    recorder.record(
        "copy",
        op,
        why,
        tensors=[source],
        moved_bytes=source.numel() * source.element_size(),
        waits=waits,
        seen_by_debug_mode=seen,
    )
