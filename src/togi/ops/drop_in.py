"""Stand-ins for the pairwise functions of torchvision and detectron2 while they are patched.

Each stand-in answers where its answer has the bits of the original and returns None elsewhere; the original is asked
then. So a call never fails because of the patch, and none is rounded otherwise (complete IoU apart: the arc tangent
of the C++ library and that of torch differ in the last bit; and the sign of a zero, which torch.max leaves open).

Left to the originals: integer and half-precision boxes (torchvision takes differences of half-precision corners in
half precision, togi.ops in float32), rotated boxes, mixed dtypes or devices, tensor subclasses, another eps, and every
call under torch.jit, vmap or forward-mode differentiation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from togi.ops.boxes import box_ciou, box_diou, box_giou, box_intersection, box_iou
from togi.ops.measures import EPS, FORMATS
from togi.torch_internals.autograd import is_forward_mode, is_transformed
from togi.torch_internals.compiler import mark_script_original

Answer = Callable[..., Tensor | None]
_DTYPES = (torch.float32, torch.float64)


def _box_iou(boxes1: Tensor, boxes2: Tensor, fmt: str = "xyxy") -> Tensor | None:
    same = fmt in FORMATS and answers(boxes1, boxes2)
    return box_iou(boxes1, boxes2, format=fmt, check=False) if same else None


def _generalized_box_iou(boxes1: Tensor, boxes2: Tensor) -> Tensor | None:
    return box_giou(boxes1, boxes2, check=False) if answers(boxes1, boxes2) else None


def _distance_box_iou(boxes1: Tensor, boxes2: Tensor, eps: float = EPS) -> Tensor | None:
    return box_diou(boxes1, boxes2, check=False) if eps == EPS and answers(boxes1, boxes2) else None


def _complete_box_iou(boxes1: Tensor, boxes2: Tensor, eps: float = EPS) -> Tensor | None:
    return box_ciou(boxes1, boxes2, check=False) if eps == EPS and answers(boxes1, boxes2) else None


def _pairwise_iou(boxes1: Any, boxes2: Any) -> Tensor | None:
    a, b = boxes1.tensor, boxes2.tensor
    return box_iou(a, b, undefined="zero", check=False) if answers(a, b) else None


def _pairwise_intersection(boxes1: Any, boxes2: Any) -> Tensor | None:
    a, b = boxes1.tensor, boxes2.tensor
    return box_intersection(a, b, check=False) if answers(a, b) else None


STAND_INS: dict[str, tuple[str, dict[str, Answer]]] = {
    "torchvision": (
        "torchvision.ops.boxes",
        {
            "box_iou": _box_iou,
            "generalized_box_iou": _generalized_box_iou,
            "distance_box_iou": _distance_box_iou,
            "complete_box_iou": _complete_box_iou,
        },
    ),
    "detectron2": (
        "detectron2.structures.boxes",
        {"pairwise_iou": _pairwise_iou, "pairwise_intersection": _pairwise_intersection},
    ),
}
"""Per library: the module that defines its pairwise functions, and who stands in for each."""


def answers(a: object, b: object) -> bool:
    """True if togi.ops gives the original's bits for these two sets of boxes."""
    # under torch.jit.trace, vmap and forward-mode differentiation the operators are unknown
    transformed = is_transformed() or is_forward_mode() or torch.jit.is_tracing()  # type: ignore[no-untyped-call, attr-defined]
    return not transformed and (
        type(a) in (Tensor, torch.nn.Parameter)
        and type(b) in (Tensor, torch.nn.Parameter)
        and a.dtype == b.dtype  # type: ignore[attr-defined]
        and a.dtype in _DTYPES  # type: ignore[attr-defined]
        and a.device == b.device  # type: ignore[attr-defined]
        and all(t.dim() >= 2 and t.shape[-1] == 4 for t in (a, b))  # type: ignore[attr-defined]
    )


def stand_in(original: Callable[..., Any], answer: Answer, is_active: Callable[[], bool]) -> Callable[..., Any]:
    """``answer`` in the clothes of ``original``; the original itself once ``is_active`` says no.

    Somebody may hold on to it longer than the patch lasts (a model made meanwhile keeps its functions).
    """

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        answered = answer(*args, **options) if is_active() else None
        return original(*args, **options) if answered is None else answered

    mark_script_original(call, original)
    return call
