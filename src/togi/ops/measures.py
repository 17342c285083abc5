"""The measures of two boxes in plain torch, for any shapes that broadcast: the definition that the kernels must agree
with.

Boxes come in three formats and are taken apart into corners and area with torchvision's operations.

Sources: generalized IoU, Rezatofighi et al. 2019, arXiv:1902.09630; distance and complete IoU, Zheng et al. 2020,
arXiv:1911.08287. Order of operations and ``EPS``: torchvision.ops.boxes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

FORMATS = {"xyxy": 0, "xywh": 1, "cxcywh": 2}
KINDS = {"intersection": 0, "iou": 1, "giou": 2, "diou": 3, "ciou": 4}
"""Kernels know formats and kinds by these numbers."""


class Corners(NamedTuple):
    """Left, top, right, bottom and area of boxes: five tensors of the same shape."""

    x1: Tensor
    y1: Tensor
    x2: Tensor
    y2: Tensor
    area: Tensor

    def rows(self) -> Corners:
        """The rows of a matrix of pairs: [..., N] becomes [..., N, 1]."""
        return Corners(*(t.unsqueeze(-1) for t in self))

    def columns(self) -> Corners:
        """The columns of a matrix of pairs: [..., M] becomes [..., 1, M]."""
        return Corners(*(t.unsqueeze(-2) for t in self))


def negative_sizes(boxes: Tensor, format: str) -> Tensor:
    """A mask bool [N] of the boxes [N, 4] that have a width or height below 0. NaN is not below 0."""
    wrong = boxes[:, 2:] < boxes[:, :2] if format == "xyxy" else boxes[:, 2:] < 0
    return wrong.any(1)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float64 stays, all others become float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def corners(boxes: Tensor, format: str) -> Corners:
    """The corners of boxes [..., 4], in ``compute_dtype``. The area of a width and a height is their product."""
    a, b, c, d = boxes.to(compute_dtype(boxes.dtype)).unbind(-1)
    if format == "xyxy":
        return Corners(a, b, c, d, (c - a) * (d - b))
    if format == "xywh":
        return Corners(a, b, a + c, b + d, c * d)
    return Corners(a - c / 2, b - d / 2, a + c / 2, b + d / 2, c * d)


EPS = 1e-7
"""Added to the squared diagonal in distance and complete IoU; torchvision's default."""


class Overlap(NamedTuple):
    """Intersection and union of two boxes, as areas."""

    intersection: Tensor
    union: Tensor


def overlap(a: Corners, b: Corners) -> Overlap:
    """Intersection and union. An intersection without extent is 0; a NaN coordinate makes it NaN."""
    width = (torch.minimum(a.x2, b.x2) - torch.maximum(a.x1, b.x1)).clamp(min=0)
    height = (torch.minimum(a.y2, b.y2) - torch.maximum(a.y1, b.y1)).clamp(min=0)
    intersection = width * height
    return Overlap(intersection, (a.area + b.area) - intersection)


def measure(kind: str, a: Corners, b: Corners, undefined: str = "nan", eps: float = 0.0) -> Tensor:
    """``intersection``, ``iou``, ``giou``, ``diou`` or ``ciou`` of boxes whose corners broadcast against each other.

    Args:
        undefined: only for ``iou``: ``zero`` gives 0 to every pair without a positive intersection (0/0 and NaN among
            them).
        eps: added to denominators that can be 0 (union, hull): what torchvision's losses do and its measures do not.
    """
    intersection, union = overlap(a, b)
    if kind == "intersection":
        return intersection
    iou = intersection / (union + eps) if eps else intersection / union
    if kind == "iou":
        return iou if undefined == "nan" else torch.where(intersection > 0, iou, 0)
    width = (torch.maximum(a.x2, b.x2) - torch.minimum(a.x1, b.x1)).clamp(min=0)
    height = (torch.maximum(a.y2, b.y2) - torch.minimum(a.y1, b.y1)).clamp(min=0)
    if kind == "giou":
        hull = width * height
        return iou - (hull - union) / (hull + eps if eps else hull)
    diou = iou - distance_squared(a, b) / (width**2 + height**2 + EPS)
    return diou if kind == "diou" else diou - aspect_penalty(a, b, iou)


def distance_squared(a: Corners, b: Corners) -> Tensor:
    """Between the centres."""
    x = (a.x1 + a.x2) / 2 - (b.x1 + b.x2) / 2
    y = (a.y1 + a.y2) / 2 - (b.y1 + b.y2) / 2
    return x**2 + y**2


def aspect_penalty(a: Corners, b: Corners, iou: Tensor) -> Tensor:
    """The difference of the aspect ratios, weighted by alpha, which is constant in gradients (arXiv:1911.08287)."""
    v = (4 / math.pi**2) * (angle(a) - angle(b)) ** 2
    with torch.no_grad():
        alpha = v / (1 - iou + v + EPS)
    return alpha * v


def angle(box: Corners) -> Tensor:
    """The arc tangent of width over height."""
    return torch.atan((box.x2 - box.x1) / (box.y2 - box.y1))
