"""Plans an inference pass: which module calls run in slices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from togi.core.errors import FitError
from togi.core.report import Report
from togi.footprint.fit.inference.chunked import ChunkedForward
from togi.footprint.fit.inference.divisions import Divisions, divisions_of, why_dependent_in_full
from togi.footprint.fit.inference.search import ChunkSearch, Draft, Way
from togi.footprint.fit.inference.simulate import Site, simulation_of, sites_of
from togi.footprint.fit.measure import (
    ReplacedTensors,
    bytes_of,
    measured_peak_bytes,
    start_profiler,
    tensors_before,
)
from togi.footprint.fit.planner import MeasuredPlan, Planner
from togi.footprint.fit.proof import Outputs, faithful, outputs_of
from togi.footprint.fit.result import FitResult, StepProof
from togi.footprint.fit.time_limit import TimeLimit
from togi.footprint.step import Step
from togi.torch_internals.float32 import ieee_float32
from togi.torch_internals.tensors import storage_key
from togi.verify.own_error import outputs_in
from togi.verify.repeatability import apart, noise_limit

_CANDIDATES = 3
"""Plans that are measured, each without the cuts of those before it."""
_TIE = 1.1
_FRONT = 12


def fit_inference(
    step: Step,
    budget_bytes: int,
    *,
    device: str = "cpu",
    seed: int = 0,
    time_limit_s: float | None = None,
    report: Report | None = None,
) -> FitResult:
    """Plan one pass of ``step`` under ``budget_bytes``, which count all: parameters, inputs, outputs, temporaries.

    The step's module is left as it was, its buffers too.

    Raises:
        FitError: two equal passes give different outputs.
    """
    planner = InferencePlanner(
        step, device=device, seed=seed, limit=TimeLimit(time_limit_s), report=report, enough_bytes=budget_bytes
    )
    return planner.plan(budget_bytes)


class InferencePlanner(Planner[Draft]):
    """Plans of one pass under any number of budgets."""

    train: ClassVar[bool] = False
    rounds: ClassVar[int] = 12
    timing_s: ClassVar[float] = 8.0

    def __init__(
        self,
        step: Step,
        *,
        device: str = "cpu",
        seed: int = 0,
        limit: TimeLimit | None = None,
        report: Report | None = None,
        enough_bytes: int = 0,
    ) -> None:
        """``enough_bytes``: if the unmodified pass takes no more, no time is needed for a plan."""
        super().__init__(step, device, seed, limit, report)
        self._doing("the first pass", self._limit)
        replaced = ReplacedTensors(step.module)
        with self._same_start():
            step.run()  # makes what later passes find
        self._replaced = replaced.names
        self._doing("the pass that measures its peak", self._limit)
        start_profiler(device)
        began = time.monotonic()
        peak_bytes, outputs, structure = self.run()
        self._limit.note_run(time.monotonic() - began)
        if peak_bytes > enough_bytes:
            self._limit.check()
        self._reference = Outputs(step, outputs, structure, seed)
        self._check_repeatable()
        self.static_bytes = bytes_of(tensors_before(step)) + bytes_of(_made(outputs, step))
        self.floor_bytes = self.static_bytes
        self._simulation = simulation_of(step)
        self._search = ChunkSearch(self._simulation, sites_of(self._simulation), self._divisions)
        forecast_bytes = self._search.peak(Draft()).bytes
        proof = StepProof(exact=True, outputs=len(outputs))
        self.unmodified = MeasuredPlan(Draft(), self._plan(), forecast_bytes, peak_bytes, proof, 0.0)
        self._measured[Draft()] = self.unmodified
        self._forbidden: frozenset[Way] = frozenset()
        self._refused: list[str] = []

    def run(self) -> tuple[int, list[Tensor], Any]:
        """One pass: its peak by the allocator, the tensors that it returns, and the structure around them.

        Raises:
            FitError: the allocator cannot be observed here.
        """
        returned: list[Any] = []
        args, kwargs = self.step.sample.args, self.step.sample.kwargs
        with self._same_start(), torch.no_grad(), ieee_float32():
            peak = measured_peak_bytes(
                self.step, lambda: returned.append(self.step.module(*args, **kwargs)), self._device, self._replaced
            )
        return peak, *outputs_in(returned[0])

    def _best(self, budget_bytes: int, limit: TimeLimit) -> MeasuredPlan[Draft]:
        """Measured candidates, the fastest first, until one passes its proof at the full size."""
        while True:
            candidates = list(self._candidates(budget_bytes, limit))
            self._race(candidates, limit)
            within = [candidate for candidate in candidates if candidate.peak_bytes <= budget_bytes]
            for chosen in self._fastest_first(within) or self._lowest_first(candidates):
                if not chosen.draft.cuts or self._proven_in_full(chosen):
                    return chosen

    def _fastest_first(self, candidates: Sequence[MeasuredPlan[Draft]]) -> list[MeasuredPlan[Draft]]:
        """Times within a tenth of the best do not count as a difference: then the one that should cost least."""
        step_ms = {candidate.draft: self._times[candidate.draft].step_ms for candidate in candidates}
        tied_ms = _TIE * min(step_ms.values(), default=0.0)
        return sorted(candidates, key=lambda candidate: (max(step_ms[candidate.draft], tied_ms), candidate.cost_ms))

    def _lowest_first(self, candidates: Sequence[MeasuredPlan[Draft]]) -> list[MeasuredPlan[Draft]]:
        """The unmodified pass among them: where nothing fits, what takes more than that does not help."""
        return sorted([self.unmodified, *candidates], key=lambda candidate: (candidate.peak_bytes, candidate.cost_ms))

    def _candidates(self, budget_bytes: int, limit: TimeLimit) -> Iterator[MeasuredPlan[Draft]]:
        without: frozenset[Way] = frozenset()
        for number in range(_CANDIDATES):
            if number and not limit.allows(1):
                return

            def search(aim_bytes: int, deadline: float, without: frozenset[Way] = without) -> Draft | None:
                return self._search.cheapest(aim_bytes, without | self._forbidden, deadline)

            candidate = self._within(budget_bytes, budget_bytes, limit, search)
            if candidate is None:
                if number == 0:
                    yield self._least()
                return
            yield candidate
            if not candidate.draft.cuts:
                return
            without |= candidate.draft.ways

    def _least(self) -> MeasuredPlan[Draft]:
        """The lowest candidate that is right: nothing fits."""
        while True:
            if candidate := self._measured_once(self._search.lowest(self._forbidden)):
                return candidate

    def _measure(self, draft: Draft) -> MeasuredPlan[Draft] | None:
        """Run the draft. None, and its cuts are forbidden, where outputs differ by more than rounding."""
        plan = self._plan(chunks=self._search.chunks(draft))
        forwards = self._forwards_of(plan)
        for forward in forwards:
            if isinstance(forward, ChunkedForward):
                forward.asks = False  # that is done once, of the plan that is chosen
        with self._under(forwards):
            peak_bytes, outputs, structure = self.run()
        proof = self._reference.compare(outputs, structure)
        if not faithful(proof):
            self._forbid(draft, f"its outputs are not the unmodified module's ({'; '.join(proof.differences[:2])})")
            return None
        forecast_bytes = self._search.peak(draft).bytes
        return MeasuredPlan(draft, plan, forecast_bytes, peak_bytes, proof, draft.cost_ms, forwards)

    def _proven_in_full(self, candidate: MeasuredPlan[Draft]) -> bool:
        with self._same_start():
            dependent = why_dependent_in_full(self.step, candidate.plan.chunks, self._seed)
        if dependent:
            name, reason = next(iter(dependent.items()))
            self._forbid(candidate.draft, f"{name or 'the whole module'}: {reason}")
        return not dependent

    def _forbid(self, draft: Draft, reason: str) -> None:
        self._forbidden |= draft.ways
        self._refused.append(reason)

    def _divisions(self, sites: Sequence[Site]) -> dict[str, Divisions]:
        with self._same_start():
            return divisions_of(self.step, sites)

    def _check_repeatable(self) -> None:
        with self._same_start():
            outputs, structure = outputs_of(self.step, self._seed)
        pairs = list(zip(outputs, self._reference.tensors, strict=False))
        same = structure == self._reference.structure and len(outputs) == len(self._reference.tensors)
        if not (same and all(apart(one, other) <= noise_limit(other) for one, other in pairs)):
            raise FitError(
                "two passes of the unmodified module with the same seed, weights and inputs differ, so no plan can be "
                "proven right. Find what draws outside torch's generator (random, numpy), what it remembers from call "
                "to call, or what is not deterministic (torch.use_deterministic_algorithms names it)."
            )

    def _frontier(self) -> list[Draft]:
        front: list[Draft] = []
        lowest = min(candidate.peak_bytes for candidate in self._run_so_far)
        for draft in sorted(self._search.drafts.values(), key=lambda draft: draft.cost_ms):
            peak = self._search.peak(draft).bytes
            if peak < 0.95 * lowest and not draft.ways & self._forbidden:
                lowest = peak
                front.append(draft)
        return front[:_FRONT]

    def _plans_tried(self) -> int:
        return len(self._search.peaks)

    def _notes(self, best: MeasuredPlan[Draft], fits: bool) -> Iterable[str]:
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


def _made(outputs: Sequence[Tensor], step: Step) -> list[Tensor]:
    """Outputs that are neither parameters nor inputs."""
    sample = step.sample
    there = {storage_key(t.untyped_storage()) for t in (*step.module.parameters(), *step.module.buffers())}
    there |= {storage_key(t.untyped_storage()) for t in sample.tensors()}
    return [t for t in outputs if storage_key(t.untyped_storage()) not in there]
