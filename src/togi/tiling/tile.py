"""Chooses the size of tiles: by the byte budget, a model, and measuring.

The byte budget gives the largest tile. Within it, tiles whose intermediates stay in the processor's caches are several
times faster than large ones, and how small is best depends on the operations. So sizes are timed on the tensors of the
call itself (``fastest``), in seconds of the calling thread, which neighbours on the machine do not stretch. The
allocator's own peak corrects the model of ``peak`` where operations need memory for themselves. That is a guess still,
for other sizes above all, so tiles that come near the budget are rehearsed before they are used (``kept_within``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from togi.core.quantities import size
from togi.tiling.capture import NotLean
from togi.tiling.peak import Weights, peak_bytes
from togi.tiling.program import Body, TileLoop, Tiles
from togi.tiling.timing import fastest

CACHED_BYTES = 1 << 20
"""Intermediates of the tile that trials start from: about a core's second-level cache."""
_TRIED = (0.25, 1.0, 4.0, 16.0, 64.0)
"""The sizes tried first, in multiples of it; then half and twice the size of the fastest."""
_MARGIN = 1.1
"""What the model of a tile may be off by before it is measured: allocations are rounded up to 64 bytes each."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """The size of one loop's tiles. Bytes, so that it holds for other sizes of the tensors too."""

    tile_bytes: float
    """Modelled bytes of a tile."""
    excess: float = 1.0
    """Measured over modelled bytes per position; a compiled body writes little of what the model counts."""
    fixed_positions: float = 0.0
    """What operations need whatever the tile's size, as so many positions of the model."""
    per_position_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TileChoice:
    """All that was decided about one loop."""

    plain: Tiling
    compiled: Tiling | None = None
    body: Body | None = None
    any_length: bool = False
    """Whether ``body`` takes tiles of any length without being compiled again."""
    compiling: str = ""
    """What came of compiling."""

    @property
    def used(self) -> Tiling:
        return self.plain if self.compiled is None else self.compiled

    def tiles(self, loop: TileLoop, weights: Weights, room_bytes: float) -> Tiles:
        """Positions per tile at these sizes."""
        plain = tile_of(loop, self.plain, weights, room_bytes)
        if self.compiled is None:
            return Tiles(plain=plain)
        tile = tile_of(loop, self.compiled, weights, room_bytes)
        least = max(2, min(plain, tile)) if self.any_length else tile
        return Tiles(plain=plain, compiled=tile, least=least, body=self.body)


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
    return rounded(max(1, min(wanted, most, weights.number(loop.loop.length))))


_FAR_BELOW = 4
"""Tiles whose modelled bytes are so many times below the room are not rehearsed: no model was ever that far off."""


@dataclass(frozen=True, kw_only=True)
class FittingTiles:
    """Tiles that keep to the room at the sizes of one call."""

    choice: TileChoice
    tiles: Tiles
    tile_bytes: float
    """What the loop needs besides its products."""
    certain: bool
    """Measured, or far below the room; otherwise a profiler was on, and the model is believed for this call."""


def needed_bytes(loop: TileLoop, choice: TileChoice, tiles: Tiles, weights: Weights) -> float:
    """Modelled bytes that the loop needs besides its products, by what was measured at the sizes of the first call."""
    per_position, besides = loop.tile_bytes(weights)
    sizes = [(tiles.plain, choice.plain)] + ([(tiles.compiled, choice.compiled)] if choice.compiled else [])
    return besides + max(per_position * (tile * kind.excess + kind.fixed_positions) for tile, kind in sizes)


def kept_within(
    loop: TileLoop, reads: Sequence[Any], length: int, choice: TileChoice, weights: Weights, room_bytes: float
) -> FittingTiles:
    """The chosen tiles, made smaller until a rehearsal's peak keeps to the room.

    Raises:
        NotLean: not even a tile of one position keeps to it.
    """
    tiles = choice.tiles(loop, weights, room_bytes)
    modelled = needed_bytes(loop, choice, tiles, weights)
    if _FAR_BELOW * (modelled + loop.strided_bytes(reads, max(tiles.plain, tiles.compiled))) <= room_bytes:
        return FittingTiles(choice=choice, tiles=tiles, tile_bytes=modelled, certain=True)
    reads = detached(reads)
    while True:
        peak = peak_of_loop(loop, reads, length, tiles)
        if peak is None:
            return FittingTiles(choice=choice, tiles=tiles, tile_bytes=modelled, certain=False)
        needed = peak - loop.product_bytes(weights)
        if needed <= room_bytes:
            return FittingTiles(choice=choice, tiles=tiles, tile_bytes=needed, certain=True)
        if max(tiles.plain, tiles.compiled) == 1:
            strided = loop.strided_bytes(reads, 1)
            besides = f" ({size(strided)} of what it reads is not contiguous, and may be copied)" if strided else ""
            short = needed - int(room_bytes)
            raise NotLean(f"one position of a tile, besides what is kept, needs {short} B too many{besides}")
        tiles = _smaller(tiles, room_bytes / needed)


def _smaller(tiles: Tiles, share: float) -> Tiles:
    """A tile that is at least one size of ``rounded`` below."""

    def cut(tile: int) -> int:
        return rounded(max(1, min(tile * share, tile - 1))) if tile else 0

    compiled = cut(tiles.compiled)
    return replace(tiles, plain=cut(tiles.plain), compiled=compiled, least=min(tiles.least, compiled))


def peak_of_loop(loop: TileLoop, reads: Sequence[Any], length: int, tiles: Tiles) -> int | None:
    """The allocator's peak of the whole loop, its products included; None where it cannot be measured."""
    with torch.no_grad(), _MEASURING:
        return peak_bytes(lambda: loop.rehearse(reads, length, tiles), device_of(reads))


_MEASURING = threading.Lock()
"""One profiler at a time."""


def choose(loop: TileLoop, reads: Sequence[Any], weights: Weights, room_bytes: float) -> Tiling:
    """Time some sizes on ``reads``, and measure what a tile really needs."""
    per_position, _ = loop.tile_bytes(weights)
    length = weights.number(loop.loop.length)
    most = min(largest_tile(loop, weights, room_bytes, Tiling(tile_bytes=0.0)), length)
    excess, fixed = excess_of(loop, reads, loop.body, _two_sizes(most, per_position), per_position, least=1.0)
    tiling = Tiling(tile_bytes=0.0, excess=excess, fixed_positions=fixed)
    most = max(1, min(largest_tile(loop, weights, room_bytes, tiling), length))
    if device_of(reads) != "cpu":
        return Tiling(tile_bytes=most * per_position, excess=excess, fixed_positions=fixed)
    cached = CACHED_BYTES / max(per_position, 1e-9)
    coarse = {rounded(max(1, min(most, share * cached))) for share in _TRIED}
    tile, took_s = fastest(loop, reads, sorted(coarse), length)
    near = {rounded(max(1, min(most, share * tile))) for share in (0.5, 1.0, 2.0)}
    if len(near) > 1:
        tile, took_s = fastest(loop, reads, sorted(near), length)
    return Tiling(tile_bytes=tile * per_position, excess=excess, fixed_positions=fixed, per_position_s=took_s)


def rounded(positions: float) -> int:
    """Down to 1, 1.25, 1.5 or 1.75 times a power of two; exact below 8."""
    whole = int(positions + 1e-6)
    step = 1 << max(0, whole.bit_length() - 3)
    return whole // step * step


def excess_of(
    loop: TileLoop, reads: Sequence[Any], body: Body, sizes: Sequence[int], per_position: float, least: float
) -> tuple[float, float]:
    """``(excess, fixed_positions)`` of a ``Tiling``, from the peaks of tiles of two sizes.

    Without two sizes, or where a peak cannot be measured, the model is taken as it is.

    Args:
        least: the excess is not taken to be below this.
    """
    peaks = [peak_of_tile(loop, reads, body, tile) for tile in sizes]
    if len(sizes) < 2 or any(peak is None for peak in peaks):
        return 1.0, 0.0
    small, large = (float(peak or 0) for peak in peaks)
    slope = max(least * per_position, (large - small) / (sizes[1] - sizes[0]))
    return slope / per_position, max(0.0, large - slope * sizes[1]) / per_position


def peak_of_tile(loop: TileLoop, reads: Sequence[Any], body: Callable[..., Any], tile: int) -> int | None:
    """The allocator's peak of a warm call of ``body`` on the first tile; None where it cannot be measured."""
    with torch.no_grad(), _MEASURING:
        arguments = loop.arguments(reads, 0, tile)
        body(*arguments)
        return peak_bytes(lambda: body(*arguments), device_of(reads))


def _two_sizes(most: int, per_position: float) -> list[int]:
    """Two sizes of tiles to measure: none where their bytes would be lost in rounding."""
    small, large = max(1, most // 8), max(1, most // 4)
    return [] if small == large or per_position * large < 1 << 14 else [small, large]


def detached(reads: Sequence[Any]) -> list[Any]:
    return [read.detach() if isinstance(read, Tensor) else read for read in reads]


def device_of(reads: Sequence[Any]) -> str:
    return next((read.device.type for read in reads if isinstance(read, Tensor)), "cpu")
