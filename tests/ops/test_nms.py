"""Non-maximum suppression: torchvision's decisions, on both backends, for anything that a box can hold."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops.boxes import _batched_nms_vanilla

from tests.ops.box_makers import any_boxes, grid_boxes, neat_boxes, plain_boxes, random_boxes
from togi import ops
from togi.ops.nms import nms_kept

pytestmark = pytest.mark.threads

BACKENDS = ("native", "tiled")


@pytest.fixture(params=BACKENDS)
def _backend(request, monkeypatch):
    monkeypatch.setenv("TOGI_OPS_BACKEND", request.param)


def random_scores(count: int, seed: int, *, ties: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(count, generator=generator, dtype=torch.float64)
    return ((scores * 8).floor() / 8 if ties else scores).to(dtype)


def greedy(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> list[int]:
    """The definition, in plain Python and float64."""
    kept: list[int] = []
    for at in sorted(range(len(boxes)), key=lambda i: (-float(scores[i]), i)):
        if all(_iou(boxes[k].tolist(), boxes[at].tolist()) <= threshold for k in kept):
            kept.append(at)
    return kept


def _iou(a: list[float], b: list[float]) -> float:
    inter = max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return inter / (areas - inter) if areas > inter else 0.0


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 129, 3000])
@pytest.mark.usefixtures("_backend")
def test_torchvisions_decisions(count, dtype, ties):
    boxes = random_boxes(count, count, dtype=dtype)
    scores = random_scores(count, 1, ties=ties, dtype=dtype)
    for threshold in (0.0, 0.3, 0.5, 0.9, 1.0):
        expected = torchvision.ops.nms(boxes, scores, threshold)
        assert torch.equal(ops.nms(boxes, scores, threshold), expected)


@pytest.mark.usefixtures("_backend")
def test_equal_boxes_scores_and_iou_at_the_threshold():
    boxes = grid_boxes(14)
    scores = random_scores(len(boxes), 3, ties=True)
    ious = ops.box_iou(boxes[:60], boxes[:60]).unique().tolist()
    for threshold in ious[::5]:  # exactly an IoU that occurs, and its neighbours in float64
        for near in (threshold, math.nextafter(threshold, 2), math.nextafter(threshold, -1)):
            assert torch.equal(ops.nms(boxes, scores, near), torchvision.ops.nms(boxes, scores, near)), near
    same = boxes[:1].expand(300, 4)
    assert ops.nms(same, torch.ones(300), 0.5).tolist() == [0]


@pytest.mark.parametrize("threshold", [0.1, 0.2, 0.3, 1 / 3, 0.7, 2 / 3, -0.1, 2.0, math.nan, math.inf, -math.inf])
@pytest.mark.usefixtures("_backend")
def test_thresholds_that_no_float32_is(threshold):
    boxes = torch.tensor(list(itertools.product([0.0, 1.0], [0.0, 1.0], [2.0, 3.0, 4.0], [2.0, 3.0, 4.0])))
    scores = random_scores(len(boxes), 2)
    assert torch.equal(ops.nms(boxes, scores, threshold), torchvision.ops.nms(boxes, scores, threshold))


scores_of_any_kind = st.sampled_from([0.0, -0.0, 0.5, 1.0, math.nan, math.inf, -math.inf]) | st.floats(width=32)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_anything_a_box_can_hold(data):
    rows = data.draw(st.lists(any_boxes | neat_boxes, min_size=1, max_size=90))
    scores = torch.tensor(data.draw(st.lists(scores_of_any_kind, min_size=len(rows), max_size=len(rows))))
    boxes, threshold = torch.tensor(rows), data.draw(st.sampled_from([0.0, 0.3, 0.5, 1.0]) | st.floats(0, 1))
    expected = torchvision.ops.nms(boxes, scores, threshold)
    for name in BACKENDS:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("TOGI_OPS_BACKEND", name)
            assert torch.equal(ops.nms(boxes, scores, threshold, check=False), expected), name


@settings(max_examples=40, deadline=None)
@given(st.lists(plain_boxes, min_size=1, max_size=25), st.floats(0.05, 0.95), st.integers(0, 99))
def test_the_definition_in_float64(rows, threshold, seed):
    boxes = torch.tensor(rows, dtype=torch.float64)
    scores = random_scores(len(rows), seed, ties=True, dtype=torch.float64)
    assert ops.nms(boxes, scores, threshold).tolist() == greedy(boxes, scores, threshold)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.usefixtures("_backend")
def test_half_precision_is_converted_exactly(dtype):
    boxes, scores = random_boxes(700, 1).to(dtype), random_scores(700, 2, dtype=dtype)
    expected = torchvision.ops.nms(boxes.float(), scores.float(), 0.5)
    assert torch.equal(ops.nms(boxes, scores, 0.5), expected)
    assert torch.equal(ops.nms(boxes, scores.float(), 0.5), expected)


@pytest.mark.parametrize("fmt", ["xywh", "cxcywh"])
def test_nms_does_not_depend_on_the_box_format(fmt):
    boxes, scores = grid_boxes(9), random_scores(243, 1)
    converted = torchvision.ops.box_convert(boxes, "xyxy", fmt)
    assert torch.equal(ops.nms(converted, scores, 0.2, format=fmt), ops.nms(boxes, scores, 0.2))


@pytest.mark.parametrize(("count", "classes"), [(1, 1), (200, 5), (3000, 1), (5000, 80), (3000, 3000)])
@pytest.mark.usefixtures("_backend")
def test_classes_do_not_suppress_each_other(count, classes):
    boxes, scores = random_boxes(count, 1), random_scores(count, 2, ties=True)
    idxs = torch.randint(-3, classes, (count,), generator=torch.Generator().manual_seed(3))
    found = ops.batched_nms(boxes, scores, idxs, 0.4)
    # By falling score, the lower index first: torchvision's last sort is stable on the CPU only up to its size.
    kept = _batched_nms_vanilla(boxes, scores, idxs, 0.4).sort().values
    assert torch.equal(found, kept[scores[kept].sort(stable=True, descending=True).indices])
    unsigned = (idxs + 3).to(torch.int32)
    assert torch.equal(ops.batched_nms(boxes, scores, unsigned, 0.4), found)


def test_far_away_boxes_keep_their_precision():
    """Moving each class to a place of its own rounds the coordinates: torchvision's short way decides wrongly here."""
    boxes = torch.tensor([[0.0, 0.0, 40.0, 40.0], [5.0, 0.0, 45.0, 40.0], [16e6, 0.0, 16e6 + 40, 1.0]])
    scores, idxs = torch.tensor([0.9, 0.8, 0.7]), torch.tensor([3, 3, 0])
    assert 0.77 < ops.box_iou(boxes[:1], boxes[1:2]).item() < 0.78
    assert ops.batched_nms(boxes, scores, idxs, 0.8).tolist() == [0, 1, 2]
    assert torchvision.ops.batched_nms(boxes, scores, idxs, 0.8).tolist() == [0, 2]


@pytest.mark.usefixtures("_backend")
def test_nothing_in_nothing_out():
    nothing = torch.zeros(0, 4)
    assert ops.nms(nothing, torch.zeros(0), 0.5).tolist() == []
    assert ops.batched_nms(nothing, torch.zeros(0), torch.zeros(0, dtype=torch.int64), 0.5).dtype == torch.int64


def test_strided_inputs_are_read_and_left_alone():
    wide = torch.zeros(500, 9)
    wide[:, 1:9:2] = random_boxes(500, 1)
    before, scores = wide.clone(), random_scores(1000, 2)[::2]
    assert torch.equal(ops.nms(wide[:, 1:9:2], scores, 0.5), torchvision.ops.nms(wide[:, 1:9:2], scores, 0.5))
    assert torch.equal(wide, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3, 5), torch.zeros(3), 0.5), r"boxes \[3, 5\].*last dimension has to be 4"),
        ((torch.zeros(4), torch.zeros(4), 0.5), r"boxes \[4\]: give \[N, 4\]"),
        ((torch.zeros(3, 4), torch.zeros(4), 0.5), r"scores is \[4\].*one for each box"),
        ((torch.zeros(3, 4), torch.zeros(3, 1), 0.5), r"scores is \[3, 1\]"),
        ((torch.zeros(3, 4), [0.0] * 3, 0.5), "scores is a <class 'list'>"),
        ((torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), 0.5), r"scores are torch.int64"),
        ((torch.zeros(3, 4, dtype=torch.int64), torch.zeros(3), 0.5), r"boxes.float\(\)"),
        ((torch.tensor([[5.0, 0, 1, 1]]), torch.zeros(1), 0.5), r"negative size"),
        ((torch.zeros(3, 4), torch.zeros(3, device="meta"), 0.5), r"on meta"),
    ],
)
def test_bad_arguments_of_nms_are_refused(arguments, message):
    with pytest.raises(ops.BoxError, match=message):
        ops.nms(*arguments)


def test_classes_that_are_refused():
    with pytest.raises(ops.BoxError, match="classes are integers"):
        ops.batched_nms(torch.zeros(3, 4), torch.zeros(3), torch.zeros(3), 0.5)
    with pytest.raises(ops.BoxError, match=r"idxs is \[2\]"):
        ops.batched_nms(torch.zeros(3, 4), torch.zeros(3), torch.zeros(2, dtype=torch.int64), 0.5)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)])
def test_torchs_own_checks_and_compiled_code(backend):
    planes = torch.stack([*random_boxes(20, 1).unbind(1), torch.ones(20)])
    torch.library.opcheck(nms_kept, (planes, torch.tensor([12, 20]), 0.5))
    boxes, scores = random_boxes(50, 1), random_scores(50, 2)
    compiled = torch.compile(lambda b, s: ops.nms(b, s, 0.5) + 0, fullgraph=False, backend=backend)
    assert torch.equal(compiled(boxes, scores), ops.nms(boxes, scores, 0.5))
