"""Gradients of the pairwise measures with respect to both sets of boxes, recomputed a tile at a time.

Nothing of size N x M is kept or made besides the upstream gradient itself. The derivatives are those that autograd
finds for ``formula.measure``, with its choices at kinks: half to each side where two corners are equal, and
through a clamp at its bound what this torch lets through.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from togi.ops.kernels.tiled import tile_shape
from togi.ops.measures import EPS, Corners, angle, compute_dtype, corners


def _passes_at_the_bound() -> bool:
    """True if a gradient goes through a clamp at its bound: it did in torch 2.9 and does not in 2.15."""
    with torch.inference_mode(False), torch.enable_grad():
        bound = torch.zeros(1, requires_grad=True)
        return bool(torch.autograd.grad(bound.clamp(min=0), bound)[0])


_PASSES_AT_THE_BOUND = _passes_at_the_bound()
"""Asked when this is imported: inside an operator nothing is recorded."""


def matrix_gradient(
    upstream: Tensor, anchors: Tensor, boxes: Tensor, kind: str, format: str, undefined: str
) -> tuple[Tensor, Tensor]:
    """Gradients for anchors [N, 4] and boxes [M, 4], from ``upstream`` [N, M], in ``compute_dtype``."""
    dtype = compute_dtype(anchors.dtype)
    sums = [torch.zeros(5, len(t), dtype=dtype, device=t.device) for t in (anchors, boxes)]
    height, width = tile_shape(len(anchors), len(boxes), anchors.device)
    for top in range(0, len(anchors), height):
        rows = slice(top, top + height)
        a = corners(anchors[rows], format).rows()
        for left in range(0, len(boxes), width):
            columns = slice(left, left + width)
            b = corners(boxes[columns], format).columns()
            for_a, for_b = _tile(upstream[rows, columns], a, b, kind, undefined)
            sums[0][:, rows] += torch.stack([part.sum(1) for part in for_a])
            sums[1][:, columns] += torch.stack([part.sum(0) for part in for_b])
    for_anchors = _to_format(Corners(*sums[0]), anchors, format)
    return for_anchors, _to_format(Corners(*sums[1]), boxes, format)


class _Extent(NamedTuple):
    """One side of an intersection or of a hull: from the corner ``low`` to ``high``; nothing where that is negative."""

    length: Tensor
    low_to_first: Tensor
    high_to_first: Tensor


def _tile(upstream: Tensor, a: Corners, b: Corners, kind: str, undefined: str) -> tuple[Corners, Corners]:
    """Gradients of one tile for the corners and areas of both sides, before they are summed."""
    wide = _extent(torch.maximum, torch.minimum, a.x1, b.x1, a.x2, b.x2)
    tall = _extent(torch.maximum, torch.minimum, a.y1, b.y1, a.y2, b.y2)
    intersection = wide.length.clamp(min=0) * tall.length.clamp(min=0)
    if kind == "intersection":
        return _through_area(upstream, wide, tall, torch.zeros_like(upstream))
    if kind == "iou" and undefined == "zero":
        upstream = torch.where(intersection > 0, upstream, 0)
    union = (a.area + b.area) - intersection
    if kind == "iou" and undefined == "zero":
        union = torch.where(intersection > 0, union, 1)
    iou = intersection / union
    for_intersection, for_union = upstream / union, -upstream * iou / union
    parts: list[tuple[Corners, Corners]] = []
    if kind == "giou":
        extra, hull = _hull_area(upstream, a, b, union)
        for_union = for_union + extra
        parts.append(hull)
    elif kind in ("diou", "ciou"):
        parts.append(_distance(upstream, a, b))
    if kind == "ciou":
        parts.append(_aspect(upstream, a, b, iou))
    parts.append(_through_area(for_intersection - for_union, wide, tall, for_union))
    return _total([p[0] for p in parts]), _total([p[1] for p in parts])


def _extent(low_of, high_of, a_low: Tensor, b_low: Tensor, a_high: Tensor, b_high: Tensor) -> _Extent:  # type: ignore[no-untyped-def]
    low, high = low_of(a_low, b_low), high_of(a_high, b_high)
    return _Extent(high - low, _share(a_low, b_low, low), _share(a_high, b_high, high))


def _share(first: Tensor, second: Tensor, chosen: Tensor) -> Tensor:
    """The share of the gradient that goes to the first of two: all where it was chosen, half where both are equal."""
    return ((first == chosen).to(chosen.dtype) - (second == chosen).to(chosen.dtype) + 1) / 2


def _through_area(for_area: Tensor, wide: _Extent, tall: _Extent, for_each_area: Tensor) -> tuple[Corners, Corners]:
    """The gradient from a product of two clamped extents to the corners; the boxes' own areas get ``for_each_area``."""
    for_width = for_area * tall.length.clamp(min=0) * _through_clamp(wide.length)
    for_height = for_area * wide.length.clamp(min=0) * _through_clamp(tall.length)
    return _through_extents(for_width, for_height, wide, tall, for_each_area)


def _through_clamp(length: Tensor) -> Tensor:
    """A mask of where the gradient goes through ``clamp(min=0)``."""
    return length >= 0 if _PASSES_AT_THE_BOUND else length > 0


def _through_extents(
    for_width: Tensor, for_height: Tensor, wide: _Extent, tall: _Extent, for_each_area: Tensor
) -> tuple[Corners, Corners]:
    a = Corners(
        -for_width * wide.low_to_first,
        -for_height * tall.low_to_first,
        for_width * wide.high_to_first,
        for_height * tall.high_to_first,
        for_each_area,
    )
    b = Corners(-for_width - a.x1, -for_height - a.y1, for_width - a.x2, for_height - a.y2, for_each_area)
    return a, b


def _hull(a: Corners, b: Corners) -> tuple[_Extent, _Extent]:
    wide = _extent(torch.minimum, torch.maximum, a.x1, b.x1, a.x2, b.x2)
    tall = _extent(torch.minimum, torch.maximum, a.y1, b.y1, a.y2, b.y2)
    return wide, tall


def _hull_area(upstream: Tensor, a: Corners, b: Corners, union: Tensor) -> tuple[Tensor, tuple[Corners, Corners]]:
    """The gradient of union / hull: that for the union, and for the corners through the hull."""
    wide, tall = _hull(a, b)
    hull = wide.length.clamp(min=0) * tall.length.clamp(min=0)
    return upstream / hull, _through_area(-upstream * union / hull**2, wide, tall, torch.zeros_like(upstream))


def _distance(upstream: Tensor, a: Corners, b: Corners) -> tuple[Corners, Corners]:
    """The gradient of minus the squared distance of the centres over the squared diagonal of the hull."""
    wide, tall = _hull(a, b)
    width, height = wide.length.clamp(min=0), tall.length.clamp(min=0)
    diagonal = width**2 + height**2 + EPS
    x, y = (a.x1 + a.x2) / 2 - (b.x1 + b.x2) / 2, (a.y1 + a.y2) / 2 - (b.y1 + b.y2) / 2
    for_diagonal = upstream * (x**2 + y**2) / diagonal**2
    zero = torch.zeros_like(upstream)
    hull = _through_extents(2 * width * for_diagonal, 2 * height * for_diagonal, wide, tall, zero)
    for_x, for_y = -upstream * x / diagonal, -upstream * y / diagonal
    return (
        _total([hull[0], Corners(for_x, for_y, for_x, for_y, zero)]),
        _total([hull[1], Corners(-for_x, -for_y, -for_x, -for_y, zero)]),
    )


def _aspect(upstream: Tensor, a: Corners, b: Corners, iou: Tensor) -> tuple[Corners, Corners]:
    """The gradient of minus alpha v, with alpha held constant."""
    turn = angle(a) - angle(b)
    scale = 4 / math.pi**2
    v = scale * turn**2
    for_angle = -upstream * v / (1 - iou + v + EPS) * 2 * scale * turn
    return _through_angle(for_angle, a), _through_angle(-for_angle, b)


def _through_angle(for_angle: Tensor, box: Corners) -> Corners:
    width, height = box.x2 - box.x1, box.y2 - box.y1
    square = width**2 + height**2
    for_width, for_height = for_angle * (height / square), -for_angle * (width / square)
    return Corners(-for_width, -for_height, for_width, for_height, torch.zeros_like(for_angle))


def _total(parts: list[Corners]) -> Corners:
    return Corners(*(sum(values[1:], values[0]) for values in zip(*parts, strict=True)))


def _to_format(gradient: Corners, boxes: Tensor, format: str) -> Tensor:
    """The gradient from corners and area to the four numbers that the boxes were given in."""
    _, _, c, d = boxes.to(gradient.area.dtype).unbind(-1)
    x1, y1, x2, y2, area = gradient
    if format == "xyxy":
        width, height = c - boxes[:, 0].to(c.dtype), d - boxes[:, 1].to(d.dtype)
        by_width, by_height = area * height, area * width
        return torch.stack([x1 - by_width, y1 - by_height, x2 + by_width, y2 + by_height], -1)
    if format == "xywh":
        return torch.stack([x1 + x2, y1 + y2, x2 + area * d, y2 + area * c], -1)
    return torch.stack([x1 + x2, y1 + y2, (x2 - x1) / 2 + area * d, (y2 - y1) / 2 + area * c], -1)
