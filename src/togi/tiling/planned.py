"""One captured function within one budget: which schedule serves these sizes, and running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from togi.core.errors import BudgetError
from togi.core.quantities import size
from togi.tiling.capture import Captured, NotLean
from togi.tiling.compiled import with_compiled
from togi.tiling.differentiate import Run
from togi.tiling.footprint import Weights, plain_peak_bytes
from togi.tiling.loop import TileLoop, Tiles
from togi.tiling.plan import LeanPlan
from togi.tiling.program import Program, result_bytes
from togi.tiling.proof import Proof, prove, same_tiles
from togi.tiling.schedule import make_schedule
from togi.tiling.tile import Choice, Tiling, choose, largest_tile

LARGE_BYTES = 4 << 20
"""Above this an intermediate is streamed even where it fits: written to memory and read again, it costs more time."""
_SHARES = (4, 16, 64, 256)
"""A node is large from this part of the budget on; smaller parts are tried when the rest does not fit beside tiles."""
COMPILE_FROM_S = 0.1
"""A call whose loop takes longer is worth the seconds that compiling costs."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What was decided for one set of sizes. ``program`` is None where the plain function fits as it is."""

    weights: Weights
    program: Program | None
    room_bytes: int
    result_bytes: int
    plain_bytes: int


class Planned:
    """A captured function with its programs. Decisions are made under the caller's lock; running needs none."""

    def __init__(
        self, captured: Captured, plain: Callable[..., Any], budget_bytes: int, compiling: bool | None
    ) -> None:
        self.captured, self.plain, self.budget_bytes, self.compiling = captured, plain, budget_bytes, compiling
        self.fitted: dict[tuple[torch.Size, ...], Fitted] = {}
        self.programs: dict[frozenset[Any], Program] = {}
        self.choices: dict[int, Choice] = {}
        self.proofs: dict[int, Proof] = {}

    def fit(self, tensors: Sequence[Tensor], gradient: bool) -> Fitted:
        """The program for these sizes.

        Raises:
            BudgetError: the result alone is larger than the budget.
            NotLean: there is no program that keeps to the budget.
        """
        shapes = tuple(tensor.shape for tensor in tensors)
        found = self.fitted.get(shapes)
        if found is None:
            found = self._fit(tensors, gradient)
            if len(self.fitted) > 256:
                self.fitted.clear()
            self.fitted[shapes] = found
        return found

    def _fit(self, tensors: Sequence[Tensor], gradient: bool) -> Fitted:
        weights = Weights(self.captured.sizes.values(tensors))
        result = result_bytes(self.captured, weights)
        plain = plain_peak_bytes(self.captured.graph, self.captured.outputs, weights)
        if result > self.budget_bytes:
            raise BudgetError(too_small(self.budget_bytes, result, tensors))
        try:
            program, room = self._program(weights, gradient)
        except NotLean:
            if plain > self.budget_bytes:
                raise
            program, room = None, self.budget_bytes - plain
        return Fitted(weights=weights, program=program, room_bytes=room, result_bytes=result, plain_bytes=plain)

    def _program(self, weights: Weights, gradient: bool) -> tuple[Program | None, int]:
        reasons = []
        for share in _SHARES:
            try:
                schedule = make_schedule(self.captured, weights, min(self.budget_bytes // share, LARGE_BYTES), gradient)
            except NotLean as reason:
                reasons.append(str(reason))
                continue
            if not schedule.loops:
                return None, self.budget_bytes
            key = frozenset((p.node, p.dim, p.combined) for loop in schedule.loops for p in loop.products)
            program = self.programs.get(key) or Program(self.captured, schedule)
            room = self.budget_bytes - program.base_bytes(weights)
            if all(largest_tile(loop, weights, room, Tiling(tile_bytes=0.0)) >= 1 for loop in program.tile_loops):
                self.programs[key] = program
                return program, room
            reasons.append(f"one position of each tile, beside what is kept, needs more than {size(self.budget_bytes)}")
        raise NotLean("; ".join(dict.fromkeys(reasons)))

    def decide(self, tensors: Sequence[Tensor], fitted: Fitted) -> None:
        """Prove the program and choose its tiles, if that has not been done.

        Raises:
            NotLean: it is not the plain function.
        """
        program = fitted.program
        if program is None or id(program) in self.proofs:
            return
        lengths = [loop.loop.length for loop in program.tile_loops]
        proof = prove(self.plain, self._cut_in(program), self.captured, tensors, lengths, self.budget_bytes)

        def tuned(loop: TileLoop, reads: Sequence[Any], length: int) -> list[Any]:
            reads = [read.detach() if isinstance(read, Tensor) else read for read in reads]
            choice = Choice(plain=choose(loop, reads, fitted.weights, fitted.room_bytes))
            slow = choice.plain.per_position_s * length > COMPILE_FROM_S
            if self.compiling or (self.compiling is None and slow):
                choice = self._compiled(loop, reads, choice.plain, fitted)
            self.choices[id(loop)] = choice
            return loop.run(reads, length, choice.tiles(loop, fitted.weights, fitted.room_bytes))

        with torch.no_grad():
            program.run(tensors, fitted.weights, tuned)
        self.proofs[id(program)] = proof

    def _compiled(self, loop: TileLoop, reads: Sequence[Any], plain: Tiling, fitted: Fitted) -> Choice:
        """With a compiled body where that is faster and proven."""
        choice = with_compiled(loop, reads, plain, fitted.weights, fitted.room_bytes)
        if choice.compiled is None:
            return choice
        tiles = choice.tiles(loop, fitted.weights, fitted.room_bytes)
        try:
            units = same_tiles(loop, reads, tiles, fitted.weights.number(loop.loop.length))
        except NotLean as difference:
            return Choice(plain=plain, compiling=f"compiled and dropped: {difference}")
        return replace(choice, compiling=f"{choice.compiling}, within {units:.2f} of the plain body's own error")

    def _cut_in(self, program: Program) -> Callable[[Sequence[Tensor], Weights, float], Any]:
        def run(tensors: Sequence[Tensor], weights: Weights, tiles: float) -> Any:
            def cut(loop: TileLoop, reads: Sequence[Any], length: int) -> list[Any]:
                tile = max(1, int(length / tiles))
                return Run(loop, length, Tiles(plain=tile), tile)(reads)

            return program.run(tensors, weights, cut)

        return run

    def run(self, tensors: Sequence[Tensor], fitted: Fitted) -> Any:
        """What the function returns; ``decide`` has been called for a fit of the same program."""
        assert fitted.program is not None

        def in_tiles(loop: TileLoop, reads: Sequence[Any], length: int) -> list[Any]:
            choice = self.choices[id(loop)]
            tiles = choice.tiles(loop, fitted.weights, fitted.room_bytes)
            back = largest_tile(loop, fitted.weights, self.budget_bytes, choice.plain, backward=True)
            return Run(loop, length, tiles, max(1, min(tiles.plain, back)))(reads)

        return fitted.program.run(tensors, fitted.weights, in_tiles)

    def described(self, shapes: tuple[tuple[int, ...], ...], fitted: Fitted) -> LeanPlan:
        about: dict[str, Any] = {
            "budget_bytes": self.budget_bytes,
            "result_bytes": fitted.result_bytes,
            "peak_before_bytes": fitted.plain_bytes,
            "shapes": shapes,
        }
        if fitted.program is None:
            return LeanPlan(strategy="whole", reason="it fits as it is", **about)
        after = fitted.program.base_bytes(fitted.weights)
        lines, tiles = [], [0.0]
        for loop in fitted.program.tile_loops:
            choice = self.choices[id(loop)]
            cut = choice.tiles(loop, fitted.weights, fitted.room_bytes)
            tile = cut.compiled or cut.plain
            per_position, besides = loop.tile_bytes(fitted.weights)
            needed = (tile * choice.used.excess + choice.used.fixed_positions) * per_position
            tiles.append(needed + besides)
            lines.append(described(loop, tile, needed, fitted.weights.number(loop.loop.length), choice.compiling))
        return LeanPlan(
            strategy="streamed",
            peak_after_bytes=int(after + max(tiles)),
            loops=tuple(lines),
            proof=str(self.proofs[id(fitted.program)]),
            **about,
        )


def too_small(budget: int, result: int, tensors: Sequence[Tensor]) -> str:
    """The error for a budget below the result itself."""
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
    return (
        f"memory={size(budget)} is less than the result itself, which is {size(result)} for tensors of {shapes}: "
        f"no way of computing it can keep to that. Give memory a size above {size(result)}, or reduce it inside it"
    )


def described(loop: TileLoop, tile: int, tile_bytes: float, length: int, compiling: str) -> str:
    """One loop as a line of the plan."""
    how = []
    for product in loop.products:
        verb = "combined over" if product.combined else "assembled along"
        how.append(f"{product.node.name} {verb} dimension {product.dim}")
    count = -(-length // tile)
    tiles = f"{count:,} tiles of {tile:,} of {length:,} ({size(tile_bytes)} each)"
    return f"{tiles}: {'; '.join(how)}" + (f"; {compiling}" if compiling else "")
