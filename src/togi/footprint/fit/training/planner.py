"""Plans a training step: what autograd saves, and what is recomputed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import torch

from togi.core.errors import FitError
from togi.core.quantities import first_line
from togi.core.report import Report
from togi.footprint.fit.forward import ReplacedForward
from togi.footprint.fit.measure import (
    ReplacedTensors,
    deterministic,
    measured_peak_bytes,
    put_back,
    same_start,
    start_profiler,
    static_bytes,
)
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.planner import MeasuredPlan, Planner
from togi.footprint.fit.policies import Action, SavePolicy
from togi.footprint.fit.proof import Noise, PassOutcome, TrainingRun, compare, noise_between, outcome_of
from togi.footprint.fit.result import StepProof
from togi.footprint.fit.time_limit import TimeLimit
from togi.footprint.fit.training.costs import MeasuredCosts, costs_of, observe_cheaply
from togi.footprint.fit.training.optimizer_advice import advise
from togi.footprint.fit.training.saved_tensors import PACKED_FORMS, ms_per_byte
from togi.footprint.fit.training.search import RecomputeSearch
from togi.footprint.fit.training.timeline import SavingChoice, StepTimeline
from togi.footprint.step import Step
from togi.subject.behaviour import same
from togi.subject.remembered import changed_since, remembered, why_not_twice

_FRONT = 12
_RUNS_OF_ADVICE = 2
"""What it takes to measure other optimizers, roughly."""


class TrainingPlanner(Planner[SavingChoice]):
    """Plans of one training step under any number of budgets.

    The step's module is left without a plan, and its parameters as they were: the optimizer's learning rate is set to
    zero.

    Raises:
        FitError: the step cannot be repeated, or gradients differ between two equal runs.
    """

    train: ClassVar[bool] = True
    rounds: ClassVar[int] = 24
    timing_s: ClassVar[float] = float("inf")

    def __init__(
        self,
        step: Step,
        *,
        allow_approximate: bool = False,
        device: str = "cpu",
        seed: int = 0,
        limit: TimeLimit | None = None,
        report: Report | None = None,
        enough_bytes: int = 0,
    ) -> None:
        """``enough_bytes``: if the unmodified step takes no more, no time is needed for a plan."""
        super().__init__(step, device, seed, limit, report)
        self._surroundings = step.training.surroundings
        self._kept_outside = self._surroundings.read()
        self._stand_still()
        self._doing("the first run of the step", self._limit)
        replaced = ReplacedTensors(step.module)
        self._moved = _first_run(step, seed)
        self._replaced = replaced.names
        self._reference, peak_bytes = self._second_run()
        if peak_bytes > enough_bytes:
            self._limit.check()
        self._doing("the run that is watched", self._limit)
        self._noise: Noise = {}
        self._deterministic = False
        """Plans are proven in torch's deterministic mode, in which the unmodified step repeats to the bit."""
        costs = self._watched(allow_random=allow_approximate)
        observed, self._note = observe_cheaply(step, costs, self._same_start())
        workspaces = costs.workspaces if costs.operations == observed.end else {}
        allowed = [torch.bool, torch.float32] if allow_approximate else [torch.bool]
        self._forms = {dtype: action for action, dtype in PACKED_FORMS.items() if dtype in allowed}
        self.timeline = StepTimeline(
            observed, workspaces, packing_ms_per_byte={dtype: ms_per_byte(dtype, device) for dtype in allowed}
        )
        self._search = RecomputeSearch(self.timeline)
        plain_bytes = self._search.forecast(SavingChoice()).peak_bytes
        self._unseen_bytes = max(0, peak_bytes - plain_bytes)
        """By how much the allocator's peak is above the forecast's."""
        proof = compare(self._reference, self._reference)
        self.unmodified = MeasuredPlan(SavingChoice(), self._plan(), plain_bytes, peak_bytes, proof, 0.0)
        self.static_bytes = static_bytes(step)
        self.floor_bytes = max(self.static_bytes, int(self.timeline.ground_bytes.max()))

    def forecast(self, keep: float) -> Plan:
        """The cheapest plan whose peak lies, by forecast, no higher than this share of the way from what the step
        itself holds to the unmodified step's peak; else the lowest that was found. It has not run.

        Raises FitError where none takes less than the unmodified step.
        """
        self._doing("the search for a plan", self._limit)
        self._search.deadline = self._limit.search_until(0)
        floor_bytes = int(self.timeline.ground_bytes.max())
        aim_bytes = floor_bytes + int(keep * (self.unmodified.forecast_bytes - floor_bytes))
        draft = self._search.cheapest(aim_bytes) or self._search.least
        if self._search.seen[draft][0] >= self.unmodified.forecast_bytes:
            raise FitError(
                "no plan that was found takes less than the unmodified step: nothing that is kept is at its peak"
            )
        return self._plan(policies=tuple(self._policies(draft)))

    def _best(self, budget_bytes: int, limit: TimeLimit) -> MeasuredPlan[SavingChoice]:
        def search(aim_bytes: int, deadline: float) -> SavingChoice | None:
            self._search.deadline = deadline
            return self._search.cheapest(aim_bytes)

        candidate = self._within(budget_bytes, budget_bytes - self._unseen_bytes, limit, search)
        if candidate is None and self._may_run(limit):
            self._doing("the run of the lowest plan that was found", limit)
            candidate = self._measured_once(self._search.least)
        return candidate or self.unmodified

    def _best_of_all(self, best: MeasuredPlan[SavingChoice], budget_bytes: int) -> MeasuredPlan[SavingChoice]:
        """The cheapest within the budget, else the lowest: the unmodified step among them."""
        fitting = [candidate for candidate in self._run_so_far if candidate.peak_bytes <= budget_bytes]
        if fitting:
            return min(fitting, key=lambda candidate: candidate.cost_ms)
        return min(self._run_so_far, key=lambda candidate: (candidate.peak_bytes, candidate.cost_ms))

    def _measure(self, draft: SavingChoice) -> MeasuredPlan[SavingChoice]:
        forecast_bytes, cost_ms = self._search.seen[draft]
        if draft == SavingChoice():
            return self.unmodified
        plan = self._plan(policies=tuple(self._policies(draft)))
        forwards = self._forwards_of(plan)
        peak_bytes, proof = self._proven(plan, forwards)
        return MeasuredPlan(draft, plan, forecast_bytes, peak_bytes, proof, cost_ms, forwards)

    def _confirmed(self, best: MeasuredPlan[SavingChoice]) -> MeasuredPlan[SavingChoice]:
        """The first pass under a plan records every call, later ones those that are repeated (``repeats``)."""
        peak_bytes, proof = self._proven(best.plan, best.forwards)
        weaker = best.proof if proof.exact else proof
        return replace(best, peak_bytes=max(peak_bytes, best.peak_bytes), proof=weaker)

    def _proven(self, plan: Plan, forwards: Sequence[ReplacedForward]) -> tuple[int, StepProof]:
        """The peak of the step under a plan, and how it compares. Raises FitError where it is not the unmodified one,
        and should be."""
        with self._under(forwards):
            outcome, peak_bytes = self._run()
            if self._deterministic:
                outcome = self._repeated()
        proof = compare(self._reference, outcome, self._noise)
        approximate = any(policy.action is Action.NARROW for policy in plan.policies)
        if not (proof.exact or proof.within_noise or approximate):
            raise FitError(
                "the plan was refused, because its step is not the unmodified one to the bit: "
                f"{'; '.join(proof.differences[:3])}. Something writes into tensors without torch's knowledge (NumPy, "
                "a kernel that is called directly), or keeps state that the plan does not see."
            )
        return peak_bytes, proof

    def _stand_still(self) -> None:
        """Every run must begin with equal parameters, the optimizer's work included. A schedule inside of the step sets
        rates anew."""
        for group in self.step.optimizer.param_groups if self.step.optimizer is not None else ():
            group["lr"] = 0.0

    @contextmanager
    def _same_start(self) -> Iterator[None]:
        """Of what a loop body keeps outside, too: a count of batches, a scale."""
        self._surroundings.write(self._kept_outside)
        self._stand_still()
        with super()._same_start():
            yield

    def _second_run(self) -> tuple[PassOutcome, int]:
        """The reference. The first run may have taken longer: it made what later ones find."""
        self._doing("the run that measures its peak", self._limit)
        start_profiler(self._device)
        began = time.monotonic()
        try:
            return self._run()
        except RuntimeError as error:  # foreign code: it ran once
            raise FitError(why_not_twice(error, self.step.module)) from error
        finally:
            self._limit.note_run(time.monotonic() - began)

    def _run(self) -> tuple[PassOutcome, int]:
        """Forward, backward and the optimizer from the same beginning, with its peak."""
        run = TrainingRun(self.step, self._moved)
        with self._same_start():
            peak = measured_peak_bytes(self.step, run, self._device, self._replaced)
            return run.outcome, peak

    def _watched(self, *, allow_random: bool) -> MeasuredCosts:
        """The unmodified step again. It must do the same, or no plan could be proven."""
        run = TrainingRun(self.step, self._moved)
        try:
            with self._same_start():
                costs = costs_of(self.step, run, self._device)
                outcome = run.outcome
        except RuntimeError as error:  # foreign code: it ran twice
            raise FitError(self._why_not_watched(error)) from error
        again = compare(self._reference, outcome)
        if not again.exact and not self._can_be_proven(outcome) and not allow_random:
            raise FitError(
                "two runs of the unmodified step with the same seed, weights and inputs differ, so no plan can be "
                f"proven right: {'; '.join(again.differences[:3])}. {self._why_not_alike()}"
            )
        return costs

    def _why_not_alike(self) -> str:
        before = remembered(self.step.module)
        self._repeated()
        if names := changed_since(before, self.step.module):
            return (
                f"Each run changes {', '.join(names[:3])}, which is neither a parameter nor a buffer, so it cannot be "
                "put back: make it a buffer (register_buffer), or reset it in the step."
            )
        return (
            "Find what draws outside torch's generator (random, numpy) or is not deterministic "
            "(torch.use_deterministic_algorithms names it), or allow approximate."
        )

    def _repeated(self) -> PassOutcome:
        with deterministic() if self._deterministic else nullcontext(), self._same_start():
            return outcome_of(self.step, self._moved)

    def _can_be_proven(self, again: PassOutcome) -> bool:
        """Find how a step can be proven that does not repeat to the bit: it does in torch's deterministic mode, or its
        runs differ by no more than sums in another order explain, which is then what a plan may differ by."""
        self._deterministic = True
        first = self._repeated()
        if compare(first, self._repeated()).exact:
            self._reference = first
            return True
        self._deterministic = False
        noise = noise_between([self._reference, again, self._repeated()])
        self._noise = noise or {}
        return noise is not None

    def _why_not_watched(self, error: RuntimeError) -> str:
        try:
            self._repeated()
        except RuntimeError:
            return why_not_twice(error, self.step.module)
        return (
            f"the step forbids hooks for saved tensors ({first_line(error)}), which is what a plan is made of. "
            "disable_saved_tensors_hooks() saves no memory itself: take it away."
        )

    @contextmanager
    def _under(self, forwards: Sequence[ReplacedForward]) -> Iterator[None]:
        with super()._under(forwards):
            try:
                yield
            except RuntimeError as error:
                raise FitError(
                    f"the step runs, and fails under a plan ({first_line(error)}). Something that was recomputed did "
                    "not come out as the first time: a result was written into behind torch's back."
                ) from error

    def _policies(self, choice: SavingChoice) -> Iterator[SavePolicy]:
        named: set[str] = set()
        for result in self.timeline.results:
            action = None
            if result.key in choice.dropped:
                action = Action.RECOMPUTE
            elif result.key in choice.kept:
                action = Action.KEEP
            elif result.key in choice.packed:
                action = self._forms.get(result.dtype)
            if action is not None and result.key not in named:
                named.add(result.key)
                again_ms = self.timeline.maker[result].ms if action is Action.RECOMPUTE else 0.0
                yield SavePolicy(
                    value=result.key, module=result.module, action=action, bytes=result.bytes, recompute_ms=again_ms
                )

    def _frontier(self) -> list[SavingChoice]:
        front = [choice for _, _, choice in self._search.front]
        return front[:: max(1, -(-len(front) // _FRONT))]

    def _plans_tried(self) -> int:
        return len(self._search.seen)

    @cached_property
    def _advice(self) -> tuple[str, ...]:
        """Measured once, for all budgets that nothing keeps."""
        return advise(self.step) if self._limit.allows(_RUNS_OF_ADVICE) else ()

    def _notes(self, best: MeasuredPlan[SavingChoice], fits: bool) -> Iterable[str]:
        if self._note:
            yield self._note
        if self._deterministic:
            yield (
                "Two runs of the unmodified step differ here by the order of their sums, so plans were proven, to the "
                "bit, with torch.use_deterministic_algorithms on."
            )
        if not fits:
            if self._cut_short:
                yield "The time limit ended the search: a longer --time-limit (time_limit_s) may find a plan."
            if best.draft == self.unmodified.draft:
                yield "No plan that was run takes less than the unmodified step."
            yield self.timeline.largest_at_the_floor
            yield from self._advice


def _first_run(step: Step, seed: int) -> tuple[str, ...]:
    """Makes what later runs find (the optimizer's state). Names the parameters that the forward pass writes into."""
    values = {name: parameter.detach().clone() for name, parameter in step.module.named_parameters()}
    with same_start(step.module, seed):
        step.run()
    parameters = dict(step.module.named_parameters())
    moved = {name: value for name, value in values.items() if not same([parameters[name]], [value])}
    put_back(step.module, moved)
    return tuple(moved)
