"""Measures of boxes next to torchvision's, which a machine with a device need not have."""

from __future__ import annotations

import torchvision.ops as tv

from togi import ops

MEASURES = {
    "iou": (ops.box_iou, tv.box_iou),
    "giou": (ops.box_giou, tv.generalized_box_iou),
    "diou": (ops.box_diou, tv.distance_box_iou),
    "ciou": (ops.box_ciou, tv.complete_box_iou),
}
"""Each with torchvision's."""
