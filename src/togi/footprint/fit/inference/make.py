"""From an inference pass and a budget to a plan that was searched, measured and proven."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from togi.footprint.fit.chunk import Chunk
from togi.footprint.fit.errors import FitError
from togi.footprint.fit.inference.chunked import chunk, unchunk
from togi.footprint.fit.inference.divisible import Divisions, divisions_of
from togi.footprint.fit.inference.measure import measure
from togi.footprint.fit.inference.proof import Reference, faithful, run_for_outputs, why_dependent_in_full
from togi.footprint.fit.inference.search import Cuts, Draft, Search, Way
from togi.footprint.fit.inference.simulate import simulation_of
from togi.footprint.fit.inference.sites import Site, sites_of
from togi.footprint.fit.measured import bytes_of, step_ms, tensors_before
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.record import FitResult, Point, Proof
from togi.footprint.step import Step
from togi.footprint.storage_tracker import tensors_of
from togi.verify.compare import identical
from togi.verify.observe import State

_CANDIDATES = 3
"""Plans that are measured, each without the cuts of those before it."""
_ATTEMPTS = 3
"""Lower aims for one candidate, where kernels' workspaces exceed the simulated peak."""
_SEARCH_SHARE = 0.5
_TURNS = 7
_TIMING_S = 8.0
"""Of all turns together."""
_TIE = 1.1
_FRONT = 12


@dataclass(frozen=True)
class _Candidate:
    draft: Draft
    chunks: tuple[Chunk, ...]
    peak_bytes: int
    proof: Proof


def fit_inference(
    step: Step, budget_bytes: int, *, device: str = "cpu", seed: int = 0, time_limit_s: float = 60.0
) -> FitResult:
    """Plan one pass of ``step`` under ``budget_bytes``, which count all: parameters, inputs, outputs, temporaries.

    The step's module is left as it was, its buffers too.

    Raises:
        FitError: two equal passes give different outputs.
    """
    planner = InferencePlanner(step, device=device, seed=seed)
    return planner.plan(budget_bytes, time_limit_s=time_limit_s)


class InferencePlanner:
    """Plans of one pass under any number of budgets: it is run and looked at once."""

    def __init__(self, step: Step, *, device: str = "cpu", seed: int = 0) -> None:
        started = time.monotonic()
        self.step, self._device, self._seed = step, device, seed
        self._state = State(step.module)
        with self._as_it_was():
            plain = measure(step, device, seed)
        self._reference = Reference(step, plain.outputs, plain.form, seed)
        self._check_repeatable()
        self._plain_peak = plain.peak_bytes
        self._static = bytes_of(tensors_before(step)) + bytes_of(_made(plain.outputs, step))
        self._simulation = simulation_of(step)
        self._search = Search(self._simulation, sites_of(self._simulation), lambda sites: self._divisions(sites))
        self._search.peak(Draft())
        self._forbidden: frozenset[Way] = frozenset()
        self._refused: list[str] = []
        self._measured: dict[Cuts, _Candidate] = {}
        self._passes_ms: dict[str, float] = {}
        self._prepared_s = time.monotonic() - started

    def plan(self, budget_bytes: int, *, time_limit_s: float = 60.0) -> FitResult:
        """The fastest plan that was measured within the budget, else the one with the lowest peak that was found."""
        started = time.monotonic() - self._prepared_s
        # slow passes leave the search its minimum all the same: no plan costs more than a late one
        deadline = max(started + time_limit_s, time.monotonic() + time_limit_s / 2)
        if self._plain_peak <= budget_bytes:
            best = self._unmodified()
            self._race([])
        else:
            best = self._best(budget_bytes, deadline)
        fits = best.peak_bytes <= budget_bytes
        plan = Plan(
            module_class=type(self.step.module).__name__,
            budget_bytes=budget_bytes,
            exact=best.proof.exact,
            chunks=best.chunks,
            peak_bytes=best.peak_bytes,
            step_ms=self._ms(best),
        )
        return FitResult(
            device=self._device,
            train=False,
            budget_bytes=budget_bytes,
            fits=fits,
            plan=plan,
            plain=self._point(self._unmodified()),
            chosen=self._point(best),
            front=self._front(),
            proof=best.proof,
            static_bytes=self._static,
            plans_tried=len(self._search.peaks),
            planning_s=time.monotonic() - started,
            notes=tuple(self._notes(best, fits)),
        )

    def _best(self, budget_bytes: int, deadline: float) -> _Candidate:
        """Measured candidates, the fastest first, until one passes its proof at the full size."""
        while True:
            candidates = list(self._candidates(budget_bytes, deadline))
            self._race(candidates)
            within = [one for one in candidates if one.peak_bytes <= budget_bytes]
            for one in self._fastest_first(within) or sorted(candidates, key=lambda one: one.peak_bytes):
                if not one.draft.cuts or self._proven(one):
                    return one

    def _fastest_first(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Times within a tenth of the best are no difference: then the one that should cost least."""
        best = min((self._ms(one) for one in candidates), default=0.0)
        return sorted(candidates, key=lambda one: (max(self._ms(one), _TIE * best), one.draft.cost_ms))

    def _race(self, candidates: Sequence[_Candidate]) -> None:
        """Passes of the unmodified module and of each candidate in turns: the best of as many as fit, one at least."""
        started = time.monotonic()
        for turn in range(_TURNS):
            for chunks in [(), *(one.chunks for one in candidates)]:
                with self._as_it_was(), self._under(chunks):
                    ms = step_ms(self.step)
                key = _key(chunks)
                self._passes_ms[key] = min(ms, self._passes_ms.get(key, math.inf))
            if (turn + 2) / (turn + 1) * (time.monotonic() - started) > _TIMING_S:
                return

    def _ms(self, one: _Candidate) -> float:
        return self._passes_ms[_key(one.chunks)]

    def _candidates(self, budget_bytes: int, deadline: float) -> Iterator[_Candidate]:
        without = self._forbidden
        for number in range(_CANDIDATES):
            if number and time.monotonic() > deadline:
                return
            found = self._fitting(budget_bytes, without, deadline)
            if found is not None:
                yield found
            if found is None or found.peak_bytes > budget_bytes or not found.draft.cuts:
                if number == 0 and found is None:
                    yield self._least()
                return
            without |= found.draft.ways

    def _fitting(self, budget_bytes: int, without: frozenset[Way], deadline: float) -> _Candidate | None:
        """Search and measure; where the measured peak is above the budget, again with a lower aim."""
        aim = budget_bytes
        for _ in range(_ATTEMPTS):
            share = max(time.monotonic() + 1.0, time.monotonic() + (deadline - time.monotonic()) * _SEARCH_SHARE)
            draft = self._search.cheapest(aim, without, share)
            if draft is None:
                return None
            found = self._measure(draft)
            if found is None:  # refused: its cuts are forbidden now
                without |= self._forbidden
            elif found.peak_bytes <= budget_bytes:
                return found
            else:
                aim -= int((found.peak_bytes - budget_bytes) * 1.1) + 1
        return None

    def _least(self) -> _Candidate:
        """Nothing fits: the lowest that was found, and that is right."""
        while True:
            draft = self._search.lowest(self._forbidden)
            if found := self._measure(draft):
                return found

    def _measure(self, draft: Draft) -> _Candidate | None:
        """None, and its cuts are forbidden, where outputs differ by more than rounding."""
        if draft.cuts not in self._measured:
            chunks = self._search.chunks(draft)
            with self._as_it_was(), self._under(chunks):
                found = measure(self.step, self._device, self._seed)
            proof = self._reference.compare(found.outputs, found.form)
            if not faithful(proof):
                self._forbid(draft, f"its outputs are not the unmodified module's ({'; '.join(proof.differences[:2])})")
                return None
            self._measured[draft.cuts] = _Candidate(draft, chunks, found.peak_bytes, proof)
        return self._measured[draft.cuts]

    def _proven(self, candidate: _Candidate) -> bool:
        with self._as_it_was():
            dependent = why_dependent_in_full(self.step, candidate.chunks, self._seed)
        if dependent:
            name, reason = next(iter(dependent.items()))
            self._forbid(candidate.draft, f"{name or 'the whole module'}: {reason}")
        return not dependent

    def _forbid(self, draft: Draft, reason: str) -> None:
        self._forbidden |= draft.ways
        self._refused.append(reason)

    def _unmodified(self) -> _Candidate:
        proof = Proof(exact=True, gradients=0, outputs=len(self._reference.outputs))
        return _Candidate(Draft(), (), self._plain_peak, proof)

    def _divisions(self, sites: Sequence[Site]) -> dict[str, Divisions]:
        with self._as_it_was():
            return divisions_of(self.step, sites)

    @contextmanager
    def _under(self, chunks: Sequence[Chunk]) -> Iterator[None]:
        parts = chunk(self.step.module, chunks)
        try:
            yield
        finally:
            unchunk(parts)

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """Seeded; afterwards buffers hold what they held."""
        with torch.random.fork_rng():
            torch.manual_seed(self._seed)
            try:
                yield
            finally:
                self._state.restore()

    def _check_repeatable(self) -> None:
        with self._as_it_was():
            outputs, form = run_for_outputs(self.step, self._seed)
        same = form == self._reference.form and all(map(identical, outputs, self._reference.outputs))
        if not same:
            raise FitError(
                "two passes of the unmodified module with the same seed, weights and inputs differ, so no plan can be "
                "proven right. Find what draws outside torch's generator (random, numpy), what it remembers from call "
                "to call, or what is not deterministic (torch.use_deterministic_algorithms names it)."
            )

    def _point(self, one: _Candidate) -> Point:
        return Point(
            peak_bytes=one.peak_bytes,
            recompute_ms=one.draft.cost_ms,
            treatments=len(one.chunks),
            parts=_parts(one.chunks),
            step_ms=self._passes_ms.get(_key(one.chunks)),
            measured=True,
        )

    def _front(self) -> tuple[Point, ...]:
        """What was measured, and of what was simulated only the plans that nothing beats."""
        front = [self._point(one) for one in {(): self._unmodified(), **self._measured}.values()]
        lowest = min(point.peak_bytes for point in front)
        for draft in sorted(self._search.drafts.values(), key=lambda draft: draft.cost_ms):
            peak = self._search.peaks[draft.cuts].bytes
            if peak < 0.95 * lowest and not draft.ways & self._forbidden:
                lowest = peak
                chunks = self._search.chunks(draft)
                front.append(
                    Point(peak_bytes=peak, recompute_ms=draft.cost_ms, treatments=len(chunks), parts=_parts(chunks))
                )
        return tuple(sorted(front, key=lambda point: -point.peak_bytes)[:_FRONT])

    def _notes(self, best: _Candidate, fits: bool) -> Iterable[str]:
        yield from self.step.notes
        if self._simulation.note:
            yield self._simulation.note
        if self._reference.note:
            yield self._reference.note
        for reason in dict.fromkeys(self._refused):
            yield f"A plan was refused: {reason}."
        if not fits:
            if self._search.ended_early:
                yield "The search was ended by its time limit: --time-limit (time_limit_s) gives it more."
            yield from self._search.whys(best.draft)


def _key(chunks: Sequence[Chunk]) -> str:
    return repr([(one.module, one.where, one.size) for one in chunks])


def _parts(chunks: Sequence[Chunk]) -> int:
    return sum(one.parts - 1 for one in chunks)


def _made(outputs: Sequence[torch.Tensor], step: Step) -> list[torch.Tensor]:
    """Outputs that are neither parameters nor inputs."""
    sample = step.sample
    there = {t.untyped_storage()._cdata for t in (*step.module.parameters(), *step.module.buffers())}
    there |= {t.untyped_storage()._cdata for t in tensors_of((sample.args, dict(sample.kwargs)))}
    return [t for t in outputs if t.untyped_storage()._cdata not in there]
