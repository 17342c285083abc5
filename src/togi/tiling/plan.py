"""One captured function within one budget: which program serves these sizes, what was decided, and running it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from togi.core.errors import BudgetError
from togi.core.quantities import size
from togi.tiling.capture import Captured, NotLean
from togi.tiling.compiled import compiling_costs_s, with_compiled
from togi.tiling.differentiate import LoopRun
from togi.tiling.lean_plan import LeanPlan
from togi.tiling.needs import Needs
from togi.tiling.peak import Weights, plain_peak_bytes
from togi.tiling.program import TiledProgram, TileLoop, Tiles, copied_views, result_bytes
from togi.tiling.proof import Proof, as_tracked, prove, same_tiles
from togi.tiling.schedule import make_schedule
from togi.tiling.tile import FittingTiles, TileChoice, Tiling, choose, detached, kept_within, largest_tile, needed_bytes

LARGE_BYTES = 4 << 20
"""Above this an intermediate is streamed even where it fits: written to memory and read again, it costs more time."""
_SHARES = (4, 16, 64, 256)
"""A node is large from this part of the budget on; smaller parts are tried when the rest does not fit next to tiles."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The decision for one set of sizes. ``program`` is None where the plain function fits as it is."""

    weights: Weights
    program: TiledProgram | None
    room_bytes: int
    result_bytes: int
    plain_bytes: int
    kept: dict[TileLoop, FittingTiles] = field(default_factory=dict)
    """The tiles of each loop that keep to the room at these sizes."""


class PlannedFunction:
    """A captured function with its programs. Decisions are made under the caller's lock; running needs none."""

    def __init__(
        self, captured: Captured, plain: Callable[..., Any], budget_bytes: int, compiling: bool | None
    ) -> None:
        self.captured, self.plain, self.budget_bytes, self.compiling = captured, plain, budget_bytes, compiling
        self.fitted: dict[Any, Fitted | str] = {}
        """By shapes and strides; a text where they are refused."""
        self.needs = Needs(captured)
        self.programs: dict[Hashable, TiledProgram] = {}
        """By the form of their schedule."""
        self.choices: dict[TileLoop, TileChoice] = {}
        self.proofs: dict[TiledProgram, Proof] = {}
        self.refuted: dict[TiledProgram, str] = {}
        self.spent_s: dict[TileLoop, float] = {}
        """How long each loop has run."""

    def fit(self, tensors: Sequence[Tensor], gradient: bool) -> Fitted:
        """The program for these sizes and strides.

        Raises:
            BudgetError: the result alone is larger than the budget.
            NotLean: there is no program that keeps to the budget.
        """
        form = _form(tensors)
        fitted = self.fitted.get(form)
        if fitted is None:
            try:
                fitted = self._fit(tensors, gradient)
            except NotLean as refusal:
                fitted = str(refusal)
            self._remember(form, fitted)
        if isinstance(fitted, str):
            raise NotLean(fitted)
        return fitted

    def refuse(self, tensors: Sequence[Tensor], reason: str) -> None:
        """Make ``fit`` raise from now on for tensors of these shapes and strides."""
        self._remember(_form(tensors), reason)

    def refute(self, program: TiledProgram, reason: str) -> None:
        """Stop using the program from now on."""
        self.refuted[program] = reason
        self.fitted.clear()

    def _remember(self, form: Any, fitted: Fitted | str) -> None:
        if len(self.fitted) > 256:
            self.fitted.clear()
        self.fitted[form] = fitted

    def _fit(self, tensors: Sequence[Tensor], gradient: bool) -> Fitted:
        weights = Weights(self.captured.sizes.values(tensors))
        weights = replace(weights, copies=copied_views(self.captured, tensors, weights))
        weights = replace(weights, taken=self.needs.taken_bytes(tensors, weights, self.budget_bytes // _SHARES[0]))
        result = result_bytes(self.captured, weights)
        plain = plain_peak_bytes(self.captured.graph, self.captured.outputs, weights)
        if result > self.budget_bytes:
            raise BudgetError(too_small(self.budget_bytes, result, tensors) + _of_copies(weights))
        try:
            program, room = self._program(weights, gradient, plain)
        except NotLean as reason:
            if plain > self.budget_bytes:
                raise NotLean(f"{reason}{_of_copies(weights)}") from None
            program, room = None, self.budget_bytes - plain
        return Fitted(weights=weights, program=program, room_bytes=room, result_bytes=result, plain_bytes=plain)

    def _program(self, weights: Weights, gradient: bool, plain: int) -> tuple[TiledProgram | None, int]:
        reasons = []
        for share, copies_whole in itertools.product(_SHARES, (False, True) if weights.copies else (False,)):
            large_bytes = min(self.budget_bytes // share, LARGE_BYTES)
            try:
                schedule = make_schedule(self.captured, weights, large_bytes, gradient, copies_whole)
            except NotLean as reason:
                reasons.append(str(reason))
                continue
            if not schedule.loops:
                if plain <= self.budget_bytes:
                    return None, self.budget_bytes - plain
                reasons.append(f"it needs {size(plain)}, and nothing of it is large")
                continue
            program = self.programs.get(schedule.form) or TiledProgram(self.captured, schedule)
            if program in self.refuted:
                reasons.append(self.refuted[program])
                continue
            room = self.budget_bytes - program.base_bytes(weights)
            if all(largest_tile(loop, weights, room, Tiling(tile_bytes=0.0)) >= 1 for loop in program.tile_loops):
                self.programs[schedule.form] = program
                return program, room
            reasons.append(
                f"one position of each tile, besides what is kept, needs more than {size(self.budget_bytes)}"
            )
        raise NotLean("; ".join(dict.fromkeys(reasons)))

    def decide(self, tensors: Sequence[Tensor], fitted: Fitted) -> Any:
        """Prove the program and choose its tiles; what the function returns, without gradients.

        Raises:
            Refuted: it is not the plain function.
            NotLean: it cannot be compared with it at these sizes, or does not fit.
        """
        program = fitted.program
        assert program is not None
        lengths = [loop.loop.length for loop in program.tile_loops]
        proof = prove(
            self.plain, self._cut_in(program), self.captured, tensors, fitted.weights, lengths, self.budget_bytes
        )

        def tuned(loop: TileLoop, reads: Sequence[Any], length: int) -> list[Any]:
            reads = detached(reads)
            plain = choose(loop, reads, fitted.weights, fitted.room_bytes)
            choice = self._compiled(loop, reads, plain, fitted) if self.compiling else TileChoice(plain=plain)
            self.choices[loop] = choice
            return self._timed(loop, reads, length, fitted)

        with torch.no_grad():
            result = program.run(tensors, fitted.weights, tuned)
        self.proofs[program] = proof
        return result

    def _timed(self, loop: TileLoop, reads: Sequence[Any], length: int, fitted: Fitted) -> list[Any]:
        """Run it, and add its seconds to those that decide when it is compiled."""
        tiles = self._tiles(loop, reads, length, fitted)
        began = time.thread_time()
        products = loop.run(reads, length, tiles)
        self._spend(loop, time.thread_time() - began)
        return products

    def _tiles(self, loop: TileLoop, reads: Sequence[Any], length: int, fitted: Fitted) -> Tiles:
        """The tiles chosen, as far as they keep to the room at the sizes of this call.

        Raises:
            NotLean: not even one position does.
        """
        choice, kept = self.choices[loop], fitted.kept.get(loop)
        if kept is None or kept.choice is not choice or not kept.certain:
            kept = kept_within(loop, reads, length, choice, fitted.weights, fitted.room_bytes)
            fitted.kept[loop] = kept
        return kept.tiles

    def _spend(self, loop: TileLoop, seconds: float) -> None:
        self.spent_s[loop] = self.spent_s.get(loop, 0.0) + seconds

    def compile_what_pays(self, tensors: Sequence[Tensor], fitted: Fitted) -> None:
        """Compile the loops that have run for as long as compiling takes. Called under the caller's lock."""
        due = [] if fitted.program is None else [loop for loop in fitted.program.tile_loops if self._is_due(loop)]
        if not due:
            return

        def tried(loop: TileLoop, reads: Sequence[Any], length: int) -> list[Any]:
            if loop in due:
                reads = detached(reads)
                choice = self.choices[loop]
                self.choices[loop] = self._compiled(loop, reads, choice.plain, fitted)
            return self._timed(loop, reads, length, fitted)

        assert fitted.program is not None
        with torch.no_grad():
            fitted.program.run(tensors, fitted.weights, tried)

    def ready(self, fitted: Fitted) -> bool:
        """True if ``run`` may be called without deciding anything before."""
        return fitted.program in self.proofs and not self.due(fitted)

    def due(self, fitted: Fitted) -> bool:
        """True if ``compile_what_pays`` has something to do."""
        return fitted.program is not None and any(map(self._is_due, fitted.program.tile_loops))

    def _is_due(self, loop: TileLoop) -> bool:
        choice = self.choices.get(loop)
        untried = choice is not None and choice.compiled is None and not choice.compiling
        return self.compiling is None and untried and self.spent_s.get(loop, 0.0) > compiling_costs_s()

    def _compiled(self, loop: TileLoop, reads: Sequence[Any], plain: Tiling, fitted: Fitted) -> TileChoice:
        """The loop with a compiled body where that is faster and proven."""
        choice = with_compiled(loop, reads, plain, fitted.weights, fitted.room_bytes)
        if choice.compiled is None:
            return choice
        tiles = choice.tiles(loop, fitted.weights, fitted.room_bytes)
        try:
            units = same_tiles(loop, reads, tiles, fitted.weights.number(loop.loop.length))
        except NotLean as difference:
            return TileChoice(plain=plain, compiling=f"compiled and dropped: {difference}")
        return replace(choice, compiling=f"{choice.compiling}, within {units:.2f} of the plain body's own error")

    def _cut_in(self, program: TiledProgram) -> Callable[[Sequence[Tensor], Weights, float], Any]:
        def run(tensors: Sequence[Tensor], weights: Weights, tiles: float) -> Any:
            def cut(loop: TileLoop, reads: Sequence[Any], length: int) -> list[Any]:
                tile = max(1, int(length / tiles))
                return LoopRun(loop, length, Tiles(plain=tile), tile)(reads)

            return program.run(tensors, weights, cut)

        return run

    def run(self, tensors: Sequence[Tensor], fitted: Fitted) -> Any:
        """The results of the function; ``decide`` has been called for a fit of the same program."""
        assert fitted.program is not None

        def in_tiles(loop: TileLoop, reads: Sequence[Any], length: int) -> list[Any]:
            tiles = self._tiles(loop, reads, length, fitted)
            plain = self.choices[loop].plain
            back = largest_tile(loop, fitted.weights, self.budget_bytes, plain, backward=True)
            began = time.thread_time()
            products = LoopRun(loop, length, tiles, max(1, min(tiles.plain, back)))(reads)
            self._spend(loop, time.thread_time() - began)
            return products

        return as_tracked(fitted.program.run(tensors, fitted.weights, in_tiles), self.proofs[fitted.program].tracked)

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
            choice, kept = self.choices[loop], fitted.kept.get(loop)
            cut = kept.tiles if kept else choice.tiles(loop, fitted.weights, fitted.room_bytes)
            needed = kept.tile_bytes if kept else needed_bytes(loop, choice, cut, fitted.weights)
            tile = cut.compiled or cut.plain
            tiles.append(needed)
            compiling = choice.compiling
            if not compiling and self.compiling is None:
                compiling = f"compiled once it has run for {compiling_costs_s():g} s"
            lines.append(described(loop, tile, needed, fitted.weights.number(loop.loop.length), compiling))
        return LeanPlan(
            strategy="streamed",
            peak_after_bytes=int(after + max(tiles)),
            loops=tuple(lines),
            proof=str(self.proofs[fitted.program]),
            **about,
        )


def _form(tensors: Sequence[Tensor]) -> tuple[Hashable, ...]:
    """All of tensors that what is allocated depends on."""
    return tuple((tensor.shape, None if tensor.is_contiguous() else tensor.stride()) for tensor in tensors)


def _of_copies(weights: Weights) -> str:
    """What an error adds where views are copies."""
    if not weights.copies:
        return ""
    return (
        f" ({size(weights.copied_bytes())} of what it computes are copies: tensors that it is given are not contiguous "
        "and are viewed in other shapes; .contiguous() before the call takes the copies out of the budget)"
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
