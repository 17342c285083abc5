"""Looks for the cheapest plan whose simulated peak is within an aim.

A plan is a set of cuts: a kind of module, a dimension, how much at a time. From a plan, the next ones cut what runs at
its peak: a module on the stack there that is not cut yet, or one that is, finer. Plans are tried in order of what they
should cost; the figures for that are rough (bytes copied, weights read once more for every slice, calls), they decide
the order only. The best plans are measured by the planner.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from togi.footprint.fit.inference.divisions import Division, Divisions
from togi.footprint.fit.inference.simulate import MemoryPeak, Simulation, Site
from togi.footprint.fit.policies import CUT, Chunk

_BYTES_PER_MS = 4e6
"""Copied or read again: about what one core does."""
_CALL_MS = 0.02
"""Of one module without parts."""
_PROGRESS = 0.995
_WORSE = 1.02
_NEARLY = 1.01
Way = tuple[str, int]
"""A kind of module, and which of its divisions."""
Cuts = tuple[tuple[str, int, int], ...]
"""Kind, division, and how much at a time."""


@dataclass(frozen=True)
class Draft:
    """A set of cuts, and what it should cost."""

    cuts: Cuts = ()
    cost_ms: float = 0.0

    @property
    def ways(self) -> frozenset[Way]:
        return frozenset((kind, way) for kind, way, _ in self.cuts)

    def cut_of(self, kind: str) -> tuple[str, int, int] | None:
        return next((cut for cut in self.cuts if cut[0] == kind), None)


Ask = Callable[[Sequence[Site]], dict[str, Divisions]]


class ChunkSearch:
    """Peaks and divisions that were found once are kept for the next aim."""

    def __init__(self, simulation: Simulation, sites: Mapping[str, Site], ask: Ask) -> None:
        self._simulation, self._ask = simulation, ask
        self._kind_of = {name: site.kind for name, site in sites.items()}
        self.kinds: dict[str, list[Site]] = {}
        for name, site in sites.items():
            self.kinds.setdefault(self._kind_of[name], []).append(site)
        self._divisions: dict[str, Divisions] = {}
        self.ended_early = False
        """The last search that found nothing had plans left to try."""
        self.peaks: dict[Cuts, MemoryPeak] = {}
        self.drafts: dict[Cuts, Draft] = {}

    def cheapest(self, aim_bytes: int, forbidden: frozenset[Way], deadline: float) -> Draft | None:
        """The first plan within ``aim_bytes`` in order of cost; None where none was found until the deadline."""
        order = itertools.count()
        waiting: list[tuple[float, int, Draft, str, float]] = [(0.0, next(order), Draft(), "", math.inf)]
        seen, best = {Draft().cuts}, math.inf
        met: dict[tuple[float, int], int] = {}
        """Cost and peak: how much at a time the last cut is, that is how much finer it can become."""
        while waiting and time.monotonic() < deadline:
            _, _, draft, changed, parent = heapq.heappop(waiting)
            peak = self.peak(draft)
            if peak.bytes <= aim_bytes:
                return self._fewest_parts(draft, aim_bytes)
            stays = any(self._kind_of[name] == changed for name in peak.stack)
            if (stays and peak.bytes > _PROGRESS * parent) or peak.bytes > _WORSE * best:
                continue
            figures = (round(draft.cost_ms, 6), peak.bytes)
            size = (draft.cut_of(changed) or ("", 0, 0))[2]
            if size <= met.get(figures, -1):  # height instead of width: one of the two is enough
                continue
            met[figures] = size
            best = min(best, peak.bytes)
            for child, kind in self._finer(draft, peak.stack, forbidden):
                if child.cuts not in seen:
                    seen.add(child.cuts)
                    heapq.heappush(waiting, (child.cost_ms, next(order), child, kind, peak.bytes))
        draft_in_rows = self._in_rows(aim_bytes, forbidden) if waiting else None
        self.ended_early = bool(waiting) and draft_in_rows is None
        return draft_in_rows

    def _in_rows(self, aim_bytes: int, forbidden: frozenset[Way]) -> Draft | None:
        """When the time is over: the whole module in halves, quarters, ... of its batch. That is soon tried."""
        if (kind := self._kind_of.get("")) is None:
            return None
        self._learn([kind])
        for way, division in enumerate(self._divisions[kind].ways):
            size = division.length if (kind, way) not in forbidden else 1
            while size > 1:
                size = -(-size // 2)
                draft = self._with(Draft(), (kind, way, size))
                if self.peak(draft).bytes <= aim_bytes:
                    return self._fewest_parts(draft, aim_bytes)
        return None

    def lowest(self, forbidden: frozenset[Way]) -> Draft:
        """The cheapest of all plans that were tried, out of those with nearly the lowest peak."""
        allowed = [draft for draft in self.drafts.values() if not draft.ways & forbidden]
        least = min(self.peaks[draft.cuts].bytes for draft in allowed)
        near = [draft for draft in allowed if self.peaks[draft.cuts].bytes <= _NEARLY * least]
        return min(near, key=lambda draft: draft.cost_ms)

    def peak(self, draft: Draft) -> MemoryPeak:
        if draft.cuts not in self.peaks:
            self.peaks[draft.cuts] = self._simulation.peak(self.chunks(draft))
            self.drafts[draft.cuts] = draft
        return self.peaks[draft.cuts]

    def chunks(self, draft: Draft) -> tuple[Chunk, ...]:
        """The entries of a plan, one for every module of a kind."""
        return tuple(
            replace_module(self.division(kind, way), site.name, size)
            for kind, way, size in draft.cuts
            for site in self.kinds[kind]
        )

    def division(self, kind: str, way: int) -> Division:
        return self._divisions[kind].ways[way]

    def whys(self, draft: Draft) -> Iterator[str]:
        """Reasons why modules that run at the draft's peak are not cut."""
        for name in self.peak(draft).stack:
            divisions = self._divisions.get(self._kind_of.get(name, ""), Divisions())
            if divisions.problems:
                reasons = "; ".join(dict.fromkeys(divisions.problems))
                yield f"{name or 'The whole module'} runs at the peak; in these ways it cannot be cut: {reasons}."

    def _finer(self, draft: Draft, stack: Sequence[str], forbidden: frozenset[Way]) -> Iterator[tuple[Draft, str]]:
        kinds = list(dict.fromkeys(self._kind_of[name] for name in stack if name in self._kind_of))
        self._learn(kinds)
        for kind in kinds:
            if cut := draft.cut_of(kind):
                if cut[2] > 1:
                    yield self._with(draft, (*cut[:2], -(-cut[2] // 2))), kind
                continue
            for way, division in enumerate(self._divisions[kind].ways):
                if (kind, way) not in forbidden:
                    length = self._length(draft, kind, division)
                    if length > 1:
                        yield self._with(draft, (kind, way, -(-length // 2))), kind

    def _length(self, draft: Draft, kind: str, division: Division) -> int:
        """The length of the dimension, when a module around it is cut along one of the same size."""
        length = division.length
        names = [site.name for site in self.kinds[kind]]
        for other, way, size in draft.cuts:
            around = any(_around(site.name, name) for site in self.kinds[other] for name in names)
            if around and self.division(other, way).length == division.length:
                length = min(length, size)
        return length

    def _with(self, draft: Draft, cut: tuple[str, int, int]) -> Draft:
        return self._priced([*(earlier for earlier in draft.cuts if earlier[0] != cut[0]), cut])

    def _priced(self, cuts: Sequence[tuple[str, int, int]]) -> Draft:
        return Draft(tuple(sorted(cuts)), sum(self._cost_ms(*entry) for entry in cuts))

    def _cost_ms(self, kind: str, way: int, size: int) -> float:
        total = 0.0
        division = self.division(kind, way)
        name, shape = next((name, shape) for name, shape in division.entry.inputs.items() if CUT in shape)
        for site in self.kinds[kind]:
            for call in site.calls:
                more = -(-call.shapes[name][shape.index(CUT)] // size) - 1
                if more > 0:
                    total += more * (_CALL_MS * site.leaves + site.weights_bytes / _BYTES_PER_MS)
                    total += call.result_bytes / _BYTES_PER_MS
        return total

    def _fewest_parts(self, draft: Draft, aim_bytes: int) -> Draft:
        """Halving overshoots: cut by cut, none if it goes without, else the fewest parts that are still within."""
        for kind, way, size in draft.cuts:
            without = self._priced([cut for cut in draft.cuts if cut[0] != kind])
            if self.peak(without).bytes <= aim_bytes:
                draft = without
                continue
            length = self.division(kind, way).length
            enough, short = -(-length // size), -(-length // size) // 2
            while enough - short > 1:
                middle = (enough + short) // 2
                tried = self._with(draft, (kind, way, -(-length // middle)))
                if self.peak(tried).bytes <= aim_bytes:
                    draft, enough = tried, middle
                else:
                    short = middle
        return draft

    def _learn(self, kinds: Sequence[str]) -> None:
        """Ask the modules that are new, one of each kind."""
        new = [self.kinds[kind][0] for kind in kinds if kind not in self._divisions]
        for site in new:
            if site.problem:
                self._divisions[self._kind_of[site.name]] = Divisions([], [site.problem])
        open_questions = [site for site in new if not site.problem]
        for name, divisions in (self._ask(open_questions) if open_questions else {}).items():
            self._divisions[self._kind_of[name]] = divisions
        for site in new:
            self._divisions.setdefault(self._kind_of[site.name], Divisions([], ["it was not reached again"]))


def replace_module(division: Division, name: str, size: int) -> Chunk:
    parts = -(-division.length // size)
    return division.entry.model_copy(update={"module": name, "size": size, "parts": parts})


def _around(outer: str, inner: str) -> bool:
    return outer != inner and (outer == "" or inner.startswith(f"{outer}."))
