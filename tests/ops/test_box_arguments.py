"""Bad input: every refusal names the argument, its shape and the fix."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.ops.box_makers import random_boxes
from togi import ops
from togi.core.errors import TogiError

GOOD = random_boxes(3, 1)
PAIRWISE = [ops.box_intersection, ops.box_iou, ops.box_giou, ops.box_diou, ops.box_ciou, ops.match_boxes]
CASES = {
    "five numbers": (torch.zeros(2, 5), GOOD, r"\[2, 5\].*last dimension has to be 4"),
    "a scalar": (torch.tensor(1.0), GOOD, r"\[\].*last dimension"),
    "one box without a row": (GOOD[0], GOOD, r"\[4\].*\[None\]"),
    "integers": (GOOD.long(), GOOD, r"\[3, 4\] \(int64\).*\.float\(\)"),
    "booleans": (GOOD, GOOD.bool(), r"\(bool\).*\.float\(\)"),
    "two dtypes": (GOOD, GOOD.double(), r"float32.*float64.*\.to\("),
    "two devices": (GOOD, GOOD.to("meta"), r"cpu.*meta.*\.to\("),
    "not a tensor": (GOOD.numpy(), GOOD, r"is a ndarray.*give a tensor"),
    "batches that do not broadcast": (GOOD.expand(2, 3, 4), GOOD.expand(3, 3, 4), r"\[2, 3, 4\].*\[3, 3, 4\].*list"),
    "lists of two lengths": ([GOOD], [GOOD, GOOD], r"1 tensors and .* 2"),
    "inside out": (GOOD, GOOD[:, [2, 3, 0, 1]], r"\[3, 4\]: box 0 = .*negative size.*format='xywh'"),
}


@pytest.mark.parametrize("function", PAIRWISE)
@pytest.mark.parametrize("case", CASES)
def test_bad_boxes_are_refused_with_their_name(function, case):
    first, second, message = CASES[case]
    with pytest.raises(ops.BoxError, match=message) as caught:
        function(first, second)
    assert isinstance(caught.value, TogiError)
    assert isinstance(caught.value, ValueError)
    names = ("anchors", "boxes") if function is ops.match_boxes else ("boxes1", "boxes2")
    assert any(name in str(caught.value) for name in names)


def test_negative_sizes_are_found_wherever_they_are():
    boxes = random_boxes(100_000, 2)
    boxes[77_777, 2] = boxes[77_777, 0] - 1
    with pytest.raises(ops.BoxError, match=r"anchors \[100000, 4\]: box 77777 "):
        ops.match_boxes(boxes, GOOD)
    assert ops.match_boxes(boxes, GOOD, check=False).iou[77_777] <= 0
    with pytest.raises(ops.BoxError, match=r"boxes1 .*format='xyxy'"):
        ops.box_iou(torch.tensor([[5.0, 5.0, -1.0, 3.0]]), GOOD, format="cxcywh", aligned=False)
    with pytest.raises(ops.BoxError, match="negative size"):
        ops.box_iou(GOOD[:, [2, 3, 0, 1]], GOOD, aligned=True)
    ops.box_iou(torch.tensor([[0.0, 0.0, float("nan"), 1.0]]), GOOD)  # NaN is no negative size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "xyhw"}, r"format='xyhw'.*did you mean 'xywh'"),
        ({"undefined": "0"}, r"undefined='0'.*nan, zero"),
        ({"thresholds": (0.7, 0.3)}, r"\[0.7, 0.3\].*ascending"),
        ({"thresholds": ()}, r"at least one"),
        ({"thresholds": (0.3, 0.7), "labels": (0, 1)}, r"2 thresholds make 3 levels.*has 2"),
        ({"thresholds": 0.5, "labels": (0, 300)}, r"int8"),
        ({"low_quality": True}, r"low_quality=True without thresholds"),
    ],
)
def test_options_of_matching(options, message):
    with pytest.raises(ops.BoxError, match=message):
        ops.match_boxes(GOOD, GOOD, **options)


def test_aligned_shapes_and_reductions():
    with pytest.raises(ops.BoxError, match=r"boxes1 \[3, 4\].*boxes2 \[2, 4\].*aligned=True"):
        ops.box_iou(GOOD, GOOD[:2], aligned=True)
    with pytest.raises(ops.BoxError, match=r"predicted \[3, 4\].*target \[2, 4\]"):
        ops.giou_loss(GOOD, GOOD[:2])
    with pytest.raises(ops.BoxError, match=r"reduction='avg'.*mean"):
        ops.giou_loss(GOOD, GOOD, reduction="avg")


def test_togi_comes_without_torch_and_its_operations_without_the_tuner():
    program = (
        "import sys, togi; assert 'torch' not in sys.modules, 'torch'; togi.ops.box_iou; "
        "rooms = {m.split('.')[1] for m in sys.modules if m.startswith('togi.')}; "
        "assert rooms == {'core', 'ops', 'torch_internals'}, rooms"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
