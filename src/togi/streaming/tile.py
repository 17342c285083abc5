"""How large a tile is, and whether its work is compiled: what measuring on the first call decides.

The byte budget gives the largest tile. Within it, tiles whose intermediates stay in the processor's caches are several
times faster than large ones, and how small is best depends on the operations, so a few sizes are timed on the tensors
of the call itself. The allocator's own peak corrects the model of ``footprint`` where operations need memory for
themselves.

Compiling (torch.compile, one body of one loop) costs seconds, so it is tried where a call is long enough, and kept
where it is faster on the same tile and proven equal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from togi.streaming.budget import mib
from togi.streaming.footprint import Weights
from togi.streaming.loop import Body, TileLoop

CACHED_BYTES = 1 << 20
"""Intermediates of the tile that trials start from: about a core's second-level cache."""
_TRIED = (0.25, 1.0, 4.0, 16.0, 64.0)
_MARGIN = 1.1
"""What the model of a tile may be off by before it is measured: allocations are rounded up to 64 bytes each."""
_LONG_S = 4e-3
"""Of plain work in a compiled tile: a call of compiled code costs some 50 microseconds."""
_FUSED_BYTES = 16 << 20
"""Modelled intermediates of a compiled tile: what is not fused away should still be near."""
_FASTER = 0.97
"""A larger tile, or a compiled one, has to take this share of the time to be preferred."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """What was decided about one loop. Bytes, so that it holds for other sizes too."""

    tile_bytes: float
    """Modelled bytes of a tile."""
    excess: float = 1.0
    """Measured over modelled bytes per position."""
    fixed_positions: float = 0.0
    """What operations need whatever the tile's size, as so many positions of the model."""
    per_position_s: float = 0.0
    body: Body | None = None
    compiling: str = ""
    """What came of compiling."""


def compiled_tile(loop: TileLoop, tiling: Tiling, weights: Weights, room_bytes: float) -> Tiling:
    """A tile long enough that calling its compiled body costs little: fused, its intermediates need no cache."""
    per_position, _ = loop.tile_bytes(weights)
    wanted = min(_LONG_S / max(tiling.per_position_s, 1e-12), largest_tile(loop, weights, room_bytes, tiling))
    return replace(tiling, tile_bytes=max(tiling.tile_bytes, min(wanted * per_position, _FUSED_BYTES)))


def largest_tile(loop: TileLoop, weights: Weights, room_bytes: float, tiling: Tiling, backward: bool = False) -> int:
    """Positions of a tile that needs at most ``room_bytes``; 0 where not even one fits."""
    per_position, besides = loop.tile_bytes(weights, backward)
    fixed = besides + tiling.fixed_positions * per_position
    return int((room_bytes - fixed) / max(per_position * tiling.excess * _MARGIN, 1e-9))


def tile_of(loop: TileLoop, tiling: Tiling, weights: Weights, room_bytes: float) -> int:
    """Positions per tile at these sizes. Rounded, so that few forms need compiling."""
    per_position, _ = loop.tile_bytes(weights)
    wanted = tiling.tile_bytes / max(per_position, 1e-9)
    most = largest_tile(loop, weights, room_bytes, tiling)
    return _rounded(max(1, min(wanted, most, weights.number(loop.loop.length))))


def choose(loop: TileLoop, reads: Sequence[Any], weights: Weights, room_bytes: float) -> Tiling:
    """Time a few tile sizes on ``reads``, and measure what a tile really needs."""
    per_position, _ = loop.tile_bytes(weights)
    length = weights.number(loop.loop.length)
    modelled = Tiling(tile_bytes=0.0)
    found = _measured(loop, reads, min(largest_tile(loop, weights, room_bytes, modelled), length), per_position)
    most = max(1, min(largest_tile(loop, weights, room_bytes, found), length))
    if _device(reads) != "cpu":
        return replace(found, tile_bytes=most * per_position)
    sizes = sorted({_rounded(max(1, min(most, share * CACHED_BYTES / max(per_position, 1e-9)))) for share in _TRIED})
    best, best_s = sizes[0], float("inf")
    for tile in sizes:
        took_s = _per_position_s(loop, reads, tile, length)
        if took_s < _FASTER * best_s:
            best, best_s = tile, took_s
    return replace(found, tile_bytes=best * per_position, per_position_s=best_s)


def compiled(loop: TileLoop, reads: Sequence[Any], tiling: Tiling, tile: int, length: int) -> Tiling:
    """The same tiling with a compiled body where that is faster; the reason where not. Equality is for ``proof``."""
    try:
        body = torch.compile(loop.body, fullgraph=True)
        with torch.no_grad():
            body(*loop.arguments(reads, 0, min(tile, length)))
    except Exception as error:  # a missing compiler, or the compiler's own failure: the plain body goes on
        text = " ".join(str(error).split())[:160]
        return replace(tiling, compiling=f"not compiled: {type(error).__name__}: {text}")
    fast_s = _per_position_s(loop, reads, tile, length, body)
    plain_s = tiling.per_position_s
    if fast_s > _FASTER * plain_s:
        return replace(tiling, compiling=f"compiled and dropped: {plain_s / fast_s:.2f} x")
    return replace(tiling, body=body, per_position_s=fast_s, compiling=f"compiled: {plain_s / fast_s:.2f} x")


def _rounded(positions: float) -> int:
    """Down to 1, 1.25, 1.5 or 1.75 times a power of two; exact below 8."""
    whole = int(positions)
    step = 1 << max(0, whole.bit_length() - 3)
    return whole // step * step


def _per_position_s(loop: TileLoop, reads: Sequence[Any], tile: int, length: int, body: Body | None = None) -> float:
    """Seconds per position over two tiles, the faster of two tries, the first not counted."""
    count = min(length, 2 * tile)
    if body is not None:
        count = max(tile, count // tile * tile)
    times = []
    with torch.no_grad():
        for _ in range(3):
            start = time.perf_counter()
            loop.run(reads, count, min(tile, count), body)
            times.append((time.perf_counter() - start) / count)
    return min(times[1:])


def _measured(loop: TileLoop, reads: Sequence[Any], most: int, per_position: float) -> Tiling:
    """What tiles need beyond the model, from the peaks of two sizes; nothing where it cannot be measured."""
    small, large = max(1, most // 8), max(1, most // 4)
    if small == large or per_position * large < 1 << 14:
        return Tiling(tile_bytes=0.0)
    peaks = [_peak_of_tile(loop, reads, tile) for tile in (small, large)]
    if peaks[0] is None or peaks[1] is None:
        return Tiling(tile_bytes=0.0)
    slope = max(per_position, (peaks[1] - peaks[0]) / (large - small))
    fixed = max(0.0, peaks[1] - slope * large)
    return Tiling(tile_bytes=0.0, excess=slope / per_position, fixed_positions=fixed / per_position)


def _peak_of_tile(loop: TileLoop, reads: Sequence[Any], tile: int) -> int | None:
    with torch.no_grad():
        arguments = loop.arguments(reads, 0, tile)
        loop.body(*arguments)
        return peak_bytes(lambda: loop.body(*arguments), _device(reads))


def peak_bytes(run: Any, device: str) -> int | None:
    """The allocator's exact peak during ``run``; None where it cannot be had (a profiler is running already)."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    if device != "cpu" or _profiler_runs():
        return None
    from togi.measure.memory import torch_allocator_peak_bytes

    with _quiet_profiler():
        return torch_allocator_peak_bytes(run)


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Kineto writes to stderr when it starts; its level is read from the environment at its first use."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        del os.environ["KINETO_LOG_LEVEL"]


def _profiler_runs() -> bool:
    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def _device(reads: Sequence[Any]) -> str:
    return next((read.device.type for read in reads if isinstance(read, Tensor)), "cpu")


def described(loop: TileLoop, tiling: Tiling, tile: int, length: int) -> str:
    """One line for the plan."""
    how = []
    for product in loop.products:
        verb = "combined over" if product.combined else "assembled along"
        how.append(f"{product.node.name} {verb} dimension {product.dim}")
    count = -(-length // tile)
    size = f"{count:,} tiles of {tile:,} of {length:,} ({mib(tiling.tile_bytes)} each)"
    return f"{size}: {'; '.join(how)}" + (f"; {tiling.compiling}" if tiling.compiling else "")
