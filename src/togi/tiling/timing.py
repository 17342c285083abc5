"""Times of tiles, in seconds of the calling thread, which neighbours on the machine do not stretch."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from togi.tiling.program import Body, TileLoop, Tiles

_TURNS = 3
_STRETCH_S = 8e-3
"""How long a turn of one size takes at least: less is decided by the scheduler's ticks."""
_LARGER = 0.97
"""A larger tile has to take this share of the time to be preferred."""
_OUT_OF_RACE = 1.4
"""A size that takes so many times the best's time is not tried again."""


def fastest(
    loop: TileLoop, reads: Sequence[Any], sizes: Sequence[int], length: int, body: Body | None = None
) -> tuple[int, float]:
    """The tile size that wins, and its seconds per position.

    Args:
        sizes: ascending.
        length: positions there are.
        body: a compiled form of the loop's body, for tiles of any of these sizes.
    """
    racing = [(tile, _per_position_s(loop, reads, tile, min(tile, length), body), body) for tile in sizes]
    seconds = dict(zip(sizes, in_turns(loop, reads, length, racing, _OUT_OF_RACE), strict=True))
    winner = sizes[0]
    for tile in sizes[1:]:
        if seconds[tile] < _LARGER * seconds[winner]:
            winner = tile
    return winner, seconds[winner]


def in_turns(
    loop: TileLoop,
    reads: Sequence[Any],
    length: int,
    racing: Sequence[tuple[int, float, Body | None]],
    out_of_race: float = math.inf,
) -> list[float]:
    """Seconds per position of ways to run a loop, timed in turns, so that a disturbance meets all of them; the best of
    a way's turns counts.

    Args:
        racing: tile size, a guess of its seconds per position, and the compiled body, if any.
        out_of_race: a way that takes so many times the best's time is not tried again.
    """
    best = [math.inf] * len(racing)
    for turn in range(_TURNS):
        limit = out_of_race * min(best) if turn else math.inf
        for at, (tile, guess_s, body) in enumerate(racing):
            if best[at] <= limit:
                count = _stretch(tile, guess_s, length)
                best[at] = min(best[at], _per_position_s(loop, reads, tile, count, body))
    return best


def _stretch(tile: int, per_position_s: float, length: int) -> int:
    """Positions of one turn: whole tiles, as long as there are any."""
    tiles = max(1, round(_STRETCH_S / max(per_position_s * tile, 1e-9)))
    return min(length, tile * min(tiles, max(1, length // tile)))


def _per_position_s(loop: TileLoop, reads: Sequence[Any], tile: int, count: int, body: Body | None) -> float:
    tiles = Tiles(plain=tile) if body is None else Tiles(plain=tile, compiled=tile, body=body)
    with torch.no_grad():
        start = time.thread_time()
        loop.run(reads, count, tiles)
        return (time.thread_time() - start) / count
