"""The device of a study: children see one alone, and hold it together."""

from __future__ import annotations

import os

from togi.core.errors import SubjectError
from togi.core.quantities import plural
from togi.machine import nvml


def one_device(device: str) -> tuple[str, dict[str, str]]:
    """The name of a device in children that see no other, and the environment that makes it so: ``cuda`` with
    ``CUDA_VISIBLE_DEVICES`` for ``cuda:N``. Timers, memory and backends then need not know which one it is.

    Raises SubjectError where ``CUDA_VISIBLE_DEVICES`` of this process names fewer.
    """
    kind, _, number = device.partition(":")
    if not number:
        return device, {}
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if visible and int(number) >= len(visible):
        raise SubjectError(
            f"device {device} was asked for, and CUDA_VISIBLE_DEVICES={','.join(visible)} shows "
            f"{plural(len(visible), 'device')}: count from 0 among these"
        )
    return kind, {"CUDA_VISIBLE_DEVICES": visible[int(number)] if visible else number}


def check_shared(device: str) -> None:
    """Raises SubjectError where the GPU is in a compute mode that keeps a second process from it."""
    gpu = nvml.read_gpu(device) if device.startswith("cuda") else None
    if gpu is not None and gpu.compute_mode not in (None, "default"):
        raise SubjectError(
            f"the GPU is in compute mode '{gpu.compute_mode}', and a study holds several processes on it: the "
            f"reference, the trial, the finalists. Set it back: {nvml.SHARE}"
        )
