"""Which implementation answers on a device, and why.

``TOGI_OPS_BACKEND`` forces one (``native``, ``tiled``); where the forced one is not available, the call fails and
says why. Without it: the compiled kernel on the CPU where it can be built, else plain torch in tiles.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from togi.errors import TogiError, nearest
from togi.ops.kernels import native, tiled

VARIABLE = "TOGI_OPS_BACKEND"
NAMES = ("auto", "native", "tiled")


class BackendError(TogiError):
    """A backend that was asked for and is unknown or cannot run here."""


class Kernels(Protocol):
    """What a backend implements, for anchors [N, 4] and boxes [M, 4] with N, M > 0 on one device; all results are
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


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The implementation that answers, and why it is this one."""

    name: str
    reason: str


def backend(device: str | torch.device = "cpu") -> Backend:
    """What answers calls with tensors on ``device``. The first call on the CPU compiles the kernel if no earlier one
    did.

    Raises:
        BackendError: ``TOGI_OPS_BACKEND`` names an unknown backend, or one that cannot run here.
    """
    asked, kind = _asked(), torch.device(device).type
    if asked == "tiled":
        return Backend(name="tiled", reason=f"{VARIABLE}=tiled")
    if kind != "cpu":
        why_not: str | None = f"the native kernel runs on the CPU, not on {kind}"
    else:
        why_not = native.why_not()
    if why_not is None:
        return Backend(name="native", reason="compiled for this processor")
    if asked == "native":
        raise BackendError(
            f"{VARIABLE}=native cannot be had: {why_not}. Unset it to compute in tiles of torch instead."
        )
    return Backend(name="tiled", reason=why_not)


def kernels(device: torch.device) -> Kernels:
    """The implementation for tensors on ``device``."""
    return native if backend(device).name == "native" else tiled


def _asked() -> str:
    asked = os.environ.get(VARIABLE, "auto") or "auto"
    if asked not in NAMES:
        raise BackendError(f"{VARIABLE}={asked} is unknown; it can be {', '.join(NAMES)}{nearest(asked, NAMES)}")
    return asked
