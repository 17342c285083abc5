"""Pairwise boxes in plain torch, as the advice writes them. TorchScript can script every function."""

from __future__ import annotations

import torch
from torch import Tensor


def made_boxes(count: int, generator: torch.Generator) -> Tensor:
    """``[count, 4]`` xyxy boxes of an image of 1,000 x 1,000, sides of 10 to 110."""
    corner = torch.rand(count, 2, generator=generator) * 890
    return torch.cat([corner, corner + 10 + torch.rand(count, 2, generator=generator) * 100], dim=1)


def intersection(anchors: Tensor, boxes: Tensor) -> Tensor:
    """``[N, 4]``, ``[M, 4]`` -> ``[N, M]``."""
    lt = torch.max(anchors[:, None, :2], boxes[:, :2])
    rb = torch.min(anchors[:, None, 2:], boxes[:, 2:])
    wh = (rb - lt).clamp(min=0)
    return wh[:, :, 0] * wh[:, :, 1]


def intersection_freed(anchors: Tensor, boxes: Tensor) -> Tensor:
    """The same with ``lt`` and ``rb`` deleted after their last use."""
    lt = torch.max(anchors[:, None, :2], boxes[:, :2])
    rb = torch.min(anchors[:, None, 2:], boxes[:, 2:])
    wh = rb - lt
    del lt, rb
    wh = wh.clamp(min=0)
    return wh[:, :, 0] * wh[:, :, 1]


def best_box(anchors: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """``[N]`` best IoU and ``[N]`` its index, through the matrix."""
    shared = intersection(anchors, boxes)
    area_a = (anchors[:, 2] - anchors[:, 0]) * (anchors[:, 3] - anchors[:, 1])
    area_b = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    best, index = (shared / (area_a[:, None] + area_b - shared)).max(dim=1)
    return best, index
