"""Chooses what is not kept: the cheapest choice under a byte budget, by forecasts alone.

A greedy way down: what lies above the budget is an area over time. Each step drops the result that takes most off it
for each millisecond of repeated work (the ratio rule of the knapsack problem, Dantzig 1957; here with the effect of a
step forecast instead of added up, because results are computed from each other). Then a way back: everything dropped is
taken up again, the dearest first, where the budget still holds. Pure: a timeline in, a choice out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from togi.footprint.fit.training.observe import RepeatableOperation, Result
from togi.footprint.fit.training.timeline import Forecast, SavingChoice, StepTimeline, after

_TRIED_AT_ONCE = 6
_SMALLEST_SHARE = 1e-4
"""Results below this share of the budget are left alone."""
_LEAST_MS = 1e-3
_EXPONENTS = (1.0, 0.5, 0.0)
"""How much the price counts on the way down: each gives another way, and the cheapest end wins. The last looks at bytes
alone, so what can be found at all does not hang on how well milliseconds were measured."""
_SEGMENTS = (4, 8, 16, 2, 32, 6, 12, 3, 24)
"""Other beginnings: the forward pass in so many parts, of which nothing is kept but what goes from one to the next."""


@dataclass
class RecomputeSearch:
    """Choices under any number of budgets."""

    timeline: StepTimeline
    deadline: float = math.inf
    """On ``time.monotonic()``; what was found by then is the answer."""
    seen: dict[SavingChoice, tuple[int, float]] = field(default_factory=dict)
    """(peak in bytes, milliseconds) of every choice that was forecast."""

    def cheapest(self, aim_bytes: int) -> SavingChoice | None:
        """The choice with the least repeated work whose forecast peak is within the budget; None where none is."""
        best: SavingChoice | None = None
        for descent in self._descents(aim_bytes):
            choice = descent.down()
            if choice is not None and (best is None or self.seen[choice][1] < self.seen[best][1]):
                best = choice
            if time.monotonic() > self.deadline:
                break
        return best

    def _descents(self, aim_bytes: int) -> Iterator[_Descent]:
        for exponent in _EXPONENTS:
            yield _Descent(self, aim_bytes, exponent, SavingChoice())
        for count in _SEGMENTS:
            yield _Descent(self, aim_bytes, 1.0, segments(self.timeline.observed.calls, count))

    def forecast(self, choice: SavingChoice) -> Forecast:
        forecast = self.timeline.forecast(choice)
        self.seen[choice] = forecast.peak_bytes, forecast.ms
        return forecast

    @property
    def least(self) -> SavingChoice:
        """The lowest peak seen; of equal ones the one with the least work."""
        return min(self.seen, key=lambda choice: self.seen[choice])

    @property
    def front(self) -> list[tuple[int, float, SavingChoice]]:
        """(peak, milliseconds, choice) seen of which none is both lower and cheaper, by rising peak."""
        front: list[tuple[int, float, SavingChoice]] = []
        for choice, (peak, ms) in sorted(self.seen.items(), key=lambda item: item[1]):
            if not front or ms < front[-1][1]:
                front.append((peak, ms, choice))
        return front


class _Descent:
    """One way from nothing dropped to the budget, and back as far as it allows."""

    def __init__(self, search: RecomputeSearch, aim_bytes: int, exponent: float, start: SavingChoice) -> None:
        self._search, self._aim_bytes, self._exponent = search, aim_bytes, exponent
        self._groups = _by_key(search.timeline.results, aim_bytes * _SMALLEST_SHARE)
        self._choice = start
        self._forecast = search.forecast(self._choice)

    def down(self) -> SavingChoice | None:
        while self._forecast.peak_bytes > self._aim_bytes:
            if time.monotonic() > self._search.deadline or not (self._drop_one() or self._take_one_up()):
                return None
        self._back()
        return self._choice

    def _drop_one(self) -> bool:
        """The best of the next few by estimate; all are tried before it gives up."""
        before = self._forecast.above(self._aim_bytes)
        ranked = self._ranked()
        for start in range(0, len(ranked), _TRIED_AT_ONCE):
            best: tuple[float, SavingChoice, Forecast] | None = None
            for choice in ranked[start : start + _TRIED_AT_ONCE]:
                forecast = self._search.forecast(choice)
                gain = before - forecast.above(self._aim_bytes)
                rate = self._rate(gain, forecast.ms - self._forecast.ms)
                if gain > 0 and (best is None or rate > best[0]):
                    best = rate, choice, forecast
            if best is not None:
                _, self._choice, self._forecast = best
                return True
            if time.monotonic() > self._search.deadline:
                return False
        return False

    def _ranked(self) -> list[SavingChoice]:
        """Choices that drop, or pack, one more result that lies under the area above the budget; first what takes most
        off it for each millisecond."""
        line = self._search.timeline
        above = np.maximum(self._forecast.alive - self._aim_bytes, 0)
        rated: list[tuple[float, SavingChoice]] = []
        for key, group in self._groups.items():
            if key in self._choice.dropped:
                continue
            dropped = sum(_off(above, line, result, result.bytes) for result in group)
            if dropped > 0:
                ms = sum(line.maker[result].ms for result in group)
                rated.append((self._rate(dropped, ms), self._choice.without(key)))
            if key in self._choice.packed or not all(map(line.is_packable, group)):
                continue
            packed = sum(_off(above, line, result, result.bytes - line.packed_bytes(result)) for result in group)
            if packed > 0:
                ms = sum(line.packing_ms(result) for result in group)
                rated.append((self._rate(packed, ms), self._choice.with_packed(key)))
        return [choice for _, choice in sorted(rated, key=lambda entry: -entry[0])]

    def _rate(self, gain: float, ms: float) -> float:
        rate: float = gain / max(ms, _LEAST_MS) ** self._exponent
        return rate

    def _take_one_up(self) -> bool:
        """Take up one result where nothing more can be dropped with gain: what is recomputed at once may be too
        much."""
        before = self._forecast.above(self._aim_bytes)
        best: tuple[float, SavingChoice, Forecast] | None = None
        for key in sorted(self._choice.dropped | self._choice.packed):
            choice = self._choice.with_kept(key)
            forecast = self._search.forecast(choice)
            above = forecast.above(self._aim_bytes)
            if above < before and (best is None or above < best[0]):
                best = above, choice, forecast
            if time.monotonic() > self._search.deadline:
                break
        if best is None:
            return False
        _, self._choice, self._forecast = best
        return True

    def _back(self) -> None:
        """Takes up what the budget does not ask for, until nothing more can be."""
        changed = True
        while changed:
            changed = False
            repeats = self._forecast.repeats
            dearest_first = sorted(
                self._choice.dropped | self._choice.packed, key=lambda key: repeats.get(call_of(key), 0.0), reverse=True
            )
            for key in dearest_first:
                if time.monotonic() > self._search.deadline:
                    return
                choice = self._choice.with_kept(key)
                forecast = self._search.forecast(choice)
                if forecast.peak_bytes <= self._aim_bytes and forecast.ms <= self._forecast.ms:
                    self._choice, self._forecast, changed = choice, forecast, True


def _off(above: np.ndarray, line: StepTimeline, result: Result, bytes: int) -> float:
    """The part of the area above the budget that goes if so much of a result is not held for autograd."""
    if result.died_at is None:
        return 0.0
    return float(np.minimum(above[after(result.died_at) : after(line.last_done[result])], bytes).sum())


def segments(calls: Sequence[RepeatableOperation], count: int) -> SavingChoice:
    """The forward pass cut into ``count`` parts that keep about the same, at the places where least goes across."""
    across = _going_across(calls)
    sums = np.cumsum([sum(r.bytes for r in call.makes if r.saved) for call in calls])
    kept_results: set[Result] = set()
    for number in range(1, count):
        low, high = np.searchsorted(sums, [sums[-1] * (number - 0.4) / count, sums[-1] * (number + 0.4) / count])
        near = across[int(low) : int(high) + 1]
        # in the midst of an in-place operation there is nothing to keep
        places = [live for live in near if live and not any(result.overwritten for result in live)]
        kept_results |= min(places, key=lambda live: sum(result.bytes for result in live), default=set())
    saved = {r.key for call in calls for r in call.makes if r.saved and not r.overwritten}
    return SavingChoice(
        frozenset(saved - {r.key for r in kept_results}), frozenset(r.key for r in kept_results if not r.saved)
    )


def _going_across(calls: Sequence[RepeatableOperation]) -> list[set[Result]]:
    """The results that were made up to each call and are read after it."""
    last = {read: at for at, call in enumerate(calls) for read in call.reads}
    live: set[Result] = set()
    across = []
    for at, call in enumerate(calls):
        live |= {result for result in call.makes if last.get(result, -1) > at}
        live = {result for result in live if last[result] > at}
        across.append(set(live))
    return across


def _by_key(results: Iterable[Result], smallest_bytes: float) -> dict[str, list[Result]]:
    """Those that autograd keeps; a module that is called twice has several of one key."""
    by_key: dict[str, list[Result]] = {}
    for result in results:
        if result.saved and not result.overwritten and result.bytes >= smallest_bytes:
            by_key.setdefault(result.key, []).append(result)
    return by_key


def call_of(key: str) -> str:
    """``aten.native_batch_norm.default#0`` of ``aten.native_batch_norm.default#0.1``."""
    name, _, number = key.rpartition("#")
    return f"{name}#{number.partition('.')[0]}"
