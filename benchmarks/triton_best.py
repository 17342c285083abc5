"""Sizes of tiles and warps for the Triton kernel that finds the best box, timed on the device in turns.

    python -m benchmarks.triton_best              # compiles each way: under a minute on a GPU

Each way decides as the first one, or is named as wrong. The last two divide zeros as they are, and leave the rounding
of a division to the compiler, which tells what a rounded division costs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from benchmarks.gpu_parts.ops import PAIRS, best_iou, made_boxes

from togi import ops
from togi.measure import take_turn
from togi.ops.kernels import triton_boxes as kernels
from togi.ops.kernels import triton_measures
from togi.subject.inputs import Inputs

TILES = ((32, 16, 4), (64, 16, 4), (128, 16, 4), (32, 32, 4), (64, 32, 4), (64, 32, 8), (32, 16, 2), (16, 32, 2))
"""Queries, candidates, warps; the first is what togi.ops takes."""
TURNS = 9


@triton.jit
def _plain_share(overlap, union):
    return tl.div_rn(overlap, union)


@triton.jit
def _quick_share(overlap, union):
    return overlap / union


@contextmanager
def way(tile: tuple[int, int, int], share: Any = None) -> Iterator[None]:
    """The kernels with that tile, and another division."""
    with patch.object(kernels, "BEST_BLOCK", tile[:2]), patch.object(kernels, "WARPS", tile[2]):
        if share is None:
            yield
            return
        with patch.object(triton_measures, "_share", share):
            _forget()
            yield
        _forget()


def _forget() -> None:
    """What was compiled with another division."""
    for kernel in (kernels.best_kernel, triton_measures.measure):
        kernel.hash = None
        if hasattr(kernel, "device_caches"):
            kernel.device_caches.clear()


def main() -> None:
    anchors, boxes = (made_boxes(count, "cuda") for count in PAIRS)
    given, alone = [Inputs((anchors, boxes))], torch.compile(best_iou, fullgraph=True)
    base_ms = statistics.median(take_turn(alone, given, 5, device="cuda").pass_ms for _ in range(TURNS))
    print(f"arithmetic alone, compiled: {base_ms:.3f} ms", flush=True)
    ways = [(tile, None) for tile in TILES] + [(TILES[0], _plain_share), (TILES[0], _quick_share)]
    expected = ops.match_boxes(anchors, boxes)
    for tile, share in ways:
        with way(tile, share):
            try:
                found = ops.match_boxes(anchors, boxes)
                turns = [take_turn(ops.match_boxes, given, 5, device="cuda").pass_ms for _ in range(TURNS)]
            except Exception as error:  # Triton's compiler, of a way that does not exist here
                print(f"{tile} {share}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
                continue
        same = torch.equal(found.iou, expected.iou) and torch.equal(found.box, expected.box)
        name = getattr(getattr(share, "fn", None), "__name__", "")
        ms = statistics.median(turns)
        print(f"{tile} {name}: {ms:.3f} ms, {ms / base_ms:.2f} x{'' if same else ', another answer'}", flush=True)


if __name__ == "__main__":
    main()
