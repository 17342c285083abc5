"""The operators as torch sees them: ``togi::box_matrix``, ``togi::match_boxes`` and ``togi::topk_iou``, with their
shapes and gradients.

Registered with torch.library, so that torch.compile and torch.export keep them as one node each. Leading dimensions
are batches and are worked off one after the other; every result is written where it stays.

Source: PyTorch documentation, torch.library (custom_op, register_fake, register_autograd).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from togi.ops.arguments import ANCHORS_AND_BOXES, BOXES, check_sizes
from togi.ops.backend import kernels
from togi.ops.gradient import matrix_gradient
from togi.ops.measures import compute_dtype


@torch.library.custom_op("togi::box_matrix", mutates_args=())
def box_matrix(boxes1: Tensor, boxes2: Tensor, kind: str, format: str, undefined: str, check: bool) -> Tensor:
    """A measure of all pairs of boxes [*B, N, 4] and [*B, M, 4]: [*B, N, M]."""
    out = _matrix_shape(boxes1, boxes2)
    negative = out.numel() == 0
    if not negative:
        run = kernels(out.device)
        for at in _batches(boxes1):
            negative |= run.matrix(boxes1[at], boxes2[at], kind, format, undefined, out[at])
    if check and negative:
        _refuse_negative(BOXES, boxes1, boxes2, format)
    return out


@box_matrix.register_fake
def _(boxes1: Tensor, boxes2: Tensor, *_options: object) -> Tensor:
    return _matrix_shape(boxes1, boxes2)


@torch.library.custom_op("togi::box_matrix_gradient", mutates_args=())
def box_matrix_gradient(
    upstream: Tensor, boxes1: Tensor, boxes2: Tensor, kind: str, format: str, undefined: str
) -> tuple[Tensor, Tensor]:
    """The gradients of ``box_matrix`` for both sets of boxes, in their dtype."""
    for1, for2 = torch.empty_like(boxes1), torch.empty_like(boxes2)
    for at in _batches(boxes1):
        for1[at], for2[at] = matrix_gradient(upstream[at], boxes1[at], boxes2[at], kind, format, undefined)
    return for1, for2


@box_matrix_gradient.register_fake
def _(_upstream: Tensor, boxes1: Tensor, boxes2: Tensor, *_options: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(boxes1), torch.empty_like(boxes2)


def _keep_boxes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch passes it by name
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.options = inputs[2:5]


def _matrix_backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    for1, for2 = box_matrix_gradient(upstream, *ctx.saved_tensors, *ctx.options)
    return for1, for2, None, None, None, None


box_matrix.register_autograd(_matrix_backward, setup_context=_keep_boxes)


@torch.library.custom_op("togi::match_boxes", mutates_args=())
def match(
    anchors: Tensor, boxes: Tensor, format: str, undefined: str, per_box: bool, ties: bool, check: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Best IoU and index per anchor [*B, N], the same per box [*B, M], and whether the anchor shares the best IoU of
    some box.

    What was not asked for has size 0. Without boxes (or anchors) the best IoU is 0 and the index -1.
    """
    results = _match_shapes(anchors, boxes, per_box, ties)
    negative = 0 in (*anchors.shape, *boxes.shape)
    if negative:
        for result in results:
            result.fill_(-1 if result.dtype == torch.int64 else 0)
    else:
        run = kernels(anchors.device)
        for at in _batches(anchors):
            of_image = tuple(r[at] if r.numel() else r for r in results)
            negative |= run.match(anchors[at], boxes[at], format, undefined, of_image)
    if check and negative:
        _refuse_negative(ANCHORS_AND_BOXES, anchors, boxes, format)
    return results


@match.register_fake
def _(
    anchors: Tensor, boxes: Tensor, _format: str, _undefined: str, per_box: bool, ties: bool, _check: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _match_shapes(anchors, boxes, per_box, ties)


@torch.library.custom_op("togi::topk_iou", mutates_args=())
def topk(anchors: Tensor, boxes: Tensor, k: int, format: str, undefined: str, check: bool) -> tuple[Tensor, Tensor]:
    """The k highest IoU of every anchor and the indices of their boxes: two of [*B, N, k], descending."""
    values, indices = _topk_shapes(anchors, k)
    negative = values.numel() == 0
    if not negative:
        run = kernels(anchors.device)
        for at in _batches(anchors):
            negative |= run.topk(anchors[at], boxes[at], format, undefined, values[at], indices[at])
    if check and negative:
        _refuse_negative(ANCHORS_AND_BOXES, anchors, boxes, format)
    return values, indices


@topk.register_fake
def _(anchors: Tensor, _boxes: Tensor, k: int, *_options: object) -> tuple[Tensor, Tensor]:
    return _topk_shapes(anchors, k)


def _refuse_negative(names: tuple[str, str], a: Tensor, b: Tensor, format: str) -> None:
    """The kernel has seen a negative size, or there was nothing for it to do: find the box and name it."""
    if a.device.type == "cpu":  # elsewhere it would wait for the device
        check_sizes(names, a, b, format)


def _batches(boxes: Tensor) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, boxes.shape[:-2]))


def _matrix_shape(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-2]), dtype=compute_dtype(a.dtype))


def _match_shapes(
    anchors: Tensor, boxes: Tensor, per_box: bool, ties: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype, nothing = compute_dtype(anchors.dtype), (0,)
    rows = anchors.shape[:-1]
    columns = boxes.shape[:-1] if per_box else nothing
    return (
        anchors.new_empty(rows, dtype=dtype),
        anchors.new_empty(rows, dtype=torch.int64),
        anchors.new_empty(columns, dtype=dtype),
        anchors.new_empty(columns, dtype=torch.int64),
        anchors.new_empty(rows if ties else nothing, dtype=torch.bool),
    )


def _topk_shapes(anchors: Tensor, k: int) -> tuple[Tensor, Tensor]:
    shape = (*anchors.shape[:-1], k)
    values = anchors.new_empty(shape, dtype=compute_dtype(anchors.dtype))
    return values, anchors.new_empty(shape, dtype=torch.int64)
