"""Matrices and aligned measures: eager's bits where they decide, float64 where they do not."""

from __future__ import annotations

import pytest
import torch
import torchvision.ops as tv
from hypothesis import given, settings

from tests.ops.box_makers import any_boxes, box_tensors, neat_boxes, plain_boxes, random_boxes, same
from tests.ops.torchvision_measures import MEASURES
from togi import ops
from togi.measure.allocator import freed_memory_returned
from togi.measure.memory import peak_resident_bytes

mixed = box_tensors(neat_boxes | any_boxes | plain_boxes, most=25)
sized = box_tensors(plain_boxes.map(lambda b: [b[0], b[1], b[2] + 1, b[3] + 1]), most=25)
EXACT = ("iou", "giou", "diou")  # complete IoU takes an arc tangent, which torch and the C library round differently


def reference_iou(a: list[float], b: list[float]) -> float:
    """Of two boxes, in Python's float64."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / union


@settings(max_examples=100, deadline=None)
@given(mixed, mixed)
def test_any_floats_have_eagers_bits(a, b):
    for kind in ("iou", "diou"):
        ours, theirs = MEASURES[kind]
        assert same(ours(a, b, check=False), theirs(a, b)), kind
    finite = ops.box_iou(a, b, check=False, undefined="zero")
    assert same(finite, torch.where(ops.box_intersection(a, b, check=False) > 0, tv.box_iou(a, b), 0))


@settings(max_examples=60, deadline=None)
@given(sized, sized)
def test_generalized_iou_of_boxes_with_an_area_has_eagers_bits(a, b):
    """Without one it divides by a zero whose sign differs between torch's own vector and scalar loops."""
    assert same(ops.box_giou(a, b), tv.generalized_box_iou(a, b))


@settings(max_examples=60, deadline=None)
@given(sized, sized)
def test_iou_is_near_the_float64_reference(a, b):
    exact = torch.tensor([[reference_iou(x, y) for y in b.tolist()] for x in a.tolist()], dtype=torch.float64)
    # Corners up to 1e3 are exact in float32 to 6e-5; the smallest side is about 1, so sides are right to about 1e-4.
    torch.testing.assert_close(ops.box_iou(a, b).double(), exact, rtol=0, atol=1e-3)
    torch.testing.assert_close(ops.box_iou(a.double(), b.double()), exact, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("kind", MEASURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matrices_are_torchvisions(kind, dtype):
    ours, theirs = MEASURES[kind]
    a, b = random_boxes(300, 1, dtype=dtype), random_boxes(1500, 2, dtype=dtype)
    tolerance = {"rtol": 0, "atol": 0} if kind in EXACT else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(ours(a, b), theirs(a, b), **tolerance)
    torch.testing.assert_close(ours(a, b[:300], aligned=True), theirs(a, b[:300]).diagonal(), **tolerance)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("box_format", ["xywh", "cxcywh"])
@pytest.mark.parametrize("kind", MEASURES)
def test_formats_are_the_same_boxes(kind, box_format):
    ours, theirs = MEASURES[kind]
    a, b = random_boxes(40, 3, dtype=torch.float64), random_boxes(30, 4, dtype=torch.float64)
    given_boxes = [tv.box_convert(t, "xyxy", box_format) for t in (a, b)]
    torch.testing.assert_close(ours(*given_boxes, format=box_format), theirs(a, b))
    if kind == "iou":
        singles = [t.float() for t in given_boxes]
        assert same(ours(*singles, format=box_format), tv.box_iou(*singles, fmt=box_format))


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_float32(dtype):
    a, b = random_boxes(50, 5, dtype=dtype), random_boxes(40, 6, dtype=dtype)
    for ours, _ in MEASURES.values():
        assert same(ours(a, b), ours(a.float(), b.float()))
        assert ours(a, b[:1].expand_as(a), aligned=True).dtype == torch.float32


@pytest.mark.usefixtures("each_backend")
def test_batches_lists_and_empty_sets():
    a, b = random_boxes(12, 7).reshape(3, 1, 4, 4), random_boxes(10, 8).reshape(2, 5, 4)
    assert same(ops.box_iou(a, b), tv.box_iou(a, b.expand(3, 2, 5, 4)))
    lists = ops.box_iou([a[0, 0], torch.zeros(0, 4)], b[0])
    assert same(lists[0], tv.box_iou(a[0, 0], b[0]))
    assert lists[1].shape == (0, 5)
    assert ops.box_giou(torch.zeros(0, 4), torch.zeros(0, 4), aligned=True).shape == (0,)
    assert ops.box_iou(torch.zeros(2, 3, 4), torch.zeros(2, 0, 4)).shape == (2, 3, 0)


@pytest.mark.usefixtures("each_backend")
def test_degenerate_nan_and_infinite_boxes_are_as_documented():
    point, line, square = [2.0, 2.0, 2.0, 2.0], [0.0, 2.0, 4.0, 2.0], [0.0, 0.0, 4.0, 4.0]
    nan, everything = [0.0, 0.0, float("nan"), 4.0], [-float("inf"), -float("inf"), float("inf"), float("inf")]
    boxes = torch.tensor([point, line, square, nan, everything])
    iou = ops.box_iou(boxes, boxes)
    assert iou[:2, :2].isnan().all()
    assert iou[2].tolist()[:3] == [0.0, 0.0, 1.0]
    assert iou[3].isnan().all()
    assert iou[:, 3].isnan().all()
    assert iou[2, 4] == 0
    assert iou[4, 4].isnan()
    zero = ops.box_iou(boxes, boxes, undefined="zero")
    assert zero[:2].eq(0).all()
    assert zero[3].eq(0).all()
    assert ops.box_intersection(boxes[:3], boxes[:3]).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 16]]


def test_inputs_are_left_alone_and_strides_followed():
    storage = torch.full((40, 8), 3.0)
    storage[:, ::2] = random_boxes(40, 9)
    before = storage.clone()
    a = storage[:, ::2]
    for ours, theirs in MEASURES.values():
        torch.testing.assert_close(ours(a, a), theirs(a, a), rtol=1e-5, atol=1e-6)
    assert same(storage, before)


def test_a_large_matrix_whose_pages_are_asked_for():
    a, b = random_boxes(3001, 10), random_boxes(1003, 11)
    assert same(ops.box_iou(a, b), tv.box_iou(a, b))


@pytest.mark.parametrize("kind", MEASURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_more_boxes_than_a_part(kind, dtype):
    """They are taken apart a part at a time; one has a box that is NaN."""
    ours, theirs = MEASURES[kind]
    a, b = random_boxes(30, 12, dtype=dtype), random_boxes(60_001, 13, dtype=dtype)
    b[40_000] = torch.nan
    tolerance = {"rtol": 0, "atol": 0} if kind in EXACT else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(ours(a, b), theirs(a, b), equal_nan=True, **tolerance)
    b[-1] = b[-1].flip(0)
    with pytest.raises(ops.BoxError, match="box 60000"):
        ours(a, b)


def test_a_matrix_takes_less_than_a_mebibyte_besides_itself():
    a, b = random_boxes(2, 14, dtype=torch.float64), random_boxes(1 << 19, 15, dtype=torch.float64)
    result_bytes = ops.box_iou(a, b).nbytes
    with freed_memory_returned():
        peak = peak_resident_bytes(lambda: ops.box_iou(a, b))
    assert peak - result_bytes < 3 << 20, "arrays of all boxes would take 20 MiB"
