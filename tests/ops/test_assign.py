"""ATSS and task-aligned assignment against plain implementations of mmdetection's conventions, with all matrices."""

from __future__ import annotations

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.ops.box_makers import random_boxes, same
from togi import ops
from togi.ops import assign


@pytest.fixture
def _small_tiles(monkeypatch):
    monkeypatch.setattr(assign, "_TILE_PAIRS", 1)
    monkeypatch.setattr(assign, "_LEAST_TILE", 37)


def pyramid(strides=(8, 16, 32, 64), size=256) -> tuple[Tensor, list[int]]:
    levels = []
    for stride in strides:
        at = torch.arange(0, size, stride, dtype=torch.float32) + stride / 2
        y, x = (t.reshape(-1, 1) for t in torch.meshgrid(at, at, indexing="ij"))
        half = 4.0 * stride
        levels.append(torch.cat([x - half, y - half, x + half, y + half], 1))
    return torch.cat(levels), [len(level) for level in levels]


def shuffled(anchors: Tensor, seed: int) -> Tensor:
    """Moved a little, so that no two distances tie."""
    generator = torch.Generator().manual_seed(seed)
    return anchors + torch.rand(len(anchors), 1, generator=generator)


def targets(count: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (random_boxes(count, seed, size=500) / 4).to(dtype)


def centres(boxes: Tensor) -> Tensor:
    return (boxes[:, :2] + boxes[:, 2:]) / 2


def inside(anchors: Tensor, boxes: Tensor) -> Tensor:
    at = centres(anchors)[:, None]
    return torch.cat([at - boxes[None, :, :2], boxes[None, :, 2:] - at], 2).amin(2) > 0.01


def settle(iou: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    best, box = iou.masked_fill(~positive, -1e8).max(1)
    nobody = ~positive.any(1)
    return box.masked_fill(nobody, -1), best.masked_fill(nobody, 0)


def first_of_largest(values: Tensor, k: int) -> Tensor:
    return values.sort(dim=0, descending=True, stable=True).indices[:k]


def plain_atss(anchors: Tensor, boxes: Tensor, level_sizes: list[int], k: int) -> tuple[Tensor, Tensor]:
    iou = torchvision.ops.box_iou(anchors, boxes)
    distance = (centres(anchors)[:, None] - centres(boxes)[None]).pow(2).sum(2).sqrt()
    candidates, start = [], 0
    for size in level_sizes:
        candidates.append(start + first_of_largest(-distance[start : start + size], k))
        start += size
    chosen = torch.cat(candidates)
    of_candidates = iou.gather(0, chosen)
    threshold = of_candidates.mean(0) + of_candidates.std(0)
    is_candidate = torch.zeros_like(iou, dtype=torch.bool).scatter_(0, chosen, True)
    return settle(iou, is_candidate & (iou >= threshold) & inside(anchors, boxes))


def plain_task_aligned(
    predictions: Tensor, scores: Tensor, anchors: Tensor, boxes: Tensor, labels: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    iou = torchvision.ops.box_iou(predictions, boxes)
    metric = scores[:, labels] ** 1.0 * iou**6.0
    is_candidate = torch.zeros_like(iou, dtype=torch.bool).scatter_(0, first_of_largest(metric, k), True)
    box, best = settle(iou, is_candidate & (metric > 0) & inside(anchors, boxes))
    of_box = metric.gather(1, box.clamp(min=0)[:, None])[:, 0]
    return box, best, of_box.masked_fill(box < 0, 0)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 7, 60])
@pytest.mark.parametrize("ties", [False, True])
def test_atss_agrees_with_the_plain_formula(count, dtype, ties):
    anchors, level_sizes = pyramid()
    anchors = (anchors if ties else shuffled(anchors, 1)).to(dtype)
    boxes = targets(count, 2, dtype).round() if ties else targets(count, 2, dtype)
    found = ops.assign_atss(anchors, boxes, level_sizes)
    box, iou = plain_atss(anchors, boxes, level_sizes, 9)
    assert same(found.box, box)
    assert same(found.iou, iou)
    assert found.metric is None
    assert (box >= 0).any()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 999), st.booleans())
def test_atss_of_any_k_and_size(k, count, seed, neat):
    anchors, level_sizes = pyramid(strides=(16, 64, 128))
    boxes = targets(count, seed).round() if neat else targets(count, seed)
    found = ops.assign_atss(anchors, boxes, level_sizes, k=k)
    assert same(found.box, plain_atss(anchors, boxes, level_sizes, k)[0])


def case(count: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    anchors = pyramid()[0].to(dtype)
    moved = torch.rand(len(anchors), 4, generator=generator) * 20
    predictions = anchors * 0.9 + torch.cat([moved[:, :2], moved[:, :2] + moved[:, 2:]], 1).to(dtype)
    scores = torch.rand(len(anchors), 5, generator=generator).to(dtype)
    labels = torch.randint(0, 5, (count,), generator=generator)
    return predictions, scores, anchors, targets(count, seed, dtype), labels


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("count", "k"), [(1, 13), (8, 1), (50, 13), (50, 5000)])
def test_task_aligned_agrees_with_the_plain_formula(count, k, dtype):
    given = case(count, 3, dtype)
    found = ops.assign_task_aligned(*given, k=k)
    for ours, plain in zip(found, plain_task_aligned(*given, k=k), strict=True):
        assert same(ours, plain)
    assert (found.box >= 0).any()


def test_equal_metrics_go_to_the_lower_index():
    predictions, scores, anchors, boxes, labels = case(6, 4)
    predictions, scores = predictions[:1].expand_as(predictions), torch.full_like(scores, 0.5)
    boxes = torch.cat([boxes, boxes[:2]])  # and equal boxes want the same anchors
    labels = torch.cat([labels, labels[:2]])
    found = ops.assign_task_aligned(predictions, scores, anchors, boxes, labels)
    assert same(found.box, plain_task_aligned(predictions, scores, anchors, boxes, labels, 13)[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16])
def test_labels_of_every_integer_type_are_classes(dtype):
    *given, labels = case(8, 3)
    found, expected = (ops.assign_task_aligned(*given, each) for each in (labels.to(dtype), labels))
    assert all(same(ours, other) for ours, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_converted_exactly(dtype):
    given = [t.to(dtype) if t.is_floating_point() else t for t in case(9, 5)]
    exact = [t.float() if t.is_floating_point() else t for t in given]
    assert same(ops.assign_task_aligned(*given).box, ops.assign_task_aligned(*exact).box)
    anchors, level_sizes = pyramid()
    found = ops.assign_atss(anchors.to(dtype), targets(9, 1).to(dtype), level_sizes)
    assert same(found.box, ops.assign_atss(anchors.to(dtype).float(), targets(9, 1).to(dtype).float(), level_sizes).box)


def test_nan_is_assigned_to_nothing():
    predictions, scores, anchors, boxes, labels = case(4, 6)
    boxes[1] = torch.nan
    predictions[::3] = torch.nan
    scores[1::3] = torch.nan
    found = ops.assign_task_aligned(predictions, scores, anchors, boxes, labels, k=4000)
    assert not (found.box == 1).any()
    assert set(found.box[::3].tolist()) | set(found.box[1::3].tolist()) == {-1}
    assert not found.iou.isnan().any()
    anchors[5] = torch.nan
    assert ops.assign_atss(anchors, boxes, pyramid()[1]).box[5] == -1


def test_nothing_to_assign():
    predictions, scores, anchors, boxes, labels = case(4, 7)
    for found in (
        ops.assign_task_aligned(predictions, scores, anchors, boxes[:0], labels[:0]),
        ops.assign_atss(anchors, boxes[:0], [len(anchors)]),
        ops.assign_atss(anchors[:9], boxes, [9, 0], k=1),
    ):
        assert found.box.tolist() == [-1] * len(found.box)
        assert found.iou.sum() == 0
    assert ops.assign_atss(anchors[:0], boxes, []).box.shape == (0,)
    assert ops.assign_atss(anchors[:1], boxes, [1]).box.tolist() == [-1], "one candidate has no deviation"


def test_all_is_made_where_the_boxes_are_and_an_empty_level_changes_nothing():
    """On a GPU, ``benchmarks/gpu_parts/ops.py`` asks the same."""
    anchors, (first, *others) = pyramid()
    boxes, given = targets(9, 1), case(9, 3)
    expected = ops.assign_atss(anchors, boxes, [first, *others]), ops.assign_task_aligned(*given)
    with torch.device("meta"):  # what is made without a device would be on the CPU, whatever the boxes are on
        found = ops.assign_atss(anchors, boxes, [0, first, 0, *others, 0]), ops.assign_task_aligned(*given)
    for one, other in zip(found, expected, strict=True):
        assert one.box.device == boxes.device
        assert same(one.box, other.box)
        assert same(one.iou, other.iou)


def test_assignment_does_not_depend_on_the_box_format():
    anchors, level_sizes = pyramid()
    boxes = targets(20, 8).round()
    converted = [torchvision.ops.box_convert(t, "xyxy", "cxcywh") for t in (anchors, boxes)]
    found = ops.assign_atss(*converted, level_sizes, format="cxcywh")
    assert same(found.box, ops.assign_atss(anchors, boxes, level_sizes).box)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": torch.zeros(3, 5)}, r"scores \[3, 5\]"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, r"labels \[5\].*each of 4 boxes"),
        ({"labels": torch.tensor([True, False, True, True])}, r"labels \[4\] \(torch.bool\): give an integer"),
        ({"labels": torch.zeros(4, dtype=torch.complex64)}, r"labels .*complex64\): give an integer"),
        ({"labels": torch.tensor([0, 1, 2, 5])}, r"labels from 0 to 5, but scores .* classes 0 to 4"),
        ({"predictions": torch.zeros(3, 4)}, "give one for each"),
        ({"boxes": torch.zeros(1, 4, 4)}, "one image at a time"),
        ({"k": 0}, "k=0"),
        ({"boxes": torch.tensor([[9.0, 9, 1, 1]] * 4)}, "negative size"),
    ],
)
def test_bad_arguments_of_an_assignment_are_refused(change, message):
    given = dict(zip(("predictions", "scores", "anchors", "boxes", "labels"), case(4, 9), strict=True))
    with pytest.raises(ops.BoxError, match=message):
        ops.assign_task_aligned(**{**given, **change})


def test_levels_that_do_not_add_up():
    anchors, level_sizes = pyramid()
    with pytest.raises(ops.BoxError, match=r"add up to \d+, but there are"):
        ops.assign_atss(anchors, targets(3, 1), level_sizes[:-1])
