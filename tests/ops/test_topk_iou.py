"""topk_iou against a stable sort of the eager matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import box_iou as torchvision_iou

from tests.ops.box_makers import any_boxes, box_tensors, grid_boxes, neat_boxes, plain_boxes, random_boxes, same
from togi import ops

mixed = box_tensors(neat_boxes | any_boxes | plain_boxes)


def sorted_iou(anchors, boxes, k):
    values, indices = torchvision_iou(anchors, boxes).sort(dim=1, descending=True, stable=True)
    return values[:, :k], indices[:, :k]


@pytest.mark.parametrize("backend", ["native", "tiled"])
@settings(max_examples=100, deadline=None)
@given(mixed, mixed, st.data())
def test_topk_iou_agrees_with_sorting_for_any_floats(backend, anchors, boxes, data):
    k = data.draw(st.integers(1, len(boxes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOGI_OPS_BACKEND", backend)
        found = ops.topk_iou(anchors, boxes, k, check=False)
    values, indices = sorted_iou(anchors, boxes, k)
    assert same(found.iou, values)
    assert same(found.box, indices)


@pytest.mark.parametrize("backend", ["native", "tiled"])
@pytest.mark.parametrize("k", [1, 9, 1500])
def test_ties_of_a_grid_keep_the_order_of_the_boxes(backend, k, monkeypatch):
    monkeypatch.setenv("TOGI_OPS_BACKEND", backend)
    boxes, anchors = grid_boxes(30), random_boxes(50, 1).round()
    found = ops.topk_iou(anchors, boxes, k)
    values, indices = sorted_iou(anchors, boxes, k)
    assert same(found.iou, values)
    assert same(found.box, indices)


def test_batches_lists_and_bad_k():
    anchors, boxes = random_boxes(20, 1), random_boxes(24, 2).reshape(2, 12, 4)
    found = ops.topk_iou(anchors, boxes, 3)
    assert found.iou.shape == found.box.shape == (2, 20, 3)
    each = ops.topk_iou(anchors, list(boxes), 3)
    assert same(torch.stack([e.box for e in each]), found.box)
    assert ops.topk_iou(torch.zeros(0, 4), boxes[0], 3).box.shape == (0, 3)
    for k in (0, 13, -1):
        with pytest.raises(ops.BoxError, match=r"k=.* boxes \[2, 12, 4\].*1 to 12"):
            ops.topk_iou(anchors, boxes, k)
