"""Anchors in no order are sorted by cells before they are matched: no decision may show it.

Every case is large enough to be sorted (8 tiles of 512 anchors, 64 boxes) or just below, and full of equal IoU.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from torchvision.ops import box_iou as torchvision_iou

from tests.ops.box_makers import same
from togi import ops

pytestmark = pytest.mark.threads

TILE = 512


def scattered(count: int, kind: str, generator: torch.Generator) -> Tensor:
    """float64 xyxy boxes in no order."""
    if kind == "clusters":
        centre = torch.rand(3, 2, generator=generator, dtype=torch.float64) * 800
        low = centre[torch.randint(3, (count,), generator=generator)]
        low = low + torch.randn(count, 2, generator=generator, dtype=torch.float64) * 3
        extent = torch.rand(count, 2, generator=generator, dtype=torch.float64) * 20 + 1
    elif kind == "integers":  # some without an area
        low = torch.randint(0, 40, (count, 2), generator=generator).double()
        extent = torch.randint(0, 12, (count, 2), generator=generator).double()
    else:  # few boxes, many copies
        base = torch.rand(5, 4, generator=generator, dtype=torch.float64) * 300 + 1
        low, extent = base[torch.randint(5, (count,), generator=generator)].split(2, 1)
    return torch.cat([low, low + extent], 1)


def spoil(boxes: Tensor, how: str, rows: Tensor) -> None:
    if how == "nan":
        boxes[rows, 1] = float("nan")
    elif how == "inf":
        boxes[rows, 2] = float("inf")
    elif how == "no area":
        boxes[rows, 2:] = boxes[rows, :2]
    elif how == "inside out":
        boxes[rows] = boxes[rows][:, [2, 3, 0, 1]]
    elif how == "far away":
        boxes[rows] += 30_000


@pytest.fixture(params=[1, 2, 3, 4])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_sorted_anchors_are_matched_as_eager_matches_them(dtype, threads):
    for seed in range(12):
        chance, generator = random.Random(f"{seed} {threads} {dtype}"), torch.Generator().manual_seed(seed)
        count = 8 * TILE + chance.choice([-1, 0, 1, TILE - 1, TILE + 1])
        columns = chance.choice([63, 64, 65])
        kinds = ("clusters", "integers", "copies")
        anchors = scattered(count, chance.choice(kinds), generator).to(dtype)
        boxes = scattered(columns, chance.choice(kinds), generator).to(dtype)
        for some in (anchors, boxes):
            how = chance.choice(["as it is", "nan", "inf", "no area", "inside out", "far away"])
            spoil(some, how, torch.randint(len(some), (3,), generator=generator))
        wide = torch.full((2 * count, 9), -7.0, dtype=dtype)
        wide[::2, 1::2] = anchors
        exact = [some if dtype == torch.float64 else some.float() for some in (anchors, boxes)]
        iou = torchvision_iou(*exact)
        by_row, by_column = iou.max(1), iou.max(0)
        found = ops.match_boxes(
            wide[::2, 1::2], boxes.t().contiguous().t(), low_quality=True, thresholds=0.5, check=False
        )
        assert same(found.iou, by_row.values)
        assert same(found.box, by_row.indices)
        assert same(found.anchor_iou, by_column.values)
        assert same(found.anchor, by_column.indices)
        alone = ops.match_boxes(anchors, boxes, per_box=True, check=False)  # ties are not followed here
        assert same(alone.anchor, by_column.indices)
        positive = (by_row.values >= 0.5) | (iou == by_column.values).any(1)
        known = ~by_row.values.isnan()
        assert torch.equal(found.label[known] == 1, positive[known])


def test_the_first_zero_is_found_past_an_anchor_whose_iou_is_negative():
    """Far from 0 widths of 0.03 and 0.05 both round to 0.0625: the intersection exceeds the sum of the areas."""
    generator = torch.Generator().manual_seed(3)
    anchors, boxes = scattered(8 * TILE, "integers", generator).float(), scattered(64, "integers", generator).float()
    for some in (anchors, boxes):
        some[:, 2:] -= some[:, :2] - 1
    anchors[0] = torch.tensor([1e6, 1e6, 0.032, 0.032])
    boxes[63] = torch.tensor([1e6, 1e6, 0.0525, 0.0525])
    iou = torchvision_iou(anchors, boxes, fmt="xywh")
    assert iou[0, 63] < 0
    found = ops.match_boxes(anchors, boxes, low_quality=True, thresholds=0.5, format="xywh")
    assert same(found.anchor, iou.max(0).indices)
    assert found.anchor[63] == 1
