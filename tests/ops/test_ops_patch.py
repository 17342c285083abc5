"""togi.ops.patch: the originals' answers, everything put back, and models that train to the same bits."""

from __future__ import annotations

import inspect
import sys
import threading
from types import ModuleType

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from torchvision import tv_tensors
from torchvision.models import detection
from torchvision.models.detection._utils import Matcher, SSDMatcher

from tests.ops.box_makers import any_boxes, box_tensors, grid_boxes, random_boxes, same
from togi import ops
from togi.ops import drop_in, operators, pending

FUNCTIONS = ("box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou")
ORIGINALS = {name: getattr(torchvision.ops.boxes, name) for name in FUNCTIONS}
INTS = [[0, 0, 100, 100], [0, 0, 50, 50], [200, 200, 300, 300], [0, 0, 25, 25]]
FLOATS = [
    [285.3538, 185.5758, 1193.5110, 851.4551],
    [285.1472, 188.7374, 1192.4984, 851.0669],
    [279.2440, 197.9812, 1189.4746, 849.2019],
]
DISTANCE = [[1.0, 0.1875, -0.4444], [0.1875, 1.0, -0.5625], [-0.4444, -0.5625, 1.0], [-0.0781, 0.1875, -0.6267]]
# The values of torchvision's own tests (test/test_ops.py, TestBoxIou and its siblings).
EXPECTED = {
    "box_iou": [[1.0, 0.25, 0.0], [0.25, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0625, 0.25, 0.0]],
    "generalized_box_iou": [
        [1.0, 0.25, -0.7778],
        [0.25, 1.0, -0.8611],
        [-0.7778, -0.8611, 1.0],
        [0.0625, 0.25, -0.8819],
    ],
    "distance_box_iou": DISTANCE,
    "complete_box_iou": DISTANCE,
}
FLOATS_EXPECTED = [[1.0, 0.9933, 0.9673], [0.9933, 1.0, 0.9737], [0.9673, 0.9737, 1.0]]


@pytest.fixture(autouse=True)
def _everything_is_back():
    yield
    assert {name: getattr(torchvision.ops, name) for name in FUNCTIONS} == ORIGINALS
    assert {name: getattr(torchvision.ops.boxes, name) for name in FUNCTIONS} == ORIGINALS
    assert detection.rpn.box_ops is torchvision.ops.boxes
    assert not hasattr(Matcher.__call__, "__wrapped__")


@pytest.fixture
def calls(monkeypatch):
    """How often our operator answered."""
    counted: list[str] = []
    inner = operators.box_matrix

    def counting(*args):
        counted.append(args[2])
        return inner(*args)

    monkeypatch.setattr("togi.ops.boxes.box_matrix", counting)
    return counted


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.float32, torch.float64])
def test_torchvisions_own_cases(name, dtype):
    with ops.patch("torchvision"):
        function = getattr(torchvision.ops, name)
        assert function is not ORIGINALS[name]
        found = function(torch.tensor(INTS, dtype=dtype), torch.tensor(INTS[:3], dtype=dtype))
    torch.testing.assert_close(found, torch.tensor(EXPECTED[name]), rtol=0, atol=1e-4, check_dtype=False)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float16, 2e-3), (torch.float32, 1e-3), (torch.float64, 1e-3)])
def test_torchvisions_own_cases_of_floats(name, dtype, atol):
    boxes = torch.tensor(FLOATS, dtype=dtype)
    with ops.patch("torchvision"):
        found = getattr(torchvision.ops, name)(boxes, boxes)
    torch.testing.assert_close(found, torch.tensor(FLOATS_EXPECTED), rtol=0, atol=atol, check_dtype=False)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scripted_functions_are_the_originals(name):
    boxes = torch.tensor(INTS, dtype=torch.float32)
    with ops.patch("torchvision"):
        scripted = torch.jit.script(getattr(torchvision.ops, name))
        assert same(scripted(boxes, boxes), ORIGINALS[name](boxes, boxes))
        traced = torch.jit.trace(getattr(torchvision.ops, name), (boxes, boxes))
    called = {node.kind() for node in traced.graph.nodes()}
    assert called
    assert not [kind for kind in called if kind.startswith(("togi::", "prim::Python"))]


WHOLE = Version(torch.__version__) >= Version("2.15")
"""torch 2.9 and 2.11 break the graph where torchvision asks a wrapped function for its module."""


def test_compiled_code_has_the_original():
    a, b = random_boxes(9, 1), random_boxes(5, 2)
    with ops.patch("torchvision"):
        compiled = torch.compile(lambda x, y: torchvision.ops.box_iou(x, y) + 0, backend="eager", fullgraph=WHOLE)
        assert same(compiled(a, b), ORIGINALS["box_iou"](a, b))


@settings(max_examples=60, deadline=None)
@given(box_tensors(any_boxes, 12), box_tensors(any_boxes, 12), st.sampled_from([torch.float32, torch.float64]))
def test_the_bits_of_the_originals(a, b, dtype):
    a, b = a.to(dtype) + 0.0, b.to(dtype) + 0.0  # -0 becomes 0: which of both torch.max returns is not defined
    with ops.patch("torchvision"):
        for name in FUNCTIONS[:3]:
            assert same(getattr(torchvision.ops, name)(a, b), ORIGINALS[name](a, b)), name
        for fmt in ("xywh", "cxcywh"):
            assert same(torchvision.ops.box_iou(a, b, fmt=fmt), ORIGINALS["box_iou"](a, b, fmt=fmt)), fmt


@pytest.mark.parametrize(
    "ask",
    [
        lambda a, b: torchvision.ops.box_iou(a.half(), b.half()),
        lambda a, b: torchvision.ops.box_iou(a.bfloat16(), b),
        lambda a, b: torchvision.ops.distance_box_iou(a, b, eps=1e-3),
        pytest.param(
            lambda a, b: torchvision.ops.box_iou(
                torch.cat([a, a[:, :1]], 1), torch.cat([b, b[:, :1]], 1), fmt="cxcywhr"
            ),
            marks=pytest.mark.skipif(
                "cxcywhr" not in inspect.getsource(torchvision.ops.boxes.box_iou),
                reason="this torchvision has no rotated boxes",
            ),
        ),
        lambda a, b: torch.vmap(torchvision.ops.box_iou)(a.view(4, 5, 4), b.view(4, 5, 4)),
        lambda a, b: torchvision.ops.box_iou(tv_tensors.wrap(a, like=_tv_boxes()), b),
    ],
    ids=["half", "mixed", "eps", "rotated", "vmap", "subclass"],
)
def test_what_is_left_to_the_originals(calls, ask):
    a, b = random_boxes(20, 1), random_boxes(20, 2)
    expected = ask(a, b)
    with ops.patch("torchvision"):
        assert same(ask(a, b), expected)
    assert set(calls) <= {"iou"}, "the original of distance IoU asks for IoU by its name"


def _tv_boxes():
    return tv_tensors.BoundingBoxes(torch.zeros(1, 4), format="XYXY", canvas_size=(9, 9))


def test_gradients_equal_the_originals(calls):
    b = random_boxes(9, 2, dtype=torch.float64)
    found = []
    for patched in (False, True):
        a = random_boxes(7, 1, dtype=torch.float64).requires_grad_()
        with ops.patch("torchvision") if patched else ops.patch("torchvision", ModuleType("none")) as handle:
            if not patched:
                handle.undo()
            torchvision.ops.generalized_box_iou(a, b).square().sum().backward()
        found.append(a.grad)
    torch.testing.assert_close(*found)
    assert calls == ["giou"]


def test_names_taken_over_elsewhere_are_replaced_where_asked(calls):
    mine = ModuleType("mine")
    mine.iou = torchvision.ops.box_iou
    with ops.patch("torchvision"):
        assert mine.iou is ORIGINALS["box_iou"]
    with ops.patch("torchvision", mine):
        assert mine.iou is torchvision.ops.box_iou
        kept = mine.iou
        kept(random_boxes(2, 1), random_boxes(2, 2))
    assert mine.iou is ORIGINALS["box_iou"]
    assert len(calls) == 1
    kept(random_boxes(2, 1), random_boxes(2, 2))  # outlives the patch
    assert len(calls) == 1


def test_nested_in_any_order_after_errors_and_twice():
    first, second = ops.patch("torchvision"), ops.patch("torchvision", matcher=True)
    replaced = torchvision.ops.box_iou
    first.undo()
    first.undo()
    assert torchvision.ops.box_iou is replaced
    assert replaced is not ORIGINALS["box_iou"]
    with pytest.raises(ZeroDivisionError), ops.patch("torchvision"), second:
        1 / 0  # noqa: B018
    assert torchvision.ops.box_iou is ORIGINALS["box_iou"]


def test_what_somebody_else_replaced_meanwhile_is_theirs():
    theirs = object()
    with ops.patch("torchvision"):
        torchvision.ops.box_iou = theirs
    assert torchvision.ops.box_iou is theirs
    torchvision.ops.box_iou = ORIGINALS["box_iou"]


def test_from_several_threads():
    a, b = random_boxes(30, 1), random_boxes(30, 2)
    expected, wrong = ORIGINALS["box_iou"](a, b), []

    def work():
        for _ in range(50):
            with ops.patch("torchvision", matcher=True):
                if not same(torchvision.ops.box_iou(a, b), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_unknown_missing_and_impossible(monkeypatch):
    with pytest.raises(ops.PatchError, match="did you mean 'torchvision'"):
        ops.patch("torchvison")
    monkeypatch.setitem(sys.modules, "detectron2.structures.boxes", None)
    with pytest.raises(ops.PatchError, match="cannot be imported"):
        ops.patch("detectron2")
    with pytest.raises(ops.PatchError, match="matcher=True is for torchvision"):
        ops.patch("detectron2", matcher=True)


class Boxes:
    def __init__(self, tensor):
        self.tensor = tensor

    def area(self):
        return (self.tensor[:, 2] - self.tensor[:, 0]) * (self.tensor[:, 3] - self.tensor[:, 1])


def _detectron2(monkeypatch) -> ModuleType:
    """A stand-in with the formulas of detectron2.structures.boxes."""
    home, structures = ModuleType("detectron2.structures.boxes"), ModuleType("detectron2.structures")

    def pairwise_intersection(boxes1, boxes2):
        a, b = boxes1.tensor, boxes2.tensor
        extent = (torch.min(a[:, None, 2:], b[:, 2:]) - torch.max(a[:, None, :2], b[:, :2])).clamp_(min=0)
        return extent.prod(dim=2)

    def pairwise_iou(boxes1, boxes2):
        inter = pairwise_intersection(boxes1, boxes2)
        quotient = inter / (boxes1.area()[:, None] + boxes2.area() - inter)
        return torch.where(inter > 0, quotient, torch.zeros(1, dtype=inter.dtype))

    home.pairwise_intersection, home.pairwise_iou = pairwise_intersection, pairwise_iou
    structures.pairwise_iou = pairwise_iou
    for name, module in {"detectron2": ModuleType("detectron2"), structures.__name__: structures}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, home.__name__, home)
    return home


def test_detectron2_is_patched_and_restored(monkeypatch, calls):
    home = _detectron2(monkeypatch)
    a, b = Boxes(torch.cat([random_boxes(30, 1), torch.zeros(2, 4)])), Boxes(random_boxes(20, 2))
    iou, intersection = home.pairwise_iou(a, b), home.pairwise_intersection(a, b)
    original = home.pairwise_iou
    with ops.patch("detectron2"):
        assert sys.modules["detectron2.structures"].pairwise_iou is home.pairwise_iou is not original
        assert same(home.pairwise_iou(a, b), iou)
        assert same(home.pairwise_intersection(a, b), intersection)
        assert home.pairwise_iou(Boxes(a.tensor.half()), Boxes(b.tensor.half())).dtype == torch.float16
    assert calls == ["iou", "intersection"]
    assert home.pairwise_iou is original


@pytest.mark.parametrize("make", [lambda: Matcher(0.7, 0.3, True), lambda: Matcher(0.5, 0.5), lambda: SSDMatcher(0.5)])
@pytest.mark.parametrize("kind", ["random", "ties"])
def test_matchers_decide_alike_without_the_matrix(calls, make, kind):
    boxes = random_boxes(25, 1)
    anchors = random_boxes(3000, 2) if kind == "random" else grid_boxes(20)
    boxes = boxes if kind == "random" else anchors[::97] + 3
    expected = make()(torchvision.ops.box_iou(boxes, anchors))
    with ops.patch("torchvision", matcher=True):
        matrix = detection.retinanet.box_ops.box_iou(boxes, anchors)
        assert type(matrix) is pending.PendingIoU
        assert same(make()(matrix), expected)
        assert matrix.known is None
    assert calls == []


def test_a_pending_matrix_is_a_tensor_for_everybody_else():
    boxes, anchors = random_boxes(5, 1), random_boxes(40, 2)
    expected = torchvision.ops.box_iou(boxes, anchors)
    with ops.patch("torchvision", matcher=True):
        iou = detection.retinanet.box_ops.box_iou
        assert isinstance(iou(boxes, anchors), torch.Tensor)
        assert iou(boxes, anchors).shape == (5, 40)
        assert same(iou(boxes, anchors) + 0, expected)
        assert same(torch.max(iou(boxes, anchors), dim=0).indices, expected.max(0).indices)
        written = iou(boxes, anchors)
        written[:] = 0
        assert Matcher(0.5, 0.4)(written).tolist() == [-1] * 40
        with pytest.raises(ValueError, match="No ground-truth boxes"):
            Matcher(0.5, 0.4)(iou(boxes[:0], anchors))
        outlived = iou(boxes, anchors)
    assert same(Matcher(0.5, 0.4)(outlived), Matcher(0.5, 0.4)(expected))


def test_a_part_made_under_the_patch_can_be_scripted():
    numbers = {"training": 50, "testing": 50}
    with ops.patch("torchvision", matcher=True):
        part = detection.rpn.RegionProposalNetwork(
            detection.rpn.AnchorGenerator(), detection.rpn.RPNHead(8, 3), 0.7, 0.3, 64, 0.5, numbers, numbers, 0.7
        )
        assert type(part.box_similarity(random_boxes(3, 1), random_boxes(4, 2))) is pending.PendingIoU
        torch.jit.script(part)
    assert type(part.box_similarity(random_boxes(3, 1), random_boxes(4, 2))) is torch.Tensor


class OwnMatcher(Matcher):
    def set_low_quality_matches_(self, matches, all_matches, match_quality_matrix):
        matches[match_quality_matrix.argmax()] = 7


def test_a_matcher_of_somebodys_own_sees_the_values():
    boxes, anchors = random_boxes(5, 1), random_boxes(40, 2)
    expected = OwnMatcher(0.5, 0.4, True)(torchvision.ops.box_iou(boxes, anchors)[:1])
    with ops.patch("torchvision", matcher=True):
        found = OwnMatcher(0.5, 0.4, True)(detection.ssd.box_ops.box_iou(boxes[:1], anchors))
    assert same(found, expected)


MODELS = {
    "retinanet": lambda: detection.retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=4, min_size=96, max_size=96
    ),
    "fasterrcnn": lambda: detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=4, min_size=96, max_size=96
    ),
    "ssdlite": lambda: detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4),
}


@pytest.mark.parametrize(
    "name", ["ssdlite", *(pytest.param(n, marks=pytest.mark.thorough) for n in MODELS if n != "ssdlite")]
)
def test_a_model_trains_to_the_same_bits(name, calls):
    torch.manual_seed(0)
    model = MODELS[name]().train()
    images = [torch.rand(3, 96, 96), torch.rand(3, 96, 80)]
    targets = [{"boxes": random_boxes(n, n, size=50) / 10, "labels": torch.arange(1, n + 1) % 3 + 1} for n in (3, 2)]
    state = {key: value.clone() for key, value in model.state_dict().items()}

    def losses():
        model.load_state_dict(state)
        torch.manual_seed(1)
        return model(images, targets)

    expected = losses()
    with ops.patch("torchvision", model, matcher=True):
        found = losses()
        assert calls == []  # no matrix was computed
    assert {key: value.item() for key, value in found.items()} == {key: v.item() for key, v in expected.items()}
    with ops.patch("torchvision", model):
        assert {k: v.item() for k, v in losses().items()} == {k: v.item() for k, v in expected.items()}
        assert set(calls) == {"iou"}
    if name == "fasterrcnn":
        assert model.rpn.box_similarity is ORIGINALS["box_iou"]


def test_every_stand_in_has_an_original():
    home, table = drop_in.STAND_INS["torchvision"]
    assert all(callable(getattr(sys.modules[home], name)) for name in table)
