"""Losses of predicted boxes against their targets, box by box: 1 less the IoU of some kind.

Plain torch on aligned boxes: O(N) is kept for the gradient. The values are those of torchvision.ops, whose ``eps``
keeps boxes without an area from dividing by 0.

Sources: arXiv:1902.09630 (generalized), arXiv:1911.08287 (distance, complete); torchvision.ops.*_box_iou_loss.
"""

from __future__ import annotations

from torch import Tensor

from togi.ops.arguments import BoxError, check_aligned, check_options, check_pair
from togi.ops.corners import corners
from togi.ops.formula import EPS, measure

NAMES = ("predicted", "target")
REDUCTIONS = ("none", "mean", "sum")


def iou_loss(predicted: Tensor, target: Tensor, *, reduction: str = "none", format: str = "xyxy") -> Tensor:
    """1 - IoU. No gradient where boxes do not overlap: the other losses have one."""
    return _loss("iou", predicted, target, reduction, format)


def giou_loss(predicted: Tensor, target: Tensor, *, reduction: str = "none", format: str = "xyxy") -> Tensor:
    """1 - generalized IoU, from 0 to 2."""
    return _loss("giou", predicted, target, reduction, format)


def diou_loss(predicted: Tensor, target: Tensor, *, reduction: str = "none", format: str = "xyxy") -> Tensor:
    """1 - distance IoU, from 0 to 2."""
    return _loss("diou", predicted, target, reduction, format)


def ciou_loss(predicted: Tensor, target: Tensor, *, reduction: str = "none", format: str = "xyxy") -> Tensor:
    """1 - complete IoU. NaN for a box of width and height 0, whose aspect ratio is not defined."""
    return _loss("ciou", predicted, target, reduction, format)


def _loss(kind: str, predicted: Tensor, target: Tensor, reduction: str, format: str) -> Tensor:
    """Both [..., 4] of one shape; ``none`` gives [...], else a scalar (0 for no boxes). Negative sizes are not
    refused: a network that is being trained predicts them, and has to get a gradient."""
    check_options(format)
    a, b = check_pair(NAMES, predicted, target)
    check_aligned(NAMES, a, b)
    if reduction not in REDUCTIONS:
        raise BoxError(f"reduction={reduction!r} is unknown; it can be {', '.join(REDUCTIONS)}")
    loss = 1 - measure(kind, corners(a, format), corners(b, format), eps=EPS)
    if reduction == "none":
        return loss
    total = loss.sum()
    return total if reduction == "sum" else total / max(1, loss.numel())
