"""Which of a few tile sizes takes the least time per position, on the tensors of the call itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from togi.tiling.loop import Body, TileLoop, Tiles

_TURNS = 4
_STRETCH_S = 8e-3
"""How long a turn of one size takes at least: less is decided by the scheduler's ticks."""
_FASTER = 0.97
"""A larger tile has to take this share of the time to be preferred."""
_OUT_OF_RACE = 1.4
"""A size that takes so many times the best's time is not tried again."""


def fastest(
    loop: TileLoop, reads: Sequence[Any], sizes: Sequence[int], length: int, body: Body | None = None
) -> tuple[int, float]:
    """The tile size that wins, and its seconds per position.

    Sizes take turns, so that a disturbance meets all of them; the best of a size's turns counts.

    Args:
        sizes: ascending.
        length: positions there are.
        body: a compiled form of the loop's body, for tiles of any of these sizes.
    """
    guess = {tile: _per_position_s(loop, reads, tile, min(tile, length), body) for tile in sizes}
    stretch = {tile: _stretch(tile, guess[tile], length) for tile in sizes}
    best = dict.fromkeys(sizes, float("inf"))
    racing = list(sizes)
    for _ in range(_TURNS):
        for tile in racing:
            best[tile] = min(best[tile], _per_position_s(loop, reads, tile, stretch[tile], body))
        limit = _OUT_OF_RACE * min(best.values())
        racing = [tile for tile in racing if best[tile] <= limit]
    won = sizes[0]
    for tile in sizes[1:]:
        if best[tile] < _FASTER * best[won]:
            won = tile
    return won, best[won]


def _stretch(tile: int, per_position_s: float, length: int) -> int:
    """Positions of one turn: whole tiles, as long as there are any."""
    tiles = max(1, round(_STRETCH_S / max(per_position_s * tile, 1e-9)))
    return min(length, tile * min(tiles, max(1, length // tile)))


def _per_position_s(loop: TileLoop, reads: Sequence[Any], tile: int, count: int, body: Body | None) -> float:
    tiles = Tiles(plain=tile) if body is None else Tiles(plain=tile, compiled=tile, body=body)
    with torch.no_grad():
        start = time.perf_counter()
        loop.run(reads, count, tiles)
        return (time.perf_counter() - start) / count
