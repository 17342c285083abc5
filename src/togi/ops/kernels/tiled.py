"""The operators in plain torch, a tile of pairs at a time: for machines without a compiler, and for devices without a
kernel.

The same decisions as the native kernel, and memory of the same order: inputs, results and a few tiles.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from togi.ops.measures import Corners, corners, measure, negative_sizes

_TILE_PAIRS = 1 << 14
_ACCELERATOR_TILE_PAIRS = 1 << 22
_TILE_COLUMNS = 1 << 10
_NMS_BLOCK = 1 << 9


def match(
    anchors: Tensor, boxes: Tensor, format: str, undefined: str, results: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
) -> bool:
    """Fills ``results`` = (best, index, column best, column index, tied); those of size 0 are not wanted.

    True where a box on the CPU has a negative size, here and in the other two: elsewhere asking would wait for the
    device.
    """
    best, index, column_best, column_index, tied = results
    for top, left, iou in _tiles(anchors, boxes, "iou", format, undefined):
        rows, columns = slice(top, top + iou.shape[0]), slice(left, left + iou.shape[1])
        _keep_best(best[rows], index[rows], *first_max(iou, 1), left, left == 0)
        if column_best.numel():
            _keep_best(column_best[columns], column_index[columns], *first_max(iou, 0), top, top == 0)
    if tied.numel():
        tied.zero_()
        for top, left, iou in _tiles(anchors, boxes, "iou", format, undefined):
            tied[top : top + iou.shape[0]] |= (iou == column_best[left : left + iou.shape[1]]).any(1)
    return _any_negative(anchors, boxes, format)


def topk(anchors: Tensor, boxes: Tensor, format: str, undefined: str, values: Tensor, indices: Tensor) -> bool:
    """Fills ``values`` and ``indices``, both [N, k] with 1 <= k <= M; ties in favour of the lower index, NaN first."""
    k = values.shape[1]
    for top, left, iou in _tiles(anchors, boxes, "iou", format, undefined):
        rows = slice(top, top + iou.shape[0])
        index = torch.arange(left, left + iou.shape[1], device=iou.device).expand_as(iou)
        if left:
            held = min(k, left)
            iou, index = torch.cat([values[rows, :held], iou], 1), torch.cat([indices[rows, :held], index], 1)
        iou, order = iou.sort(dim=1, descending=True, stable=True)
        filled = min(k, iou.shape[1])
        values[rows, :filled], indices[rows, :filled] = iou[:, :k], index.gather(1, order[:, :k])
    return _any_negative(anchors, boxes, format)


def matrix(anchors: Tensor, boxes: Tensor, kind: str, format: str, undefined: str, out: Tensor) -> bool:
    """Fills ``out`` [N, M]."""
    for top, left, tile in _tiles(anchors, boxes, kind, format, undefined):
        out[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    return _any_negative(anchors, boxes, format)


def nms(planes: Tensor, ends: Tensor, threshold: float, kept: Tensor) -> None:
    """Fills ``kept`` bool [N] for ``planes`` [5, N] (corners and area); class c ends at ``ends[c]``.

    A block of boxes against all that is kept, then against itself, in order of the scores.
    """
    first = 0
    for end in ends.tolist():
        kept_blocks: list[Tensor] = []
        for at in range(first, end, _NMS_BLOCK):
            block = planes[:, at : min(at + _NMS_BLOCK, end)]
            open_ = torch.ones(block.shape[1], dtype=torch.bool, device=planes.device)
            for earlier in kept_blocks:
                open_ &= ~_overlaps(earlier, block, threshold).any(0)
            alive = _greedy(_overlaps(block, block, threshold).cpu(), open_.cpu()).to(planes.device)
            kept[at : at + block.shape[1]] = alive
            kept_blocks.append(block[:, alive])
        first = end


def _overlaps(a: Tensor, b: Tensor, threshold: float) -> Tensor:
    return measure("iou", Corners(*a).rows(), Corners(*b).columns()) > threshold


def _greedy(overlaps: Tensor, alive: Tensor) -> Tensor:
    for row, is_alive in enumerate(alive):  # later entries are read after they have changed
        if is_alive:
            alive[row + 1 :] &= ~overlaps[row, row + 1 :]
    return alive


def tile_shape(rows: int, columns: int, device: torch.device) -> tuple[int, int]:
    """Anchors and boxes per tile: small ones stay in the cache of a CPU; an accelerator wants few launches."""
    pairs = _TILE_PAIRS if device.type == "cpu" else _ACCELERATOR_TILE_PAIRS
    width = max(1, min(columns, _TILE_COLUMNS))
    return max(1, min(rows, pairs // width)), width


def _tiles(anchors: Tensor, boxes: Tensor, kind: str, format: str, undefined: str) -> Iterator[tuple[int, int, Tensor]]:
    """(first anchor, first box, values of the tile), boxes innermost."""
    height, width = tile_shape(len(anchors), len(boxes), anchors.device)
    for top in range(0, len(anchors), height):
        rows: Corners = corners(anchors[top : top + height], format).rows()
        for left in range(0, len(boxes), width):
            columns = corners(boxes[left : left + width], format).columns()
            yield top, left, measure(kind, rows, columns, undefined)


def _any_negative(anchors: Tensor, boxes: Tensor, format: str) -> bool:
    return any(t.device.type == "cpu" and bool(negative_sizes(t, format).any()) for t in (anchors, boxes))


def first_max(values: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest (NaN before all) and the first index that has it.

    By argmax, which promises the first; and on the CPU torch.max wakes all threads for every tile, however small.
    """
    index = values.argmax(dim, keepdim=True)
    return values.gather(dim, index).squeeze(dim), index.squeeze(dim)


def _keep_best(best: Tensor, index: Tensor, value: Tensor, at: Tensor, offset: int, first: bool) -> None:
    """Take over what is better than what earlier tiles found; in place in the results."""
    better = ~(value <= best) & ~best.isnan()
    if first:
        better = torch.ones_like(better)
    best.copy_(torch.where(better, value, best))
    index.copy_(torch.where(better, at + offset, index))
