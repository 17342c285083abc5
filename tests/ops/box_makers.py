"""Boxes for the tests of togi.ops: random ones, ones full of ties, and strategies for hypothesis."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st
from torch import Tensor


def random_boxes(count: int, seed: int, *, size: float = 200.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """xyxy boxes with positive sizes in a square of 800."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(count, 2, generator=generator, dtype=torch.float64) * 800
    extent = torch.rand(count, 2, generator=generator, dtype=torch.float64) * size + 1
    return torch.cat([low, low + extent], 1).to(dtype)


def grid_boxes(steps: int) -> Tensor:
    """An anchor grid as detectors make it: integer corners, three sizes, so that equal IoU abound. steps² x 3 boxes."""
    at = torch.arange(steps, dtype=torch.float32) * 16
    y, x = (t.reshape(-1, 1) for t in torch.meshgrid(at, at, indexing="ij"))
    boxes = [torch.cat([x - s, y - s, x + s, y + s], 1) for s in (8.0, 16.0, 40.0)]
    return torch.stack(boxes, 1).reshape(-1, 4)


# Few values, so that corners, areas and IoU coincide; and some of every kind of float.
_NEAT = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0]
_ODD = [-0.0, 1e-45, 1e-38, 0.1, 0.3, 1 / 3, 1e20, 3e38, -5.0, 16777216.0]
_SPECIAL = [math.nan, math.inf, -math.inf]


def _box(corner: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    return st.lists(corner, min_size=4, max_size=4)


def _sorted(box: list[float]) -> list[float]:
    x, y = sorted(box[0::2]), sorted(box[1::2])
    return [x[0], y[0], x[1], y[1]]


neat_boxes = _box(st.sampled_from(_NEAT)).map(_sorted)
"""Small integers, many degenerate and equal ones."""
any_boxes = _box(st.sampled_from(_NEAT + _ODD + _SPECIAL) | st.floats(width=32))
"""Anything a float32 can hold, corners in any order."""
plain_boxes = _box(st.floats(-1e3, 1e3, width=32)).map(_sorted)


def box_tensors(boxes: st.SearchStrategy[list[float]], most: int = 40) -> st.SearchStrategy[Tensor]:
    return st.lists(boxes, min_size=1, max_size=most).map(lambda rows: torch.tensor(rows, dtype=torch.float32))


def same(left: Tensor, right: Tensor) -> bool:
    """Equal shapes, dtypes and values, NaN being equal to NaN."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return (
        torch.equal(left, right)
        if not left.is_floating_point()
        else torch.equal(torch.nan_to_num(left, nan=1e30), torch.nan_to_num(right, nan=1e30))
        and torch.equal(left.isnan(), right.isnan())
    )
