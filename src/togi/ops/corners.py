"""The three formats of axis-aligned boxes, taken apart into corners and area with torchvision's operations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FORMATS = ("xyxy", "xywh", "cxcywh")


class Corners(NamedTuple):
    """Left, top, right, bottom and area of boxes: five tensors of the same shape."""

    x1: Tensor
    y1: Tensor
    x2: Tensor
    y2: Tensor
    area: Tensor

    def rows(self) -> Corners:
        """As the rows of a matrix of pairs: [..., N] becomes [..., N, 1]."""
        return Corners(*(t.unsqueeze(-1) for t in self))

    def columns(self) -> Corners:
        """As its columns: [..., M] becomes [..., 1, M]."""
        return Corners(*(t.unsqueeze(-2) for t in self))


def negative_sizes(boxes: Tensor, format: str) -> Tensor:
    """Which of boxes [N, 4] have a width or height below 0; bool [N]. NaN is not below 0."""
    wrong = boxes[:, 2:] < boxes[:, :2] if format == "xyxy" else boxes[:, 2:] < 0
    return wrong.any(1)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which dtype boxes are computed and answered: float64 in its own, all others in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def corners(boxes: Tensor, format: str) -> Corners:
    """The corners of boxes [..., 4], in ``compute_dtype``. The area of a width and a height is their product."""
    a, b, c, d = boxes.to(compute_dtype(boxes.dtype)).unbind(-1)
    if format == "xyxy":
        return Corners(a, b, c, d, (c - a) * (d - b))
    if format == "xywh":
        return Corners(a, b, a + c, b + d, c * d)
    return Corners(a - c / 2, b - d / 2, a + c / 2, b + d / 2, c * d)
