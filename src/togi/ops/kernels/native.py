"""The operators on the CPU through the compiled kernel: strided inputs of any floating dtype are read in place.

Threads: at most ``torch.get_num_threads()``, started per call inside of the kernel and gone when it returns. The
interpreter is free meanwhile (ctypes releases its lock).
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from togi.ops.kernels.library import KernelLibrary
from togi.ops.measures import FORMATS, KINDS

_DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
_SAW_NEGATIVE, _NO_MEMORY = 1, 2
_MOST_ROWS = 2**31 - 1
"""Rows are counted in 32 bits next to the 32 bits of a float."""


class _View(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("column_stride", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("format", ctypes.c_int32),
    ]


_FLAGS = ("-ffp-contract=off",)
"""A fused multiply-add would round once: other bits than the eager formula."""
BOXES = KernelLibrary(Path(__file__).with_name("boxes.cpp"), _FLAGS)
NMS = KernelLibrary(Path(__file__).with_name("nms.cpp"), _FLAGS)


def why_not() -> str | None:
    """The reason why the kernel is not there; None where it is. Compiles on the first call."""
    return BOXES.why_not()


def match(
    anchors: Tensor, boxes: Tensor, format: str, undefined: str, results: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
) -> bool:
    """Fills ``results`` = (best, index, column best, column index, tied); those of size 0 are not wanted.

    True where a box has a negative size, here and in the other two.
    """
    return _run("togi_match", anchors, boxes, format, _undefined(undefined), *map(_pointer, results))


def topk(anchors: Tensor, boxes: Tensor, format: str, undefined: str, values: Tensor, indices: Tensor) -> bool:
    """Fills ``values`` and ``indices``, both [N, k] with 1 <= k <= M."""
    k = ctypes.c_int64(values.shape[1])
    return _run("togi_topk", anchors, boxes, format, _undefined(undefined), k, _pointer(values), _pointer(indices))


def matrix(anchors: Tensor, boxes: Tensor, kind: str, format: str, undefined: str, out: Tensor) -> bool:
    """Fills ``out`` [N, M]."""
    kind_code = ctypes.c_int32(KINDS[kind])
    return _run("togi_matrix", anchors, boxes, format, kind_code, _undefined(undefined), _pointer(out))


def nms(planes: Tensor, ends: Tensor, threshold: float, kept: Tensor) -> None:
    """Fills ``kept`` bool [N] for ``planes`` [5, N] (corners and area, contiguous); class c ends at ``ends[c]``."""
    status: int = NMS.get().togi_nms(
        _pointer(planes),
        ctypes.c_int64(planes.shape[1]),
        ctypes.c_int32(planes.dtype == torch.float64),
        _pointer(ends),
        ctypes.c_int64(len(ends)),
        ctypes.c_double(threshold),
        _pointer(kept),
        ctypes.c_int32(torch.get_num_threads()),
    )
    if status == _NO_MEMORY:
        raise MemoryError(f"togi_nms: no memory for {planes.shape[1]} boxes")


def _run(name: str, anchors: Tensor, boxes: Tensor, format: str, *rest: object) -> bool:
    if max(len(anchors), len(boxes)) > _MOST_ROWS:
        raise ValueError(f"{max(len(anchors), len(boxes))} boxes in one call; give at most {_MOST_ROWS}")
    views = [ctypes.byref(_view(t, format)) for t in (anchors, boxes)]
    status: int = getattr(BOXES.get(), name)(*views, *rest, ctypes.c_int32(torch.get_num_threads()))
    if status == _NO_MEMORY:
        raise MemoryError(f"{name}: no memory for {len(anchors)} x {len(boxes)} boxes")
    return status == _SAW_NEGATIVE


def _view(tensor: Tensor, format: str) -> _View:
    return _View(
        tensor.data_ptr(), len(tensor), tensor.stride(0), tensor.stride(1), _DTYPES[tensor.dtype], FORMATS[format]
    )


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr() if tensor.numel() else None)


def _undefined(undefined: str) -> ctypes.c_int32:
    return ctypes.c_int32(undefined == "zero")
