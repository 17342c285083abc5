"""Matching anchors to boxes, and the k best boxes of every anchor, without ever holding their N x M matrix.

Decisions are those of torchvision's and detectron2's ``Matcher`` on the eager IoU matrix, bit for bit: the same index
at ties (the first), the same thresholds on the same float, the same low-quality matches.

Sources: torchvision.models.detection._utils.Matcher; detectron2.modeling.matcher.Matcher; low-quality matches: Ren et
al. 2015, arXiv:1506.01497, section 3.1.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from togi.ops.arguments import ANCHORS_AND_BOXES, BoxError, check_options, check_pair, check_thresholds
from togi.ops.boxes import expanded, per_image
from togi.ops.operators import match, topk

BELOW, BETWEEN = -1, -2


class BoxMatches(NamedTuple):
    """The result of ``match_boxes``. Nothing in it carries a gradient."""

    iou: Tensor
    """[..., N]: the best IoU of every anchor."""
    box: Tensor
    """[..., N] int64: the index of the box that has it, the first at ties; -1 where there are no boxes."""
    label: Tensor | None
    """[..., N] int8: the label of the level between the thresholds; None without thresholds."""
    anchor_iou: Tensor | None
    """[..., M]: the best IoU of every box; None unless asked for by ``per_box`` or ``low_quality``."""
    anchor: Tensor | None
    """[..., M] int64: the index of the anchor that has it, the first at ties; -1 where there are no anchors."""

    def matched_box(self) -> Tensor:
        """torchvision's form, int64: the box where the label is 1, -1 (below) where it is 0, -2 (between) elsewhere."""
        if self.label is None:
            return self.box
        unmatched = torch.where(self.label == 0, BELOW, BETWEEN)
        return torch.where(self.label == 1, self.box, unmatched)


@per_image(*ANCHORS_AND_BOXES)
def match_boxes(
    anchors: Tensor,
    boxes: Tensor,
    *,
    thresholds: float | Sequence[float] | None = None,
    labels: Sequence[int] | None = None,
    low_quality: bool = False,
    per_box: bool = False,
    format: str = "xyxy",
    undefined: str = "nan",
    check: bool = True,
) -> BoxMatches:
    """The best box for every anchor, and on request the best anchor for every box, in one pass over the pairs.

    Extra memory beyond inputs and results is of the order of a tile per thread, a few numbers per box, and one per
    anchor where these have to be brought in order.

    Args:
        anchors: [..., N, 4], float32, float64, float16 or bfloat16, or a list of [N_i, 4].
        boxes: [..., M, 4] (the ground truth), or a list of [M_i, 4]; leading dimensions broadcast against those of
            anchors.
        thresholds: ascending. (0.3, 0.7) makes three levels: IoU < 0.3, 0.3 <= IoU < 0.7, 0.7 <= IoU.
        labels: one int8 per level. By default 0 for the lowest level, 1 for the highest, -1 between. An anchor whose
            best IoU is NaN belongs to no level and is labelled 1, as in both libraries.
        low_quality: label 1 also for every anchor that no other anchor beats for some box (ties included), however
            low the IoU. A box that no anchor overlaps makes *all* anchors of IoU 0 with it positive: so it is in both
            libraries.
        per_box: also return the best anchor of every box. ``low_quality`` returns it anyway.
        format, undefined, check: as in ``togi.ops.boxes``. ``undefined="nan"`` and NaN first is torchvision's way (a
            NaN is the best IoU of its row, as in torch.max); ``"zero"`` is detectron2's.

    Returns:
        BoxMatches; one per image where a list was given. Without boxes: IoU 0, index -1, the lowest label.

    Raises:
        BoxError: see ``togi.ops.boxes``; and thresholds that do not ascend or do not fit the labels, or
            ``low_quality`` without any.
    """
    check_options(format, undefined)
    a, b = (t.detach() for t in expanded(ANCHORS_AND_BOXES, *check_pair(ANCHORS_AND_BOXES, anchors, boxes)))
    levels = _levels(thresholds, labels, low_quality)
    wants_boxes = per_box or low_quality
    iou, box, anchor_iou, anchor, tied = match(a, b, format, undefined, wants_boxes, low_quality, check)
    label = None if levels is None else _label(iou, *levels)
    if label is not None and low_quality:
        label.masked_fill_(tied, 1)
    return BoxMatches(iou, box, label, anchor_iou if wants_boxes else None, anchor if wants_boxes else None)


def _levels(
    thresholds: float | Sequence[float] | None, labels: Sequence[int] | None, low_quality: bool
) -> tuple[list[float], list[int]] | None:
    if thresholds is None:
        if labels is not None or low_quality:
            given = "labels" if labels is not None else "low_quality=True"
            raise BoxError(f"{given} without thresholds has nothing to act on: give thresholds, such as (0.3, 0.7).")
        return None
    ascending = [float(t) for t in thresholds] if isinstance(thresholds, Sequence) else [float(thresholds)]
    named = list(labels) if labels is not None else [0, *[-1] * (len(ascending) - 1), 1]
    check_thresholds(ascending, named)
    return ascending, named


def _label(iou: Tensor, thresholds: list[float], labels: list[int]) -> Tensor:
    """Level by level with the comparisons of both libraries, so that a threshold is rounded as they round it."""
    label = torch.ones_like(iou, dtype=torch.int8)
    label.masked_fill_(iou < thresholds[0], labels[0])
    for low, high, name in zip(thresholds, [*thresholds[1:], float("inf")], labels[1:], strict=True):
        label.masked_fill_((iou >= low) & (iou < high), name)
    return label


class TopKIoU(NamedTuple):
    """The result of ``topk_iou``: both [..., N, k], best first."""

    iou: Tensor
    box: Tensor
    """int64."""


@per_image(*ANCHORS_AND_BOXES)
def topk_iou(
    anchors: Tensor,
    boxes: Tensor,
    k: int,
    *,
    format: str = "xyxy",
    undefined: str = "nan",
    check: bool = True,
) -> TopKIoU:
    """The ``k`` boxes of highest IoU for every anchor. For the k best anchors of every box swap the first two
    arguments.

    Args:
        anchors: [..., N, 4] or a list of [N_i, 4], and ``boxes`` alike: see ``match_boxes``.
        k: from 1 to the number of boxes.
        format, undefined, check: as in ``togi.ops.boxes``.

    Returns:
        IoU, descending (NaN first, as in torch.topk), and the indices of the boxes. Equal IoU: the lower index first,
        where torch.topk promises no order. No gradients.

    Raises:
        BoxError: see ``togi.ops.boxes``; and a ``k`` out of range.
    """
    check_options(format, undefined)
    a, b = (t.detach() for t in expanded(ANCHORS_AND_BOXES, *check_pair(ANCHORS_AND_BOXES, anchors, boxes)))
    if not 1 <= k <= b.shape[-2]:
        raise BoxError(
            f"k={k} of boxes {list(boxes.shape)}: give a k from 1 to {b.shape[-2]}, such as min(k, {b.shape[-2]})."
        )
    return TopKIoU(*topk(a, b, k, format, undefined, check))
