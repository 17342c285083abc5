"""Conversions that nobody asked for: to a wider dtype, and from one memory layout to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.lint.trace import calls
from togi.lint.trace.recorder import Recorder
from togi.torch_internals.autograd import in_backward

_NARROW = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 4, torch.float64: 8}
_FORMATS = {torch.contiguous_format: "contiguous", torch.channels_last: "channels_last"}


def record_promotion(recorder: Recorder, func: Any, operands: Sequence[Tensor], result: Any) -> None:
    """An elementwise operation on floating-point operands of two widths: the narrower one is converted.

    Numbers and tensors without dimensions do not promote, so they do not count.
    """
    if not recorder.armed or len(operands) < 2 or not isinstance(result, Tensor) or result.dtype not in _NARROW:
        return
    if torch.Tag.pointwise not in func.tags or in_backward():
        return
    widths = {t.dtype for t in operands if t.dim() > 0 and t.dtype in _NARROW}
    narrow = min(widths, key=_NARROW.__getitem__, default=result.dtype)
    wide = max(widths, key=_NARROW.__getitem__, default=result.dtype)
    if _NARROW[narrow] == _NARROW[wide] or result.dtype != wide:
        return
    recorder.record(
        "promotion",
        calls.name(str(func)),
        f"{_name(narrow)} and {_name(wide)} are mixed, so everything that follows is {_name(wide)}",
        tensors=operands[:2],
        moved_bytes=result.numel() * (_NARROW[wide] - _NARROW[narrow]),
        detail=f"{_name(narrow)} -> {_name(wide)}",
    )


def record_layout(
    recorder: Recorder, packet: str, operands: Sequence[Tensor], options: Mapping[str, Any], result: Any
) -> None:
    """A copy made to change the order of elements in memory: by ``contiguous``, ``reshape``, ``flatten``, ``to``."""
    wanted = options.get("memory_format")
    if not recorder.armed or wanted not in _FORMATS or packet not in ("aten.clone", "aten._to_copy"):
        return
    source = operands[0]
    if not isinstance(result, Tensor) or source.dtype != result.dtype or source.is_contiguous(memory_format=wanted):
        return
    recorder.record(
        "layout",
        calls.name(packet),
        f"{_layout(source)} memory is copied to become {_FORMATS[wanted]}",
        tensors=[source],
        moved_bytes=2 * result.numel() * result.element_size(),
        detail=f"strides {tuple(source.stride())} -> {tuple(result.stride())}",
    )


def _layout(tensor: Tensor) -> str:
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    if tensor.is_contiguous():
        return "contiguous"
    return "expanded" if 0 in tensor.stride() else "transposed or sliced"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
