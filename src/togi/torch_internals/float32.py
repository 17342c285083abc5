"""How CUDA multiplies float32: which operators round their factors to TensorFloat-32, and switching that off and on.

Behind it: ``torch.backends.{cudnn.conv,cudnn.rnn,cuda.matmul}.fp32_precision`` (torch 2.9 to 2.15), next to the older
``cudnn.allow_tf32``, ``cuda.matmul.allow_tf32`` and ``set_float32_matmul_precision``. Reading an older switch raises
where the newer ones were set to what it cannot say, so each is read through the newer interface, and set through the
older one wherever that can be read: a model's own ``with cudnn.flags(...)`` reads it too. When the older interface
goes: keep the newer branch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

__all__ = ["high_matmul_precision", "ieee_float32", "tf32_operators"]

_TF32_SINCE = (8, 0)
"""Compute capability of Ampere, the first with such tensor cores."""


def tf32_operators(device: str) -> tuple[str, ...]:
    """List which of ``convolution``, ``matmul`` and ``rnn`` run in TensorFloat-32 on ``device`` with the flags of
    now."""
    if torch.device(device).type != "cuda" or torch.cuda.get_device_capability(device) < _TF32_SINCE:
        return ()
    return tuple(kind for kind, setting in _settings().items() if setting.fp32_precision == "tf32")


@contextmanager
def ieee_float32() -> Iterator[None]:
    """Inside, float32 is multiplied as float32 on CUDA, by all operators."""
    with ExitStack() as stack:
        stack.enter_context(_ieee_cudnn())
        if _settings()["matmul"].fp32_precision == "tf32":
            stack.enter_context(_matmul_precision("highest"))
        yield


@contextmanager
def high_matmul_precision() -> Iterator[None]:
    """``torch.set_float32_matmul_precision("high")`` for the block, whichever interface was used before."""
    with _matmul_precision("high"):
        yield


def _settings() -> dict[str, Any]:
    backends = torch.backends
    return {"convolution": backends.cudnn.conv, "matmul": backends.cuda.matmul, "rnn": backends.cudnn.rnn}  # type: ignore[attr-defined]


@contextmanager
def _ieee_cudnn() -> Iterator[None]:
    settings = [setting for kind, setting in _settings().items() if kind != "matmul"]
    before = [setting.fp32_precision for setting in settings]
    if "tf32" not in before:
        yield
        return
    older = _older(lambda: torch.backends.cudnn.allow_tf32)
    try:
        if older is None:
            for setting in settings:
                setting.fp32_precision = "ieee"
        else:
            torch.backends.cudnn.allow_tf32 = False
        yield
    finally:
        if older is not None:
            torch.backends.cudnn.allow_tf32 = older
        for setting, value in zip(settings, before, strict=True):
            if setting.fp32_precision != value:
                setting.fp32_precision = value


@contextmanager
def _matmul_precision(wanted: str) -> Iterator[None]:
    """The one setting that sets both interfaces; afterwards each is what it was."""
    matmul, onednn = _settings()["matmul"], torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision, onednn.fp32_precision
    older = _older(torch.get_float32_matmul_precision)
    torch.set_float32_matmul_precision(wanted)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(older or "highest")
        matmul.fp32_precision, onednn.fp32_precision = before


def _older(read: Callable[[], Any]) -> Any:
    """Read the older interface; None if it cannot say it."""
    try:
        return read()
    except RuntimeError:  # the two interfaces were mixed
        return None
