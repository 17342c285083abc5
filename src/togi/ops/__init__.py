"""Lean pairwise operations on boxes: no N x M intermediates. Usable on their own; nothing of the tuner is imported.

``box_iou`` and its kin give matrices or aligned values; ``match_boxes`` and ``topk_iou`` reduce without a matrix; the
losses are differentiable; ``backend()`` tells what computes here and why. ``linear_cross_entropy`` is the loss of a
large vocabulary without its logits. See docs/ops.md.
"""

from togi.ops.arguments import BoxError
from togi.ops.assign import Assignment, assign_atss, assign_task_aligned
from togi.ops.backend import Backend, BackendError, backend
from togi.ops.boxes import (
    box_ciou,
    box_diou,
    box_giou,
    box_intersection,
    box_iou,
    ciou_loss,
    diou_loss,
    giou_loss,
    iou_loss,
)
from togi.ops.linear_arguments import CrossEntropyError, TargetError
from togi.ops.linear_cross_entropy import linear_cross_entropy
from togi.ops.matching import BoxMatches, TopKIoU, match_boxes, topk_iou
from togi.ops.nms import batched_nms, nms
from togi.ops.patch import Patch, PatchError, patch

__all__ = [
    "Assignment",
    "Backend",
    "BackendError",
    "BoxError",
    "BoxMatches",
    "CrossEntropyError",
    "Patch",
    "PatchError",
    "TargetError",
    "TopKIoU",
    "assign_atss",
    "assign_task_aligned",
    "backend",
    "batched_nms",
    "box_ciou",
    "box_diou",
    "box_giou",
    "box_intersection",
    "box_iou",
    "ciou_loss",
    "diou_loss",
    "giou_loss",
    "iou_loss",
    "linear_cross_entropy",
    "match_boxes",
    "nms",
    "patch",
    "topk_iou",
]
