"""Run by test_triton_boxes.py with TRITON_INTERPRET=1: every operator through Triton's interpreter and through the
native kernel, for anything that a box can hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.ops.box_makers import any_boxes, box_tensors, grid_boxes, neat_boxes, random_boxes, same
from togi import ops
from togi.ops import operators
from togi.ops.kernels import triton_boxes

FORMATS = st.sampled_from(["xyxy", "xywh", "cxcywh"])
UNDEFINED = st.sampled_from(["nan", "zero"])
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])
BOXES = box_tensors(any_boxes | neat_boxes, 18).map(lambda boxes: boxes + 0.0)


def both(call: Callable[[], tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, Tensor]]:
    found = []
    for name in ("native", "triton"):
        os.environ["TOGI_OPS_BACKEND"] = name
        assert ops.backend().name == name
        found.append(call())
    yield from zip(*found, strict=True)


def check_all(anchors: Tensor, boxes: Tensor, fmt: str, undefined: str) -> None:
    pair = (anchors, boxes)
    for native, triton in both(lambda: operators.match(*pair, fmt, undefined, True, True, False)):
        assert same(native, triton)
    k = min(3, len(boxes))
    for native, triton in both(lambda: operators.topk(*pair, k, fmt, undefined, False)):
        assert same(native, triton)
    for kind in ("intersection", "iou", "giou", "diou", "ciou"):
        for native, triton in both(lambda kind=kind: (operators.box_matrix(*pair, kind, fmt, undefined, False),)):
            if kind == "ciou":
                torch.testing.assert_close(native, triton, equal_nan=True)
            else:
                assert same(native, triton), kind


@settings(max_examples=15, deadline=None, derandomize=True)
@given(BOXES, BOXES, FORMATS, UNDEFINED, DTYPES)
def anything(anchors: Tensor, boxes: Tensor, fmt: str, undefined: str, dtype: torch.dtype) -> None:
    check_all(anchors.to(dtype), boxes.to(dtype), fmt, undefined)


def several_blocks_and_slices() -> None:
    """More than a block of both, equal values across blocks, and few queries whose candidates are shared out."""
    triton_boxes._SLICE = 64
    for anchors, boxes in (
        (random_boxes(130, 1), random_boxes(33, 2)),
        (grid_boxes(6), grid_boxes(3) + 3),
        (random_boxes(5, 1), random_boxes(150, 2)),
        (random_boxes(3, 1), random_boxes(1, 2).expand(140, 4)),
    ):
        check_all(anchors, boxes, "xyxy", "nan")


def a_slice_that_has_nothing_left() -> None:
    """The best is alone in its slice: what comes after it is in the others."""
    triton_boxes._SLICE = 16
    anchors = random_boxes(3, 1)
    boxes = torch.cat([random_boxes(32, 2), anchors[:1]])
    for dtype in (torch.float32, torch.float64):
        check_all(anchors.to(dtype), boxes.to(dtype), "xyxy", "nan")


def batches_strides_and_nothing() -> None:
    wide = torch.zeros(2, 40, 9)
    wide[..., 1:9:2] = torch.stack([random_boxes(40, 1), random_boxes(40, 3)])
    boxes = torch.stack([random_boxes(9, 4), random_boxes(9, 5)])
    check = operators.match(wide[..., 1:9:2].contiguous(), boxes, "xyxy", "nan", True, True, False)
    for (native, triton), expected in zip(
        both(lambda: operators.match(wide[..., 1:9:2], boxes, "xyxy", "nan", True, True, False)), check, strict=True
    ):
        assert same(native, triton)
        assert same(triton, expected)
    for native, triton in both(lambda: operators.match(boxes[0], boxes[0][:0], "xyxy", "nan", True, True, False)):
        assert same(native, triton)


if __name__ == "__main__":
    anything()
    several_blocks_and_slices()
    a_slice_that_has_nothing_left()
    batches_strides_and_nothing()
    print("all agree")
