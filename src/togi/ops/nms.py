"""Non-maximum suppression without an N x N matrix or mask: what is kept are boxes that no kept box of a higher score
overlaps by more than a threshold.

The decisions are torchvision's, bit for bit: the same order (a stable sort: the first of equal scores comes first, NaN
before all), the same operations in the same precision. Half-precision boxes, which torchvision refuses on the CPU, are
converted exactly and decided in float32. Memory: some 40 bytes per box.

Sources: torchvision.ops.nms and batched_nms (its per-class form).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from togi.ops.arguments import BoxError, check_options, check_pair, check_sizes
from togi.ops.backend import kernels
from togi.ops.measures import compute_dtype, corners


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, *, format: str = "xyxy", check: bool = True) -> Tensor:
    """The indices of the boxes that are kept, by falling score.

    Args:
        boxes: [N, 4], float32, float64, float16 or bfloat16.
        scores: [N], any floating dtype, on the same device.
        iou_threshold: a box goes where its IoU with a kept one is larger than this. NaN keeps all.
        format, check: as in ``togi.ops.boxes``. A box whose IoU is NaN with all others (NaN coordinates, no area) is
            kept.

    Returns:
        int64 [K].

    Raises:
        BoxError: see ``togi.ops.boxes``; and shapes or devices that do not belong together.
    """
    _check(boxes, scores, None, format, check)
    order = scores.detach().sort(stable=True, descending=True).indices
    return order[_kept(boxes, order, order.new_tensor([len(order)]), iou_threshold, format)]


def batched_nms(
    boxes: Tensor,
    scores: Tensor,
    idxs: Tensor,
    iou_threshold: float,
    *,
    format: str = "xyxy",
    check: bool = True,
) -> Tensor:
    """``nms`` where only boxes of the same class suppress each other.

    torchvision moves every class to a place of its own up to 1000 boxes (4000 coordinates) and rounds the coordinates
    on the way; here, as there for more boxes, every class is worked off by itself and nothing is rounded.

    Args:
        idxs: the class of every box: integers [N], on the same device. The others as in ``nms``.

    Returns:
        int64 [K], by falling score over all classes.

    Raises:
        BoxError: as in ``nms``.
    """
    _check(boxes, scores, idxs, format, check)
    order = scores.detach().sort(stable=True, descending=True).indices
    classes, by_class = idxs.index_select(0, order).sort(stable=True)
    ends = torch.unique_consecutive(classes, return_counts=True)[1].cumsum(0)
    kept = torch.empty_like(order, dtype=torch.bool)
    kept[by_class] = _kept(boxes, order.index_select(0, by_class), ends, iou_threshold, format)
    return order[kept]


def _kept(boxes: Tensor, order: Tensor, ends: Tensor, threshold: float, format: str) -> Tensor:
    in_order = boxes.detach().index_select(0, order)  # unlike boxes[order] it does not wake torch's thread pool
    planes = torch.stack(corners(in_order, format))
    kept: Tensor = nms_kept(planes, ends, _rounded_down(threshold, planes.dtype))
    return kept


@torch.library.custom_op("togi::nms_kept", mutates_args=())
def nms_kept(planes: Tensor, ends: Tensor, threshold: float) -> Tensor:
    """A mask bool [N] of the boxes that are kept, for ``planes`` [5, N] (x1, y1, x2, y2, area), class after class and
    by falling score within each; class c ends at ``ends[c]``."""
    kept = planes.new_empty(planes.shape[1], dtype=torch.bool)
    if kept.numel():
        kernels(planes.device).nms(planes.contiguous(), ends.contiguous(), threshold, kept)
    return kept


@nms_kept.register_fake
def _(planes: Tensor, _ends: Tensor, _threshold: float) -> Tensor:
    return planes.new_empty(planes.shape[1], dtype=torch.bool)


def _rounded_down(threshold: float, dtype: torch.dtype) -> float:
    """torchvision compares a float32 IoU with the threshold in float64. The largest float32 that does not exceed it
    separates the same values, so that kernels need no float64."""
    if dtype == compute_dtype(torch.float64) or not math.isfinite(threshold):
        return threshold
    near = torch.tensor(threshold, dtype=torch.float64).to(dtype)
    if float(near) > threshold:
        near = torch.nextafter(near, torch.tensor(-math.inf, dtype=dtype))
    return float(near)


def _check(boxes: Tensor, scores: Tensor, idxs: Tensor | None, format: str, check: bool) -> None:
    check_options(format)
    check_pair(("boxes", "boxes"), boxes, boxes)
    if boxes.dim() != 2:
        raise BoxError(f"boxes {list(boxes.shape)}: give [N, 4], the boxes of one image.")
    for name, tensor in (("scores", scores), *([("idxs", idxs)] if idxs is not None else [])):
        if not isinstance(tensor, Tensor) or tensor.shape != boxes.shape[:1] or tensor.device != boxes.device:
            form = f"{list(tensor.shape)} on {tensor.device}" if isinstance(tensor, Tensor) else f"a {type(tensor)}"
            raise BoxError(
                f"{name} is {form} and boxes {list(boxes.shape)} on {boxes.device}: give one for each box, there."
            )
    if not scores.is_floating_point():
        raise BoxError(f"scores are {scores.dtype}: give floating-point numbers, for example scores.float().")
    if idxs is not None and (idxs.is_floating_point() or idxs.is_complex()):
        raise BoxError(f"idxs are {idxs.dtype}: classes are integers, for example idxs.long().")
    if check and boxes.device.type == "cpu" and not torch.compiler.is_compiling():
        check_sizes(("boxes", "boxes"), boxes, boxes[:0], format)
