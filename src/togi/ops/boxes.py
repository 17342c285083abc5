"""Measures of boxes, for all pairs or box by box: intersection, IoU, generalized, distance and complete IoU.

Also the losses made of them: 1 less the IoU.

Common to all of them:

- ``boxes1`` [..., N, 4] and ``boxes2`` [..., M, 4], leading dimensions broadcast; the result is [..., N, M]. With
  ``aligned=True`` both are [..., 4] of the same shape and the result drops the last dimension. Lists of tensors (one
  per image; one of both may be a single tensor for all) give a list of results.
- float32, float64, float16 and bfloat16. The half types are converted exactly and computed in float32, and so is the
  result: half a digit of a width is not lost on the way.
- ``format``: ``xyxy`` (corners), ``xywh`` (left, top, width, height), ``cxcywh`` (centre, width, height).
- Memory: the result and less than 1 MiB with the compiled kernels. Tiles of torch (gradients; where there is no kernel,
  as ``togi.ops.backend`` tells; complete IoU on a device) take some ten numbers a pair, for 16 thousand pairs at a time
  on the CPU and 4 million on a device, and a few per box. Gradients keep the boxes alone (first order only). Aligned
  measures are plain torch: O(N) is kept, and they can be differentiated twice.
- Boxes without an area (a point, a line) overlap nothing: intersection 0. Two of them have IoU 0/0 = NaN, or 0 with
  ``undefined="zero"``. NaN coordinates give NaN. Infinite corners follow IEEE arithmetic: a box of infinite area has
  IoU 0 with a finite box (inf - inf, where both are infinite, is NaN). These are torchvision's answers;
  ``undefined="zero"`` gives detectron2's, which are 0 wherever the intersection is not positive.
- A negative width or height raises BoxError; ``check=False`` skips that and applies the formula as it stands. On an
  accelerator it is not checked, because the check would have to wait for the device.

Raises BoxError: not a tensor, a last dimension other than 4, integer boxes, two dtypes or devices, shapes that do not
fit, a negative size, an unknown option.

The losses take predicted boxes and their targets box by box, in plain torch on aligned boxes: O(N) is kept for the
gradient. Their values are those of torchvision.ops, whose ``eps`` keeps boxes without an area from dividing by 0.

Sources: torchvision.ops.boxes (formulas and order of operations), detectron2.structures.pairwise_iou
(``undefined="zero"``); losses: arXiv:1902.09630 (generalized), arXiv:1911.08287 (distance, complete),
torchvision.ops.*_box_iou_loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

import torch
from torch import Tensor

from togi.ops.arguments import (
    BOXES,
    REDUCTIONS,
    batch_shape,
    check_aligned,
    check_lists,
    check_one_of,
    check_options,
    check_pair,
    check_sizes,
)
from togi.ops.measures import EPS, corners, measure
from togi.ops.operators import box_matrix

P = ParamSpec("P")
R = TypeVar("R")

Boxes = Tensor | Sequence[Tensor]


class PerImage(Protocol[P, R]):
    """A function of two sets of boxes that takes lists of them as well. One of both may be a single tensor for all
    images."""

    @overload
    def __call__(self, first: Tensor, second: Tensor, /, *args: P.args, **options: P.kwargs) -> R: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, first: Boxes, second: Boxes, /, *args: P.args, **options: P.kwargs) -> list[R]: ...


def per_image(first: str, second: str) -> Callable[[Callable[Concatenate[Tensor, Tensor, P], R]], PerImage[P, R]]:
    """Lets a function take a list of tensors for either of its first two arguments, which are named ``first`` and
    ``second``."""

    def decorate(function: Callable[Concatenate[Tensor, Tensor, P], R]) -> PerImage[P, R]:
        @functools.wraps(function)
        def call(a: Boxes, b: Boxes, *args: P.args, **options: P.kwargs) -> R | list[R]:
            images = check_lists((first, second), a, b)
            if images is None:
                return function(cast(Tensor, a), cast(Tensor, b), *args, **options)
            pairs = zip(_one_each(a, images), _one_each(b, images), strict=True)
            return [function(x, y, *args, **options) for x, y in pairs]

        return cast("PerImage[P, R]", call)

    return decorate


def _one_each(boxes: Boxes, images: int) -> Sequence[Tensor]:
    return boxes if isinstance(boxes, (list, tuple)) else [cast(Tensor, boxes)] * images


@per_image(*BOXES)
def box_intersection(
    boxes1: Tensor, boxes2: Tensor, *, format: str = "xyxy", aligned: bool = False, check: bool = True
) -> Tensor:
    """The area that two boxes share, in squared units of the coordinates."""
    return _measure("intersection", boxes1, boxes2, format, "nan", aligned, check)


@per_image(*BOXES)
def box_iou(
    boxes1: Tensor,
    boxes2: Tensor,
    *,
    format: str = "xyxy",
    aligned: bool = False,
    undefined: str = "nan",
    check: bool = True,
) -> Tensor:
    """Intersection over union, from 0 to 1; float32 and float64 have the same bits as torchvision.ops.box_iou."""
    return _measure("iou", boxes1, boxes2, format, undefined, aligned, check)


@per_image(*BOXES)
def box_giou(
    boxes1: Tensor, boxes2: Tensor, *, format: str = "xyxy", aligned: bool = False, check: bool = True
) -> Tensor:
    """Generalized IoU, from -1 to 1 (arXiv:1902.09630): IoU less the share of the hull that neither box covers."""
    return _measure("giou", boxes1, boxes2, format, "nan", aligned, check)


@per_image(*BOXES)
def box_diou(
    boxes1: Tensor, boxes2: Tensor, *, format: str = "xyxy", aligned: bool = False, check: bool = True
) -> Tensor:
    """Distance IoU (arXiv:1911.08287): IoU less the squared distance of the centres over the squared diagonal of the
    hull."""
    return _measure("diou", boxes1, boxes2, format, "nan", aligned, check)


@per_image(*BOXES)
def box_ciou(
    boxes1: Tensor, boxes2: Tensor, *, format: str = "xyxy", aligned: bool = False, check: bool = True
) -> Tensor:
    """Complete IoU (arXiv:1911.08287): distance IoU less a penalty for different aspect ratios. NaN for a box of
    width and height 0."""
    return _measure("ciou", boxes1, boxes2, format, "nan", aligned, check)


def _measure(
    kind: str, boxes1: Tensor, boxes2: Tensor, format: str, undefined: str, aligned: bool, check: bool
) -> Tensor:
    check_options(format, undefined)
    a, b = check_pair(BOXES, boxes1, boxes2)
    if not aligned:
        a, b = expanded(BOXES, a, b)
        pairs: Tensor = box_matrix(a, b, kind, format, undefined, check)
        return pairs
    check_aligned(BOXES, a, b)
    if check and a.device.type == "cpu" and not torch.compiler.is_compiling():
        check_sizes(BOXES, a, b, format)
    return measure(kind, corners(a, format), corners(b, format), undefined)


def expanded(names: tuple[str, str], a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Expand both to the same leading dimensions, without a copy."""
    lead = batch_shape(names, a, b)
    return a.expand(*lead, *a.shape[-2:]), b.expand(*lead, *b.shape[-2:])


_LOSS_NAMES = ("predicted", "target")


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
    """The loss of two tensors [..., 4] of one shape; ``none`` gives [...], else a scalar (0 for no boxes). Negative
    sizes are not refused: a network that is being trained predicts them, and has to get a gradient."""
    check_options(format)
    a, b = check_pair(_LOSS_NAMES, predicted, target)
    check_aligned(_LOSS_NAMES, a, b)
    check_one_of("reduction", reduction, REDUCTIONS)
    loss = 1 - measure(kind, corners(a, format), corners(b, format), eps=EPS)
    if reduction == "none":
        return loss
    total = loss.sum()
    return total if reduction == "sum" else total / max(1, loss.numel())
