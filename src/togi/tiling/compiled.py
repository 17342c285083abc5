"""Compiles the work of a tile, where that is faster: the form, its tiles, and what compiling costs.

A compiled body writes little of what the plain one does, so its tiles can be many times larger, and have to be: a call
of compiled code costs some 50 microseconds. They are sized by their own peaks. It is compiled once for tiles of any
length; that it computes the same is for ``proof``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from togi.tiling.capture import in_one_line
from togi.tiling.peak import Weights
from togi.tiling.program import Body, TileLoop
from togi.tiling.tile import TileChoice, Tiling, device_of, excess_of, peak_of_tile, rounded, tile_of
from togi.tiling.timing import fastest, in_turns
from togi.torch_internals.compiler import inductor_compile, inductor_is_loaded, mark_varying

FIRST_COMPILING_COSTS_S = 3.0
COMPILING_COSTS_S = 2.0
"""About what compiling a loop's body, sizing its tiles and proving it takes: first in a process, and later.

Measured on 2026-11-21, seconds of processor time, the C++ compiler's included: 2.9 s for the first and 1.3 to 2.9 s for
later ones where Inductor's cache is empty; 1.6 s and 0.3 to 1.3 s where it has the code (and once after installation
some 13 s, for torch's headers, which serve all later code). A loop is compiled once it has run for as long (the ski
rental problem; Karlin, Manasse, Rudolph, Sleator 1988): computed from these costs and speedups of 2.5 to 9, the worst
number of calls takes 2.0 to 2.5 times the best choice's time where the cache is empty. It takes up to 4.6 times where
the cache has the code, which is not known before (4 s for all: 3.0 and 6.0). A function that is called a few times is
never compiled. The loop's seconds are those that the calling thread computes: neighbours on the machine stretch loops
and compiling alike."""


def compiling_costs_s() -> float:
    """The seconds that compiling a loop is taken to cost from here on."""
    return COMPILING_COSTS_S if inductor_is_loaded() else FIRST_COMPILING_COSTS_S


_SIZES = 9
_LONG_S = 0.02
"""A compiled tile that takes so long gains nothing by being longer."""
_COMPILED = 0.8
"""A compiled body has to take this share of the plain one's time to be kept."""
_LEAST_EXCESS = 1e-6


def with_compiled(
    loop: TileLoop, reads: Sequence[Any], plain: Tiling, weights: Weights, room_bytes: float
) -> TileChoice:
    """The choice with a compiled body where that is faster; without one, and the reason, where not."""
    if device_of(reads) != "cpu":
        return TileChoice(plain=plain, compiling="not compiled: whether it is faster is measured on the CPU only")
    try:
        form = _Compiled(loop)
        sizes, any_length = form.sizes(reads, plain, weights, room_bytes)
    except Exception as error:  # a missing compiler, or the compiler's own failure: the plain body goes on
        return TileChoice(plain=plain, compiling=f"not compiled: {in_one_line(error)}")
    length = weights.number(loop.loop.length)
    tile, guess_s = fastest(loop, reads, sizes, length, form.body)
    racing: tuple[tuple[int, float, Body | None], ...] = (
        (tile_of(loop, plain, weights, room_bytes), plain.per_position_s, None),
        (tile, guess_s, form.body),
    )
    plain_s, took_s = in_turns(loop, reads, length, racing)
    if took_s > _COMPILED * plain_s:
        return TileChoice(plain=plain, compiling=f"compiled and dropped: {plain_s / took_s:.2f} x")
    per_position, _ = loop.tile_bytes(weights)
    excess, fixed = plain.excess, plain.fixed_positions
    if len(sizes) > 1:
        excess, fixed = excess_of(loop, reads, form.body, sizes[-2:], per_position, _LEAST_EXCESS)
    tiling = Tiling(tile_bytes=tile * per_position, excess=excess, fixed_positions=fixed, per_position_s=took_s)
    gain = f"compiled: {plain_s / took_s:.2f} x"
    return TileChoice(plain=plain, compiled=tiling, body=form.body, any_length=any_length, compiling=gain)


class _Compiled:
    """A loop's body, compiled when it is first called. Counts how often it is compiled, and lives as long as it."""

    def __init__(self, loop: TileLoop) -> None:
        self.loop, self.times = loop, 0
        # a function: Lightning replaces torch.compile by one that copies all else that it is given
        self.body: Body = torch.compile(loop.body, fullgraph=True, backend=lambda *given: self._compile(*given))

    def _compile(self, module: Any, inputs: Any) -> Any:
        self.times += 1
        return inductor_compile(module, inputs)

    def sizes(self, reads: Sequence[Any], plain: Tiling, weights: Weights, room_bytes: float) -> tuple[list[int], bool]:
        """Sizes of tiles whose peak keeps to the room, ascending; and whether one compiled form serves them all.

        The first is the plain tile's, the others are each twice the last. The peak of the next is foretold by that of
        the last before it is measured, so that measuring keeps to the room too.
        """
        length = weights.number(self.loop.loop.length)
        _, besides = self.loop.tile_bytes(weights)
        tile = tile_of(self.loop, plain, weights, room_bytes)
        tiles: list[int] = []
        for _ in range(_SIZES):
            before = self.times
            took_s = self._run(reads, tile, length)
            if len(tiles) > self.loop.uses_length and self.times > before:
                return tiles, False  # numbers are compiled in at first, and left open the second time
            tiles.append(tile)
            peak = peak_of_tile(self.loop, reads, self.body, tile)
            tile = rounded(2 * tile)
            if tile > length or took_s > _LONG_S:
                break
            if peak is None or 2 * peak + besides > room_bytes:
                break
        return tiles, True

    def _run(self, reads: Sequence[Any], tile: int, length: int) -> float:
        """Run it at two places, as the offset may be a number of the body too. Seconds of a warm call."""
        warm_s = float("inf")
        for offset in (0, length - tile, length - tile):
            arguments = self.loop.arguments(reads, offset, tile)
            for argument, part in zip(arguments, self.loop.sliced, strict=False):
                mark_varying(argument, part.dim)
            with torch.no_grad():
                start = time.thread_time()
                self.body(*arguments)
                warm_s = min(warm_s, time.thread_time() - start)
        return warm_s
