"""CUDA in this process, and the pieces from which a device is simulated where there is none.

Behind it: torch.cuda._is_in_bad_fork (torch 2.9 to 2.15). When it goes: a forked child that uses CUDA raises
"Cannot re-initialize CUDA in forked subprocess", which can be tried where there is a device.

Behind it: torch.cuda._device_count_nvml (torch 2.9 to 2.15). When it goes: subjects whose files ask
``torch.cuda.is_available()`` have a process for every trial, where NVML leaves a thread behind.

Behind it: torch._C's device guard, ``_only_lift_cpu_tensors``, ``TensorBase``, ``Generator`` and
``_group_tensors_by_device_and_dtype`` (torch 2.9 to 2.15; FakeTensorMode takes the same two measures,
torch/_subclasses/fake_tensor.py). When they go: trace rules need a GPU.

Behind it: ``_cuda_clearCublasWorkspaces`` (torch 2.9 to 2.15), as torch/_inductor/cudagraph_trees.py uses it. When it
goes: graphs of several pools may share a workspace. ``_cuda_endAllocateToPool``, ``_cuda_releasePool`` (torch 2.9 to
2.15). When they go: nothing is lost with torch 2.13 and newer, which end a failed capture themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

TensorBase = torch._C.TensorBase
"""The class in C++ below ``torch.Tensor``; its methods stay as they are when those of ``Tensor`` are replaced."""
GeneratorBase = torch._C.Generator
"""The class behind ``torch.Generator``, for subclasses."""
GROUPING_OWNER, GROUPING_NAME = torch._C, "_group_tensors_by_device_and_dtype"
"""Where optimizers and clipping ask for the device of each group of tensors: ``getattr(OWNER, NAME)`` is replaced."""


def grouping() -> Callable[..., Any]:
    """The function that is there now."""
    function: Callable[..., Any] = getattr(GROUPING_OWNER, GROUPING_NAME)
    return function


def in_bad_fork() -> bool:
    """Return, in a forked child, whether CUDA was started before the fork and so cannot be used here."""
    return bool(torch.cuda._is_in_bad_fork())


def wait_for_device() -> None:
    """Return when a GPU has done all that it was given, if this process uses one: a call returns before, and what a
    clock says then is how long it took to queue. Not while a CUDA graph is captured, which a wait would break."""
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def device_answers() -> bool:
    """Return whether CUDA still answers in this process. After an illegal access, or a failed assertion in a kernel, it
    does not: every later call raises that error again."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


@contextmanager
def devices_counted_by(ask: Callable[[Callable[[], int]], int]) -> Iterator[None]:
    """Inside, ``ask`` is given the function by which torch asks NVML how many CUDA devices this process may use (-1: it
    does not know), as often as torch asks: the environment may change between two times."""
    count = torch.cuda._device_count_nvml
    torch.cuda._device_count_nvml = lambda: ask(count)
    try:
        yield
    finally:
        torch.cuda._device_count_nvml = count


def real_cuda_devices() -> int:
    """CUDA devices of this machine, whatever ``torch.cuda`` was made to say."""
    return int(torch._C._cuda_getDeviceCount())


@contextmanager
def cuda_can_be_named() -> Iterator[None]:
    """Inside, calls that name a CUDA device get as far as a dispatch observer: a device guard that does nothing where
    no driver is, and data that is made on the CPU before it is moved."""
    if hasattr(torch._C, "_ensureCUDADeviceGuardSet"):  # torch 2.9 has none
        torch._C._ensureCUDADeviceGuardSet()
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


_ABANDONED: list[Any] = []
"""Graphs whose capture was not ended: torch's pinned memory asks them for as long as the process lives."""


def free_workspaces() -> None:
    """Free cuBLAS's, of all streams. What is computed next allocates them again, in a capture from the graph's pool."""
    if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):  # not in a torch without CUDA
        torch._C._cuda_clearCublasWorkspaces()


def end_open_capture(graph: Any, pool: Any) -> None:
    """After ``capture_end`` failed: no longer allocate from ``pool``. Before 2.13 torch looks at the error first, and
    leaves that open (pytorch #180395)."""
    device = torch.cuda.current_device()
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError:  # "not currently recording": torch has ended it
        return
    torch._C._cuda_releasePool(device, pool)
    _ABANDONED.append(graph)
