"""Waiting until a device has done what it was given, and callers that do not wait for each other there.

A call on a CUDA device returns once its kernels are queued. Queued on one stream, they also wait for all that others
queued before them; the threads of a server that wants more than that have a stream each.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams
"""

from __future__ import annotations

from collections.abc import Callable

from togi.core.callers import Callers

Wait = Callable[[], object]


def wait_for(device: str) -> Wait:
    """Returns when the device has done all that it was given; calls on the CPU have when they return."""
    if not device.startswith("cuda"):
        return lambda: None
    import torch

    return torch.cuda.synchronize


def callers_on(count: int, device: str) -> Callers:
    """Callers, on a CUDA device with a stream each. What the calling thread has queued is done before their first
    request begins, and what they have queued before ``answer`` returns."""
    if not device.startswith("cuda"):
        return Callers(count)
    return Callers(count, enter=_on_a_stream_of_its_own, before=wait_for(device), after=wait_for_own_stream)


def wait_for_own_stream() -> None:
    """Returns when what this thread's stream was given is done, whatever others have queued meanwhile."""
    import torch

    torch.cuda.current_stream().synchronize()


def _on_a_stream_of_its_own() -> None:
    """For this thread, as long as it lives."""
    import torch

    torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
