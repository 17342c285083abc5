# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The operators on CUDA devices: Triton kernels whose decisions are those of the CPU kernel.

``best_kernel`` streams the candidates past a block of queries and keeps the best of each. Over anchors and boxes it
gives the best box per anchor; with the roles exchanged, the best anchor per box (IoU is symmetric to the last bit). Run
k times, each time below what it found before, it gives the k best. No atomics, so the same answer every time; no memory
beyond results and, where queries are few, one partial result per slice of the candidates.

Values are compared as integers in the order of torch.max: NaN above all, zeros equal, and of equal values the lower
index. Products and sums are not fused and divisions are rounded (``enable_fp_fusion=False``, ``div_rn``): the bits are
eager's.

Written against the documentation of triton.language. Run through Triton's interpreter and compiled for sm_80 and sm_90
(benchmarks/triton_boxes.py); docs/gpu.md says whether they were proven on a device.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from togi.ops.kernels import tiled
from togi.ops.kernels.triton_measures import corners, measure
from togi.ops.measures import FORMATS
from togi.ops.measures import KINDS as ALL_KINDS

KINDS = {kind: number for kind, number in ALL_KINDS.items() if kind != "ciou"}
BEST_BLOCK = (32, 16)
"""Queries and candidates of a tile in single precision; see ``block``. So small that a multiprocessor holds many: a
rounded division is a branch, before which a thread cannot go on to its next pair."""
MATRIX_BLOCK = (16, 64)
"""The same, so that nothing is spilled."""
WARPS = 4
_PROGRAMS = 1024  # some for each of the 108 to 132 multiprocessors
_SLICE = 4096  # candidates per program at least, where they are shared out
_MOST_PASSES = 32  # of top-k; beyond, tiles are cheaper


@triton.jit
def _rank(value):
    """An integer that orders floats as torch.max does."""
    if value.dtype == tl.float32:
        bits = value.to(tl.int32, bitcast=True)
        largest = 0x7FFFFFFF
    else:
        bits = value.to(tl.int64, bitcast=True)
        largest = 0x7FFFFFFFFFFFFFFF
    rank = tl.where(bits < 0, bits ^ largest, bits)
    rank = tl.where(value == 0, 0, rank)
    return tl.where(value != value, largest, rank)


@triton.jit
def _value(rank, DTYPE: tl.constexpr):
    """The float of a rank."""
    largest = 0x7FFFFFFF if tl.float32 == DTYPE else 0x7FFFFFFFFFFFFFFF
    return tl.where(rank < 0, rank ^ largest, rank).to(DTYPE, bitcast=True)


@triton.jit(do_not_specialize=["n", "m", "per_slice"])  # a count that differs compiles nothing anew
def best_kernel(
    queries,
    candidates,
    best,
    index,
    bound,
    bound_index,
    n,
    m,
    per_slice,
    query_stride,
    query_step,
    candidate_stride,
    candidate_step,
    bound_stride,
    FORMAT: tl.constexpr,
    ZERO: tl.constexpr,
    BOUNDED: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """The candidate of highest IoU for each of n queries, among one slice of the m candidates per program row: fills
    ``best`` and ``index`` [slices, n]. BOUNDED: among those that come after ``bound`` and ``bound_index`` alone."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = rows < n
    a = corners(queries, rows, inside, query_stride, query_step, FORMAT, DTYPE)
    RANK: tl.constexpr = tl.int32 if tl.float32 == DTYPE else tl.int64
    # The rank of -inf: what a slice with nothing after the bound hands to the merge. What ranks below is a NaN, which
    # would win there.
    LOWEST: tl.constexpr = -(2**31) + 2**23 - 1 if tl.float32 == DTYPE else -(2**63) + 2**52 - 1
    limit = tl.zeros((BLOCK_N,), RANK)
    limit_index = tl.zeros((BLOCK_N,), tl.int64)
    if BOUNDED:
        limit = _rank(tl.load(bound + rows.to(tl.int64) * bound_stride, mask=inside, other=0.0))
        limit_index = tl.load(bound_index + rows.to(tl.int64) * bound_stride, mask=inside, other=0)
    # each place of the tile keeps its own best, and they are compared once, at the end: no threads wait for each other
    first = tl.program_id(1) * per_slice
    lanes = tl.arange(0, BLOCK_M)
    held = tl.full((BLOCK_N, BLOCK_M), LOWEST, RANK) if BOUNDED else tl.full((BLOCK_N, BLOCK_M), float("-inf"), DTYPE)
    held_start = tl.full((BLOCK_N, BLOCK_M), first, tl.int32)
    for start in range(first, tl.minimum(first + per_slice, m), BLOCK_M):
        # beyond the end the last candidate again: it loses to itself, whose index is lower
        columns = tl.minimum(start + lanes, m - 1)
        b = corners(candidates, columns, columns >= 0, candidate_stride, candidate_step, FORMAT, DTYPE)
        iou = measure(a, b, 1, ZERO)
        if BOUNDED:
            rank = _rank(iou)
            after = (rank == limit[:, None]) & (columns[None, :] > limit_index[:, None])
            wanted = (start + lanes < m)[None, :] & ((rank < limit[:, None]) | after)
            value = tl.where(wanted, rank, LOWEST)
            better = value > held
        else:
            value = iou
            better = (held == held) & ~(iou <= held)  # as by rank, in two comparisons: NaN is above all
        held = tl.where(better, value, held)
        held_start = tl.where(better, start, held_start)
    if not BOUNDED:
        held = _rank(held)
    best_rank = tl.max(held, 1)
    held_index = tl.min(tl.where(held == best_rank[:, None], held_start + lanes[None, :], 0x7FFFFFFF), 1)
    out = tl.program_id(1).to(tl.int64) * n + rows
    tl.store(best + out, _value(best_rank, DTYPE), mask=inside)
    tl.store(index + out, held_index.to(tl.int64), mask=inside)


@triton.jit(do_not_specialize=["n", "m"])  # a count that differs compiles nothing anew
def tied_kernel(
    queries,
    candidates,
    candidate_best,
    tied,
    n,
    m,
    query_stride,
    query_step,
    candidate_stride,
    candidate_step,
    FORMAT: tl.constexpr,
    ZERO: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Fill ``tied`` [n]: whether a query has the best IoU of some candidate."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = rows < n
    a = corners(queries, rows, inside, query_stride, query_step, FORMAT, DTYPE)
    is_tied = tl.zeros((BLOCK_N,), tl.int32)
    for start in range(0, m, BLOCK_M):
        columns = start + tl.arange(0, BLOCK_M)
        valid = columns < m
        b = corners(candidates, columns, valid, candidate_stride, candidate_step, FORMAT, DTYPE)
        iou = measure(a, b, 1, ZERO)
        best = tl.load(candidate_best + columns, mask=valid, other=0.0)
        same = (iou == best[None, :]) & valid[None, :]
        is_tied = is_tied | tl.max(same.to(tl.int32), 1)
    tl.store(tied + rows, is_tied != 0, mask=inside)


@triton.jit(do_not_specialize=["n"])  # but m, the stride of the result: aligned rows are written faster
def matrix_kernel(
    queries,
    candidates,
    out,
    n,
    m,
    query_stride,
    query_step,
    candidate_stride,
    candidate_step,
    KIND: tl.constexpr,
    FORMAT: tl.constexpr,
    ZERO: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """One measure of all pairs: fills ``out`` [n, m], contiguous."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside, valid = rows < n, columns < m
    a = corners(queries, rows, inside, query_stride, query_step, FORMAT, DTYPE)
    b = corners(candidates, columns, valid, candidate_stride, candidate_step, FORMAT, DTYPE)
    value = measure(a, b, KIND, ZERO)
    at = out + rows.to(tl.int64)[:, None] * m + columns[None, :]
    tl.store(at, value, mask=inside[:, None] & valid[None, :])


def match(
    anchors: Tensor, boxes: Tensor, format: str, undefined: str, results: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
) -> bool:
    """The match as in ``native``; negative sizes are not looked for (that would wait for the device), so always
    False."""
    best, index, column_best, column_index, tied = results
    with _on(anchors):
        _best(anchors, boxes, format, undefined, best, index)
        if column_best.numel():
            _best(boxes, anchors, format, undefined, column_best, column_index)
        if tied.numel():
            grid = (triton.cdiv(len(anchors), block(BEST_BLOCK, best.dtype)[0]),)
            given = (anchors, boxes, column_best, tied, len(anchors), len(boxes), *_strides(anchors, boxes))
            tied_kernel[grid](*given, **_options(format, undefined, best.dtype, BEST_BLOCK))
    return False


def topk(anchors: Tensor, boxes: Tensor, format: str, undefined: str, values: Tensor, indices: Tensor) -> bool:
    """The best k as in ``native``: a pass per place."""
    k = values.shape[1]
    if k > _MOST_PASSES:
        return tiled.topk(anchors, boxes, format, undefined, values, indices)
    with _on(anchors):
        for place in range(k):
            bound = (values[:, place - 1], indices[:, place - 1]) if place else None
            best, index = values.new_empty(len(anchors)), indices.new_empty(len(anchors))
            _best(anchors, boxes, format, undefined, best, index, bound)
            values[:, place], indices[:, place] = best, index
    return False


def matrix(anchors: Tensor, boxes: Tensor, kind: str, format: str, undefined: str, out: Tensor) -> bool:
    """The matrix as in ``native``; complete IoU, which needs an arc tangent with torch's bits, in tiles of torch."""
    if kind not in KINDS:
        return tiled.matrix(anchors, boxes, kind, format, undefined, out)
    rows, columns = block(MATRIX_BLOCK, out.dtype)
    grid = (triton.cdiv(len(anchors), rows), triton.cdiv(len(boxes), columns))
    if grid[1] > 65535:  # the most a grid can have there
        return tiled.matrix(anchors, boxes, kind, format, undefined, out)
    with _on(anchors):
        given = (anchors, boxes, out, len(anchors), len(boxes), *_strides(anchors, boxes))
        matrix_kernel[grid](*given, KIND=KINDS[kind], **_options(format, undefined, out.dtype, MATRIX_BLOCK))
    return False


nms = tiled.nms


def _best(
    queries: Tensor,
    candidates: Tensor,
    format: str,
    undefined: str,
    best: Tensor,
    index: Tensor,
    bound: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Fills ``best`` and ``index`` [N], contiguous. Few queries leave a device idle: the candidates are sliced then."""
    n, m = len(queries), len(candidates)
    rows, columns = block(BEST_BLOCK, best.dtype)
    blocks = triton.cdiv(n, rows)
    slices = max(1, min(_PROGRAMS // blocks, triton.cdiv(m, _SLICE)))
    per_slice = triton.cdiv(triton.cdiv(m, slices), columns) * columns
    slices = triton.cdiv(m, per_slice)
    parts, part_index = (best, index) if slices == 1 else (best.new_empty(slices, n), index.new_empty(slices, n))
    limit, limit_index = bound if bound is not None else (best, index)
    given = (queries, candidates, parts, part_index, limit, limit_index, n, m, per_slice)
    best_kernel[(blocks, slices)](
        *given,
        *_strides(queries, candidates),
        limit.stride(0),
        BOUNDED=bound is not None,
        **_options(format, undefined, best.dtype, BEST_BLOCK),
    )
    if slices > 1:
        highest, at = tiled.first_max(parts, 0)
        best.copy_(highest)
        index.copy_(part_index.gather(0, at.unsqueeze(0)).squeeze(0))


def _strides(queries: Tensor, candidates: Tensor) -> tuple[int, ...]:
    return (*queries.stride(), *candidates.stride())


def block(single: tuple[int, int], dtype: torch.dtype) -> tuple[int, int]:
    """The tile in ``dtype``: doubles take two registers each, and their division some more."""
    return (single[0] // 2, single[1] // 2) if dtype == torch.float64 else single


def _options(format: str, undefined: str, dtype: torch.dtype, single: tuple[int, int]) -> dict[str, Any]:
    rows, columns = block(single, dtype)
    return {
        "FORMAT": FORMATS[format],
        "ZERO": undefined == "zero",
        "DTYPE": tl.float64 if dtype == torch.float64 else tl.float32,
        "BLOCK_N": rows,
        "BLOCK_M": columns,
        "num_warps": WARPS,
        "enable_fp_fusion": False,
    }


def _on(tensor: Tensor) -> AbstractContextManager[Any]:
    """Kernels start on the current device, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
