"""match_boxes against the matchers of torchvision and detectron2 on the eager matrix: the same bits decide."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models.detection._utils import Matcher
from torchvision.ops import box_iou as torchvision_iou

from tests.ops.box_makers import any_boxes, box_tensors, grid_boxes, neat_boxes, plain_boxes, random_boxes, same
from togi import ops

pytestmark = pytest.mark.threads

many = settings(max_examples=150, deadline=None)
mixed = box_tensors(neat_boxes | any_boxes | plain_boxes)


def detectron2_iou(anchors: Tensor, boxes: Tensor) -> Tensor:
    """detectron2.structures.pairwise_iou, written out: 0 wherever the intersection is not positive."""
    low = torch.max(anchors[:, None, :2], boxes[:, :2])
    high = torch.min(anchors[:, None, 2:], boxes[:, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    area = [(b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]) for b in (anchors, boxes)]
    return torch.where(shared > 0, shared / (area[0][:, None] + area[1] - shared), torch.zeros(1))


def detectron2_labels(iou: Tensor, thresholds: list[float], labels: list[int], low_quality: bool) -> Tensor:
    """The labels of detectron2.modeling.matcher.Matcher for a matrix [N, M]; anchors by the rule, one after another."""
    best = iou.max(1).values
    label = torch.ones(len(iou), dtype=torch.int8)
    edges = [-float("inf"), *thresholds, float("inf")]
    for name, (low, high) in zip(labels, itertools.pairwise(edges), strict=True):
        label[(best >= low) & (best < high)] = name
    if low_quality:
        label[(iou == iou.max(0).values).any(1)] = 1
    return label


def assert_reduces(anchors: Tensor, boxes: Tensor, iou: Tensor, **options) -> None:
    """What match_boxes finds is what torch.max finds in the matrix ``iou``."""
    before = anchors.clone(), boxes.clone()
    found = ops.match_boxes(anchors, boxes, thresholds=(0.3, 0.7), low_quality=True, check=False, **options)
    by_row, by_column = iou.max(1), iou.max(0)
    assert same(found.iou, by_row.values)
    assert same(found.box, by_row.indices)
    assert same(found.anchor_iou, by_column.values)
    assert same(found.anchor, by_column.indices)
    assert same(found.label, detectron2_labels(iou, [0.3, 0.7], [0, -1, 1], True))
    alone = ops.match_boxes(anchors, boxes, check=False, **options)
    assert same(alone.iou, found.iou)
    assert same(alone.box, found.box)
    assert same(anchors, before[0])
    assert same(boxes, before[1])


@many
@given(mixed, mixed)
def test_any_floats_agree_with_torch_max_on_the_eager_matrix(anchors, boxes):
    assert_reduces(anchors, boxes, torchvision_iou(anchors, boxes))
    assert_reduces(anchors, boxes, detectron2_iou(anchors, boxes), undefined="zero")


@many
@given(mixed, mixed)
def test_tiles_of_torch_decide_the_same(anchors, boxes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOGI_OPS_BACKEND", "tiled")
        assert_reduces(anchors, boxes, torchvision_iou(anchors, boxes))
        assert_reduces(anchors, boxes, detectron2_iou(anchors, boxes), undefined="zero")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1, 3, 15, 16, 17, 700, 5000]), st.sampled_from([1, 2, 31, 300]))
def test_near_ties_are_decided_as_eager_decides_them(seed, count, columns):
    """Copies of a few boxes moved by one or two units in the last place: quotients that differ by a rounding or not."""
    generator = torch.Generator().manual_seed(seed)
    base = random_boxes(4, seed, size=700)

    def near(many: int) -> Tensor:
        chosen = base[torch.randint(4, (many,), generator=generator)]
        moved = torch.randint(-2, 3, chosen.shape, generator=generator, dtype=torch.int32)
        return (chosen.view(torch.int32) + moved).view(torch.float32)

    anchors, boxes = near(count), near(columns)
    assert_reduces(anchors, boxes, torchvision_iou(anchors, boxes))


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("size", [10, 60, 900])
def test_a_grid_of_anchors_with_thousands_of_ties(size, shuffled):
    anchors = grid_boxes(50)
    if shuffled:
        anchors = anchors[torch.randperm(len(anchors), generator=torch.Generator().manual_seed(1))]
    boxes = random_boxes(80, 5, size=size).round()
    boxes[7] = torch.tensor([5000.0, 5000.0, 5010.0, 5010.0])  # overlaps nothing
    assert_reduces(anchors, boxes[:7], torchvision_iou(anchors, boxes[:7]))
    assert_reduces(anchors, boxes, torchvision_iou(anchors, boxes))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("wild_at", [0, 1000, 19999])
def test_one_wild_anchor_among_many_and_any_number_of_threads(threads, wild_at):
    anchors, boxes = random_boxes(20000, 2, size=60), random_boxes(150, 3, size=60)
    anchors[wild_at] = torch.tensor([300.0, 300.0, 100.0, 400.0])  # turned inside out: its IoU is negative or 0
    boxes[3] = torch.tensor([9000.0, 9000.0, 9001.0, 9001.0])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_reduces(anchors, boxes, torchvision_iou(anchors, boxes))
        anchors[wild_at, 2] = float("nan")
        assert_reduces(anchors, boxes, torchvision_iou(anchors, boxes))
    finally:
        torch.set_num_threads(before)


def test_a_negative_iou_is_not_a_tie_with_the_zero_that_is_best():
    """Far from 0 a width of 0.04 rounds to 0.0625: the intersection exceeds both areas, the union is negative."""
    tiny = torch.tensor([[1e6, 1e6, 0.04, 0.04]])
    anchors = random_boxes(2000, 50)
    anchors[:, 2:] -= anchors[:, :2]
    anchors[1234] = tiny
    iou = torchvision_iou(anchors, tiny, fmt="xywh")
    assert iou.min() < 0
    assert_reduces(anchors, tiny, iou, format="xywh")


@settings(max_examples=80, deadline=None)
@given(
    box_tensors(neat_boxes | plain_boxes),
    box_tensors(neat_boxes | plain_boxes),
    st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted),
    st.booleans(),
)
def test_torchvision_matcher_gives_the_same_matches(anchors, boxes, thresholds, low_quality):
    low, high = thresholds
    expected = Matcher(high, low, low_quality)(torchvision_iou(boxes, anchors))
    found = ops.match_boxes(anchors, boxes, thresholds=(low, high), low_quality=low_quality)
    assert same(found.matched_box(), expected)


def test_a_threshold_is_compared_as_a_float32_is_compared_with_it():
    """IoU of exactly float32(0.7): in float64 it is below 0.7, in torch's comparison it is not."""
    third = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    boxes = torch.tensor([[0.0, 0.0, 10.0, 7.0]])
    iou = torchvision_iou(third, boxes)[0, 0]
    assert iou.item() == pytest.approx(0.7)
    found = ops.match_boxes(third, boxes, thresholds=(0.3, 0.7))
    assert found.label.item() == (1 if bool(iou >= 0.7) else -1)


def test_labels_and_thresholds_as_in_detectron2():
    anchors, boxes = random_boxes(3000, 8, size=300), random_boxes(40, 9, size=300)
    iou = detectron2_iou(anchors, boxes)
    for thresholds, labels in (([0.5], [0, 1]), ([0.3, 0.7], [0, -1, 1]), ([0.2, 0.4, 0.6], [-1, 0, -1, 1])):
        for low_quality in (False, True):
            found = ops.match_boxes(
                anchors, boxes, thresholds=thresholds, labels=labels, low_quality=low_quality, undefined="zero"
            )
            assert same(found.label, detectron2_labels(iou, thresholds, labels, low_quality))


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("box_format", ["xyxy", "xywh", "cxcywh"])
def test_other_dtypes_and_formats(dtype, box_format):
    anchors, boxes = random_boxes(700, 11, dtype=dtype), random_boxes(60, 12, dtype=dtype)
    if box_format != "xyxy":
        for t in (anchors, boxes):
            t[:, 2:] -= t[:, :2]
    exact = [t if dtype == torch.float64 else t.float() for t in (anchors, boxes)]
    assert_reduces(anchors, boxes, torchvision_iou(*exact, fmt=box_format), format=box_format)


@pytest.mark.usefixtures("each_backend")
def test_batches_broadcast_and_lists_are_taken_apart():
    anchors = random_boxes(400, 20)
    boxes = torch.stack([random_boxes(30, s) for s in range(6)]).reshape(2, 3, 30, 4)
    found = ops.match_boxes(anchors, boxes, thresholds=0.5, low_quality=True)
    assert found.iou.shape == (2, 3, 400)
    assert found.anchor.shape == (2, 3, 30)
    ragged = [random_boxes(n, n) for n in (3, 0, 17)]
    results = ops.match_boxes(anchors, ragged, thresholds=0.5, low_quality=True)
    for one, given_boxes in zip(
        [*results, *(ops.BoxMatches(*(t[i, j] for t in found)) for i in range(2) for j in range(3))],
        [*ragged, *boxes.reshape(6, 30, 4)],
        strict=True,
    ):
        alone = ops.match_boxes(anchors, given_boxes, thresholds=0.5, low_quality=True)
        assert all(same(a, b) for a, b in zip(one, alone, strict=True))


@pytest.mark.usefixtures("each_backend")
def test_no_boxes_and_no_anchors():
    none, some = torch.zeros(0, 4), random_boxes(5, 1)
    found = ops.match_boxes(some, none, thresholds=(0.3, 0.7), low_quality=True)
    assert found.iou.tolist() == [0.0] * 5
    assert found.box.tolist() == [-1] * 5
    assert found.label.tolist() == [0] * 5
    assert found.anchor.shape == (0,)
    found = ops.match_boxes(none, some, per_box=True)
    assert found.box.shape == (0,)
    assert found.anchor.tolist() == [-1] * 5
    assert ops.match_boxes(none, none).iou.shape == (0,)
    assert ops.match_boxes(torch.zeros(0, 3, 4), torch.zeros(0, 2, 4)).iou.shape == (0, 3)


@pytest.mark.usefixtures("each_backend")
def test_strided_inputs_and_inputs_of_other_modes():
    anchors, boxes = random_boxes(600, 30), random_boxes(50, 31)
    expected = ops.match_boxes(anchors, boxes, per_box=True)
    wide = torch.full((1200, 9), -7.0)
    wide[::2, 1::2] = anchors
    turned = boxes.t().contiguous().t()
    with torch.inference_mode():
        inference = ops.match_boxes(anchors, boxes, per_box=True)
    recording = ops.match_boxes(anchors.clone().requires_grad_(), boxes.clone().requires_grad_(), per_box=True)
    for found in (ops.match_boxes(wide[::2, 1::2], turned, per_box=True), inference, recording):
        assert same(found.iou, expected.iou)
        assert same(found.box, expected.box)
        assert same(found.anchor, expected.anchor)
        assert not found.iou.requires_grad
    assert wide[1::2].eq(-7).all()
    assert wide[:, ::2].eq(-7).all()


def test_compile_and_export_keep_it_as_one_node():
    anchors, boxes = random_boxes(300, 40), random_boxes(20, 41)

    class Assign(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            found = ops.match_boxes(a, b, thresholds=(0.3, 0.7), low_quality=True)
            return found.matched_box(), found.iou + 1

    expected = Assign()(anchors, boxes)
    compiled = torch.compile(Assign(), backend="aot_eager", fullgraph=True)
    assert all(same(x, y) for x, y in zip(compiled(anchors, boxes), expected, strict=True))
    rows = torch.export.Dim("rows", min=2, max=10_000)
    program = torch.export.export(Assign(), (anchors, boxes), dynamic_shapes=({0: rows}, None))
    nodes = [n for n in program.graph.nodes if "match_boxes" in str(n.target)]
    assert len(nodes) == 1
    more = random_boxes(450, 42)
    assert all(same(x, y) for x, y in zip(program.module()(more, boxes), Assign()(more, boxes), strict=True))
