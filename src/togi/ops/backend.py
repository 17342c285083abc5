"""The choice of the implementation that computes on a device, with its reason.

``TOGI_OPS_BACKEND`` forces one (``native``, ``triton``, ``tiled``); where the forced one is not available, the call
fails and says why. Without it: the compiled kernel on the CPU where it can be built, Triton kernels on CUDA devices of
compute capability 8.0 or more, else plain torch in tiles.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from togi.core.errors import TogiError, nearest
from togi.ops.kernels import native, tiled

VARIABLE = "TOGI_OPS_BACKEND"
NAMES = ("auto", "native", "triton", "tiled")
_LEAST_CAPABILITY = (8, 0)


class BackendError(TogiError):
    """A backend that was asked for and is unknown or cannot run here."""


class Kernels(Protocol):
    """The functions of a backend, for anchors [N, 4] and boxes [M, 4] with N, M > 0 on one device; all results are
    filled in place."""

    def match(
        self, anchors: Tensor, boxes: Tensor, format: str, undefined: str, results: tuple[Tensor, ...], /
    ) -> bool: ...
    def topk(
        self, anchors: Tensor, boxes: Tensor, format: str, undefined: str, values: Tensor, indices: Tensor, /
    ) -> bool: ...
    def matrix(
        self, anchors: Tensor, boxes: Tensor, kind: str, format: str, undefined: str, out: Tensor, /
    ) -> bool: ...
    def nms(self, planes: Tensor, ends: Tensor, threshold: float, kept: Tensor, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The implementation that answers, and why it is this one."""

    name: str
    reason: str


def backend(device: str | torch.device = "cpu") -> Backend:
    """The kernels for calls with tensors on ``device``. The first call on the CPU compiles the kernel if no earlier one
    did.

    Raises:
        BackendError: ``TOGI_OPS_BACKEND`` names an unknown backend, or one that cannot run here.
    """
    asked, device = _asked(), torch.device(device)
    if asked == "tiled":
        return Backend(name="tiled", reason=f"{VARIABLE}=tiled")
    name = asked if asked != "auto" else "triton" if device.type == "cuda" else "native"
    why_not = _why_not_triton(device) if name == "triton" else _why_not_native(device)
    if why_not is None:
        reason = "compiled for this processor" if name == "native" else "compiled for this device"
        return Backend(name=name, reason=reason)
    if asked == name:
        raise BackendError(
            f"{VARIABLE}={name} is not available: {why_not}. Unset it to compute in tiles of torch instead."
        )
    return Backend(name="tiled", reason=why_not)


def _why_not_native(device: torch.device) -> str | None:
    return native.why_not() if device.type == "cpu" else f"the native kernel runs on the CPU, not on {device.type}"


def _why_not_triton(device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return None  # slow, and only for who asks for it: its interpreter needs no device
    if device.type != "cuda":
        return f"the Triton kernels run on CUDA devices, not on {device.type}"
    if not torch.cuda.is_available() or torch.version.hip:
        return "there is no CUDA device"
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST_CAPABILITY:
        return "the device has compute capability {}.{}, and the Triton kernels need {}.{}".format(
            *capability, *_LEAST_CAPABILITY
        )
    return None


def kernels(device: torch.device) -> Kernels:
    """The implementation for tensors on ``device``."""
    name = backend(device).name
    if name == "triton":  # imported here: Triton is not everywhere
        return cast(Kernels, importlib.import_module("togi.ops.kernels.triton_boxes"))
    return native if name == "native" else tiled


def _asked() -> str:
    asked = os.environ.get(VARIABLE, "auto") or "auto"
    if asked not in NAMES:
        raise BackendError(f"{VARIABLE}={asked} is unknown; it can be {', '.join(NAMES)}{nearest(asked, NAMES)}")
    return asked
