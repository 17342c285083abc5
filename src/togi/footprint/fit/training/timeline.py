"""The peak of a step under any choice of what is kept, by arithmetic on one observed run: a millisecond each.

What the program itself holds is the ground. On it lie the results that are kept, from where the program lets go of them
to where nothing more is computed from them; and, in the backward pass, what is recomputed, from there to where
autograd is done with it. While something is recomputed, what is on the way comes on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from togi.core.quantities import size
from togi.footprint.fit.training.observe import Observed, RepeatableOperation, Result, SavedSpan
from togi.footprint.fit.training.saved_tensors import SMALLEST_BYTES


@dataclass(frozen=True)
class SavingChoice:
    """Keys of results. Everything else that autograd asks for is kept, and nothing else is."""

    dropped: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    """Though autograd does not ask for them."""
    packed: frozenset[str] = frozenset()
    """In fewer bits."""

    def without(self, key: str) -> SavingChoice:
        return SavingChoice(self.dropped | {key}, self.kept, self.packed - {key})

    def with_packed(self, key: str) -> SavingChoice:
        return SavingChoice(self.dropped - {key}, self.kept, self.packed | {key})

    def with_kept(self, key: str) -> SavingChoice:
        return SavingChoice(self.dropped - {key}, self.kept, self.packed - {key})


@dataclass
class Forecast:
    """The consequences of a choice."""

    alive: np.ndarray
    """[moment] bytes, with what is on the way while something is recomputed."""
    ms: float = 0.0
    """Of operations that run again."""
    repeats: dict[str, float] = field(default_factory=dict)
    """Milliseconds of repeated calls, by name."""

    @property
    def peak_bytes(self) -> int:
        return int(self.alive.max())

    def above(self, budget_bytes: int) -> float:
        """Byte-operations above the budget: also falls where the highest of several equal peaks stays."""
        return float(np.maximum(self.alive - budget_bytes, 0).sum())


def during(operation: int) -> int:
    """The moment of an operation, on the axis of a forecast."""
    return 2 * operation


def after(operation: int) -> int:
    """The moment between an operation and the next: there autograd asks for what it kept."""
    return 2 * operation + 1


class StepTimeline:
    """The timeline of one observed step."""

    def __init__(
        self,
        observed: Observed,
        workspaces: Mapping[int, int] | None = None,
        *,
        packing_ms_per_byte: Mapping[torch.dtype, float] | None = None,
    ) -> None:
        """``workspaces``: bytes that an operation takes besides its results, by its number. ``packing_ms_per_byte``: of
        what may be kept in fewer bits, by dtype (bool, float32)."""
        self.observed = observed
        self.workspaces = workspaces or {}
        self.end = observed.end + 1
        self._packing_ms_per_byte = packing_ms_per_byte or {}
        self._ground = self._lives()
        self.results = [result for call in observed.calls for result in call.makes]
        self.maker = {result: call for call in observed.calls for result in call.makes}
        asked = [(saved.asked_at, result, saved) for result in self.results for saved in result.saved]
        self._asked = sorted(((at, r, s) for at, r, s in asked if at is not None), key=lambda entry: entry[0])
        self._last_asked = {result: max((s.asked_at or 0 for s in result.saved), default=0) for result in self.results}
        self.last_done = {result: max((self.done(s) for s in result.saved), default=0) for result in self.results}

    @property
    def ground_bytes(self) -> np.ndarray:
        """[moment] what the program itself holds: no choice goes below."""
        return self._ground

    @property
    def largest_at_the_floor(self) -> str:
        """The tensors that the program itself holds at its worst moment, with nothing kept for the backward pass."""
        at = int(self._ground.argmax()) // 2
        alive = sorted((p for p in self.observed.lifetimes if p.alive_at(at) and p.op), key=lambda p: -p.bytes)
        largest = ", ".join(f"{size(p.bytes)} of {p.op} for {p.where.module or 'the step'}" for p in alive[:4])
        return f"At that floor the largest tensors besides parameters and inputs are {largest}."

    def done(self, saved: SavedSpan) -> int:
        return self.end if saved.done_at is None else saved.done_at

    def is_packable(self, result: Result) -> bool:
        return result.dtype in self._packing_ms_per_byte and result.bytes >= SMALLEST_BYTES

    def packed_bytes(self, result: Result) -> int:
        return result.bytes // 8 if result.dtype is torch.bool else result.bytes // 2

    def packing_ms(self, result: Result) -> float:
        """Once in, and out for everybody who asks."""
        return result.bytes * self._packing_ms_per_byte[result.dtype] * (1 + len(result.saved))

    def forecast(self, choice: SavingChoice) -> Forecast:
        return _ChoiceTotal(self, choice).forecast()

    def _lives(self) -> np.ndarray:
        change = np.zeros(after(self.end) + 1, dtype=np.int64)
        for lifetime in self.observed.lifetimes:
            change[during(lifetime.born)] += lifetime.bytes
            change[after(self.end if lifetime.died is None else lifetime.died)] -= lifetime.bytes
        lives = np.cumsum(change)[: after(self.end)]
        for number, bytes in self.workspaces.items():
            lives[during(number)] += bytes
        return lives


class _ChoiceTotal:
    """One choice, added up."""

    def __init__(self, timeline: StepTimeline, choice: SavingChoice) -> None:
        self._line, self._choice = timeline, choice
        self._kept = {result for result in timeline.results if self._is_kept(result)}
        self._packed = {r for r in self._kept if r.key in choice.packed and timeline.is_packable(r)}
        self._alive = timeline._ground.copy()
        self._found = Forecast(self._alive)
        self._again: set[Result] = set()
        """Computed again, and still there."""

    def forecast(self) -> Forecast:
        self._hold()
        spikes: dict[int, int] = {}
        for at, result, saved in self._line._asked:
            if result in self._packed:
                self._found.ms += self._line.packing_ms(result) / (1 + len(result.saved))
                self._alive[after(at) : after(self._line.done(saved))] += result.bytes
            elif result not in self._kept and result not in self._again:
                spikes[at] = max(spikes.get(at, 0), self._compute(result, at))
            if at >= self._line._last_asked[result]:
                self._again.discard(result)
        for at, bytes in spikes.items():
            self._alive[after(at)] += bytes
        return self._found

    def _is_kept(self, result: Result) -> bool:
        if result.overwritten:
            return False
        return result.key not in self._choice.dropped if result.saved else result.key in self._choice.kept

    def _hold(self) -> None:
        """Hold what is kept: from the last operation to the first, until others are no longer computed from it."""
        until: dict[Result, int] = {}
        for call in reversed(self._line.observed.calls):
            own = [until.get(r, 0) for r in call.makes if r not in self._kept]
            own += [self._line.last_done[r] for r in call.makes if r not in self._kept]
            last = max(own, default=0)
            if last:
                for read in call.reads:
                    until[read] = max(until.get(read, 0), last)
        for result in self._kept:
            self._add_kept(result, max(until.get(result, 0), self._line.last_done[result]))

    def _add_kept(self, result: Result, last: int) -> None:
        if result in self._packed:
            self._found.ms += self._line.packing_ms(result) / (1 + len(result.saved))
            self._alive[during(result.made_at) : after(last)] += self._line.packed_bytes(result)
        elif result.died_at is not None and result.died_at < last:
            self._alive[after(result.died_at) : after(last)] += result.bytes

    def _compute(self, target: Result, at: int) -> int:
        """Books one computation; the most that is on the way at once, above what stays."""
        calls = self._needed(target)
        left: dict[Result, int] = {}
        for call in calls:
            for read in call.reads:
                left[read] = left.get(read, 0) + 1
        sizes: dict[Result, int] = {}
        now = stays = most = 0
        for call in calls:
            self._found.ms += call.ms
            self._found.repeats[call.name] = self._found.repeats.get(call.name, 0.0) + call.ms
            for result in call.makes:
                moved = result.overwrites is not None and result.overwrites in sizes and left[result.overwrites] == 1
                if moved and result.overwrites is not None:
                    sizes[result] = sizes.pop(result.overwrites)
                else:
                    sizes[result] = result.bytes
                    now += result.bytes
            most = max(most, now + stays + call.other_bytes + self._line.workspaces.get(call.at, 0))
            for read in call.reads:
                left[read] -= 1
                if not left[read] and read in sizes:
                    now -= sizes.pop(read)
            for result in call.makes:
                if result in self._kept or not (result is target or self._is_awaited(result, at) or left.get(result)):
                    now -= sizes.pop(result, 0)
                elif (result is target or self._is_awaited(result, at)) and result not in self._again:
                    now -= sizes.pop(result, 0)
                    stays += result.bytes
                    self._again.add(result)
                    self._alive[after(at) : after(self._line.last_done[result])] += result.bytes
        return max(0, most - stays)

    def _is_awaited(self, result: Result, at: int) -> bool:
        return bool(result.saved) and self._line._last_asked[result] >= at

    def _needed(self, target: Result) -> list[RepeatableOperation]:
        calls: set[RepeatableOperation] = set()
        waiting = [target]
        while waiting:
            result = waiting.pop()
            call = self._line.maker[result]
            if result in self._kept or result in self._again or call in calls:
                continue
            calls.add(call)
            waiting.extend(call.reads)
        return sorted(calls, key=lambda call: call.at)
