"""Assigning boxes to anchors as anchor-free and adaptive detectors do, without any N x M matrix: ATSS and the
task-aligned assigner.

Both take the k best anchors of every box, keep some of them, and give an anchor that several boxes want to the one
with which it has the highest IoU. What is N x M in the usual code (distances, IoU, metrics, masks) is made here a tile
at a time and reduced to k anchors per box; all that follows is k x M.

The decisions are those of mmdetection's assigners (other libraries differ, see each function); where values tie the
lower index comes first, which torch.topk leaves open there. Nothing carries a gradient.

Sources: ATSS, Zhang et al. 2020, arXiv:1912.02424; TOOD, Feng et al. 2021, arXiv:2108.07755; conventions:
mmdet.models.task_modules.assigners.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from togi.ops.arguments import BoxError, check_options, check_pair, check_sizes
from togi.ops.measures import Corners, corners, measure

_TILE_PAIRS = 1 << 18
_LEAST_TILE = 1 << 10
MARGIN = 0.01
"""How far inside of a box, in units of the coordinates, the centre of its anchors has to be."""


class Assignment(NamedTuple):
    """The decision of an assigner for N anchors."""

    box: Tensor
    """int64 [N]: the index of the box; -1 for background."""
    iou: Tensor
    """[N]: the IoU with that box; 0 for background."""
    metric: Tensor | None
    """[N]: the alignment with that box, 0 for background; None from ATSS."""


@torch.no_grad()
def assign_atss(
    anchors: Tensor,
    boxes: Tensor,
    level_sizes: Sequence[int],
    *,
    k: int = 9,
    format: str = "xyxy",
    check: bool = True,
) -> Assignment:
    """Adaptive training sample selection: of the k anchors per pyramid level whose centres are nearest to a box's,
    those whose IoU reaches mean + standard deviation of all these candidates and whose centre is inside of the box.

    Args:
        anchors: [N, 4], level after level.
        boxes: [M, 4], of the same dtype and on the same device.
        level_sizes: how many anchors each level has; they add up to N.
        k: candidates per level; all of a level that has fewer.
        format, check: as in ``togi.ops.boxes``.

    Returns:
        Assignment, without a metric. Memory: a tile of pairs, and k x levels x M.

    Raises:
        BoxError: see ``togi.ops.boxes``; and a ``k`` below 1 or levels that do not add up.
    """
    _check(anchors, boxes, format, k, check)
    if sum(level_sizes) != len(anchors) or min(level_sizes, default=0) < 0:
        raise BoxError(
            f"level_sizes={list(level_sizes)} add up to {sum(level_sizes)}, but there are {len(anchors)} anchors: give "
            "the number of anchors of every level, in their order."
        )
    if 0 in (len(anchors), len(boxes)):
        return _background(anchors, with_metric=False)
    placed, targets = corners(anchors, format), corners(boxes, format)
    nearest, start = [], 0
    for size in filter(None, level_sizes):  # an empty level has no candidate
        level = Corners(*(t[start : start + size] for t in placed))
        nearest.append(start + _best(k, size, len(boxes), functools.partial(_nearness, targets, level)))
        start += size
    candidates = torch.cat(nearest)
    iou = _candidate_iou(placed, targets, candidates)
    # The deviation of a single candidate is not defined: nothing reaches it, as in mmdetection.
    threshold = iou.mean(0) + (iou.std(0) if len(iou) > 1 else torch.nan)
    positive = (iou >= threshold) & _is_inside(placed, targets, candidates)
    return _give(anchors, candidates, positive, iou, None)


@torch.no_grad()
def assign_task_aligned(
    predictions: Tensor,
    scores: Tensor,
    anchors: Tensor,
    boxes: Tensor,
    labels: Tensor,
    *,
    k: int = 13,
    alpha: float = 1.0,
    beta: float = 6.0,
    format: str = "xyxy",
    check: bool = True,
) -> Assignment:
    """Task-aligned assignment: of the k anchors of a box with the highest score**alpha * IoU**beta, those where that is
    above 0 and the anchor's centre is inside of the box. TOOD's form, as in mmdetection (ultralytics takes complete
    IoU, looks for the k among the anchors inside of the box alone, and settles conflicts among all boxes around it).

    Args:
        predictions: [N, 4], the boxes that the model predicts at each anchor; taken as they are, whatever their size.
        scores: [N, C], the probability of each class.
        anchors: [N, 4].
        boxes: [M, 4], of the same dtype and on the same device, with their classes ``labels``, [M] of any integer
            dtype.
        k, alpha, beta: the paper's.
        format, check: as in ``togi.ops.boxes``.

    Returns:
        Assignment, with the metric. Memory: a tile of pairs, and k x M.

    Raises:
        BoxError: see ``togi.ops.boxes``; and shapes that do not belong together, a ``k`` below 1, unknown labels.
    """
    _check(anchors, boxes, format, k, check)
    check_pair(("predictions", "boxes"), predictions, boxes)
    _check_classes(predictions, scores, anchors, boxes, labels)
    classes = labels.long()  # bytes would choose like a mask
    if 0 in (len(anchors), len(boxes)):
        return _background(anchors, with_metric=True)
    placed, targets, predicted = corners(anchors, format), corners(boxes, format), corners(predictions, format)

    def alignment(at: slice) -> Tensor:
        iou = measure("iou", targets.rows(), Corners(*(t[at] for t in predicted)).columns(), "zero")
        return scores[at].to(iou.dtype).t()[classes] ** alpha * iou**beta

    candidates = _best(k, len(anchors), len(boxes), alignment)
    iou = _candidate_iou(predicted, targets, candidates)
    metric = scores[candidates, classes].to(iou.dtype) ** alpha * iou**beta
    positive = (metric > 0) & _is_inside(placed, targets, candidates)
    return _give(anchors, candidates, positive, iou, metric)


def _best(k: int, anchors: int, boxes: int, values: Callable[[slice], Tensor]) -> Tensor:
    """The ``k`` anchors with the highest of ``values(slice of the anchors)`` [M, T] for each box: [min(k, N), M], best
    first, the lower index at ties, NaN before all. There are anchors and boxes."""
    held: tuple[Tensor, Tensor] | None = None
    for at in _tiles(anchors, boxes):
        value = values(at)
        index = torch.arange(at.start, at.stop, device=value.device).expand_as(value)
        if held is not None:
            value, index = torch.cat([held[0], value], 1), torch.cat([held[1], index], 1)
        order = _first_largest(value, min(k, value.shape[1]))
        held = value.gather(1, order), index.gather(1, order)
    assert held is not None
    return held[1].t()


def _first_largest(values: Tensor, k: int) -> Tensor:
    """Positions of the k largest of every row. Of equal values the first: torch.topk promises that only where there
    are none, so the position is made part of what is compared."""
    if values.dtype == torch.float64:
        return values.sort(dim=1, descending=True, stable=True).indices[:, :k]
    bits = values.masked_fill(values.isnan(), torch.nan).add_(0.0).view(torch.int32)
    rank = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    position = torch.arange(values.shape[1], device=values.device)
    return (rank * 2**32 + (2**32 - 1 - position)).topk(k, dim=1).indices


def _tiles(anchors: int, boxes: int) -> Iterator[slice]:
    length = max(_LEAST_TILE, _TILE_PAIRS // boxes)
    for start in range(0, anchors, length):
        yield slice(start, min(start + length, anchors))


def _nearness(boxes: Corners, anchors: Corners, at: slice) -> Tensor:
    """The distance between the centres, negative, [M, T]."""
    x, y = _centre(anchors)
    box_x, box_y = _centre(boxes)
    return -((x[at] - box_x[:, None]) ** 2 + (y[at] - box_y[:, None]) ** 2).sqrt()


def _centre(box: Corners) -> tuple[Tensor, Tensor]:
    return (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2


def _candidate_iou(anchors: Corners, boxes: Corners, candidates: Tensor) -> Tensor:
    """IoU of every box with its candidates, [K, M]."""
    return measure("iou", Corners(*(t[candidates] for t in anchors)), boxes, "zero")


def _is_inside(anchors: Corners, boxes: Corners, candidates: Tensor) -> Tensor:
    """A mask of where the centre of a candidate is inside of the box by more than ``MARGIN``, [K, M]."""
    x, y = (t[candidates] for t in _centre(anchors))
    return torch.stack([x - boxes.x1, y - boxes.y1, boxes.x2 - x, boxes.y2 - y]).amin(0) > MARGIN


def _give(anchors: Tensor, candidates: Tensor, positive: Tensor, iou: Tensor, metric: Tensor | None) -> Assignment:
    """Every wanted anchor to the box of highest IoU among those that want it; the first at ties. All are [K, M]."""
    assignment = _background(anchors, with_metric=metric is not None)
    box = torch.arange(iou.shape[1], device=iou.device).expand_as(iou)
    best = torch.full_like(assignment.iou, -torch.inf).scatter_reduce_(0, candidates[positive], iou[positive], "amax")
    wins = positive & (iou == best[candidates])
    first = torch.full_like(assignment.box, iou.shape[1]).scatter_reduce_(0, candidates[wins], box[wins], "amin")
    wins &= box == first[candidates]
    anchor = candidates[wins]
    assignment.box[anchor], assignment.iou[anchor] = box[wins], iou[wins]
    if assignment.metric is not None and metric is not None:
        assignment.metric[anchor] = metric[wins]
    return assignment


def _background(anchors: Tensor, *, with_metric: bool) -> Assignment:
    iou = torch.zeros_like(corners(anchors[:, :4], "xyxy").x1)
    box = torch.full(iou.shape, -1, dtype=torch.int64, device=iou.device)
    return Assignment(box, iou, torch.zeros_like(iou) if with_metric else None)


def _check(anchors: Tensor, boxes: Tensor, format: str, k: int, check: bool) -> None:
    check_options(format)
    check_pair(("anchors", "boxes"), anchors, boxes)
    for name, tensor in (("anchors", anchors), ("boxes", boxes)):
        if tensor.dim() != 2:
            raise BoxError(f"{name} {list(tensor.shape)}: give [N, 4], one image at a time.")
    if k < 1:
        raise BoxError(f"k={k}: give at least 1 candidate per box.")
    if check and anchors.device.type == "cpu":
        check_sizes(("anchors", "boxes"), anchors, boxes, format)


def _check_classes(predictions: Tensor, scores: Tensor, anchors: Tensor, boxes: Tensor, labels: Tensor) -> None:
    if predictions.shape != anchors.shape:
        raise BoxError(f"predictions {list(predictions.shape)} and anchors {list(anchors.shape)}: give one for each.")
    if scores.dim() != 2 or len(scores) != len(anchors) or not scores.is_floating_point():
        raise BoxError(f"scores {list(scores.shape)} ({scores.dtype}): give floats [{len(anchors)}, classes].")
    is_integer = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if labels.shape != boxes.shape[:1] or not is_integer:
        labels_given = f"labels {list(labels.shape)} ({labels.dtype})"
        raise BoxError(f"{labels_given}: give an integer for each of {len(boxes)} boxes.")
    if labels.device.type != "cpu" or not len(labels):  # elsewhere it would wait for the device
        return
    (least, most), classes = map(int, labels.long().aminmax()), scores.shape[1]
    if not 0 <= least <= most < classes:
        raise BoxError(
            f"labels from {least} to {most}, but scores {list(scores.shape)} have classes 0 to {classes - 1}: labels "
            "start at 0, without the background."
        )
