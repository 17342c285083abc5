"""Gradients: gradcheck, torchvision's autograd, and nothing of size N x M kept."""

from __future__ import annotations

import pytest
import torch
import torchvision.ops as tv
from torch.autograd import gradcheck, gradgradcheck

from tests.ops.box_makers import random_boxes
from tests.ops.torchvision_measures import MEASURES
from togi import ops

LOSSES = {
    "giou": (ops.giou_loss, tv.generalized_box_iou_loss),
    "diou": (ops.diou_loss, tv.distance_box_iou_loss),
    "ciou": (ops.ciou_loss, tv.complete_box_iou_loss),
}


def leaves(count1: int, count2: int, *, size: float = 600) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes of about unit size that mostly overlap, in float64, away from ties."""
    both = random_boxes(count1, 1, size=size, dtype=torch.float64), random_boxes(count2, 2, dtype=torch.float64)
    return tuple((t / 100).requires_grad_() for t in both)


@pytest.mark.parametrize("box_format", ["xyxy", "xywh", "cxcywh"])
@pytest.mark.parametrize("measure", [ops.box_intersection, ops.box_iou, ops.box_giou, ops.box_diou])
def test_gradcheck_of_the_matrices(measure, box_format):
    assert gradcheck(lambda a, b: measure(a, b, format=box_format), leaves(6, 5))


@pytest.mark.parametrize("kind", MEASURES)
@pytest.mark.parametrize("tied", [False, True])
def test_matrices_have_torchvisions_gradients(kind, tied):
    """Ties: integer corners, of which many coincide. Complete IoU holds alpha constant, which gradcheck cannot know."""
    ours, theirs = MEASURES[kind]
    inputs = leaves(70, 1100)
    if tied:
        inputs = tuple(t.detach().round().requires_grad_() for t in inputs)
        inputs[0].data[:, 2:] += 1
        inputs[1].data[:, 2:] += 1
    weights = torch.randn(70, 1100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for found, expected in zip(
        torch.autograd.grad((ours(*inputs) * weights).sum(), inputs),
        torch.autograd.grad((theirs(*inputs) * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_undefined_pairs_get_no_gradient_when_they_count_as_zero():
    a = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 2.0, 2.0]], requires_grad=True)
    b = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.5, 0.5, 3.0, 3.0]])
    ops.box_iou(a, b, undefined="zero").sum().backward()
    assert a.grad.isfinite().all()
    assert a.grad[0].eq(0).all()
    assert a.grad[1].ne(0).any()


def test_batches_and_halves_have_gradients():
    a, b = leaves(6, 5)
    shared = a.detach().clone().requires_grad_()
    ops.box_giou(shared, torch.stack([b, b + 1])).sum().backward()
    expected = torch.autograd.grad(ops.box_giou(a, b).sum() + ops.box_giou(a, b + 1).sum(), a)[0]
    torch.testing.assert_close(shared.grad, expected)
    half = a.detach().bfloat16().requires_grad_()
    ops.box_giou(half, b.detach().bfloat16()).sum().backward()
    assert half.grad.dtype == torch.bfloat16


def test_nothing_of_the_size_of_the_matrix_is_kept():
    a, b = (random_boxes(n, n).requires_grad_() for n in (500, 400))
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        ops.box_ciou(a, b).sum()
    assert sum(kept) <= 4 * (500 + 400)


@pytest.mark.parametrize("kind", LOSSES)
def test_losses_are_torchvisions(kind):
    ours, theirs = LOSSES[kind]
    for size in (600, 5):  # overlapping, and hardly
        a, b = leaves(50, 50, size=size)
        for reduction in ("none", "mean", "sum"):
            torch.testing.assert_close(ours(a, b, reduction=reduction), theirs(a, b, reduction=reduction))
        expected = torch.autograd.grad(theirs(a, b, reduction="sum"), (a, b))
        torch.testing.assert_close(torch.autograd.grad(ours(a, b, reduction="sum"), (a, b)), expected)


def test_losses_of_degenerate_and_of_no_boxes():
    point = torch.tensor([[1.0, 1.0, 1.0, 1.0]], requires_grad=True)
    for loss in (ops.iou_loss, ops.giou_loss, ops.diou_loss):
        value = loss(point, point.detach().clone(), reduction="sum")
        value.backward()
        assert value.isfinite()
    assert point.grad.isfinite().all()
    empty = torch.zeros(0, 4, requires_grad=True)
    assert ops.giou_loss(empty, empty, reduction="mean") == 0


def test_gradcheck_of_the_losses():
    inputs = leaves(7, 7)
    for loss in (ops.iou_loss, ops.giou_loss, ops.diou_loss):
        assert gradcheck(loss, inputs)
        assert gradgradcheck(loss, inputs)


def test_gradients_survive_compilation():
    a, b = (random_boxes(n, n).requires_grad_() for n in (30, 20))
    compiled = torch.compile(lambda x, y: ops.box_giou(x * 2, y).sum(), backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(compiled(a, b), (a, b))
    torch.testing.assert_close(found, torch.autograd.grad(ops.box_giou(a * 2, b).sum(), (a, b)))
