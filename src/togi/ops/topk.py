"""The k best boxes of every anchor, without the N x M matrix."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from togi.ops.arguments import BoxError, check_options, check_pair
from togi.ops.boxes import expanded
from togi.ops.images import per_image
from togi.ops.operators import topk

NAMES = ("anchors", "boxes")


class TopKIoU(NamedTuple):
    """What ``topk_iou`` found: both [..., N, k], best first."""

    iou: Tensor
    box: Tensor
    """int64."""


@per_image(*NAMES)
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
    a, b = (t.detach() for t in expanded(NAMES, *check_pair(NAMES, anchors, boxes)))
    if not 1 <= k <= b.shape[-2]:
        raise BoxError(
            f"k={k} of boxes {list(boxes.shape)}: give a k from 1 to {b.shape[-2]}, such as min(k, {b.shape[-2]})."
        )
    return TopKIoU(*topk(a, b, k, format, undefined, check))
