"""Plans of one step under byte budgets: searched, run, proven and timed in turns. What training and inference share.

A search works on forecasts, so what it finds is run: where the measured peak is above the budget, the search goes on
with a lower aim. ``training.planner`` and ``inference.planner`` say what a plan consists of and how it is proven.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from togi.core.errors import FitError
from togi.core.report import Report
from togi.footprint.fit.forward import ReplacedForward, forwards_of
from togi.footprint.fit.measure import same_start
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.result import FitResult, Point, StepProof
from togi.footprint.fit.time_limit import TimeLimit
from togi.footprint.fit.turns import PairedTimes, in_turns
from togi.footprint.step import Step, step_ms
from togi.subject.architecture import architecture_of

_ATTEMPTS = 4
"""Searches with lower and lower aims before a budget is given up."""
_RUNS_OF_A_PLAN = 2
"""To prove it, and to confirm it."""
_ROUNDS_ALONE = 3
"""Of an unmodified step that nothing is compared with."""
_ENDED_EARLY = "The process ended before this plan was timed, and before others were run next to it."
D = TypeVar("D")
"""What a search decides about: hashable."""


@dataclass(frozen=True)
class MeasuredPlan(Generic[D]):
    """A plan that was run."""

    draft: D
    plan: Plan
    forecast_bytes: int
    peak_bytes: int
    """Measured."""
    proof: StepProof
    cost_ms: float
    """Estimated: what it adds to a step."""
    forwards: tuple[ReplacedForward, ...] = field(default=(), compare=False)
    """What stood on the module while it ran; the same ones stand there in later runs, since they learn from each."""


class Planner(ABC, Generic[D]):
    """Plans of one step under any number of budgets: it is run and watched once, when the planner is made."""

    train: ClassVar[bool]
    rounds: ClassVar[int]
    """In how many rounds plans are timed at most."""
    timing_s: ClassVar[float]
    """After how many seconds no further round begins."""
    unmodified: MeasuredPlan[D]
    static_bytes: int
    floor_bytes: int

    def __init__(self, step: Step, device: str, seed: int, limit: TimeLimit | None, report: Report | None) -> None:
        self.step, self._device, self._seed = step, device, seed
        self._limit, self._has_limit = limit or TimeLimit(), limit is not None
        self._report = report or Report()
        self._began = time.monotonic()
        self._measured: dict[D, MeasuredPlan[D] | None] = {}
        self._confirmed_drafts: set[D] = set()
        self._times: dict[D, PairedTimes] = {}
        self._architecture = architecture_of(step.module)
        self._moved: tuple[str, ...] = ()
        """Parameters that the forward pass writes into."""
        self._cut_short = False
        """The time limit ended a search, or kept what it found from being run."""

    def plan(self, budget_bytes: int, *, time_limit_s: float | None = None, timed: bool = True) -> FitResult:
        """The best plan whose measured peak is within the budget, else the one with the lowest peak that was found.

        Args:
            time_limit_s: from now on. None: what is left of the planner's own limit, if it has one.
            timed: also time unmodified and planned steps in turns.
        """
        limit = self._limit if self._has_limit and time_limit_s is None else self._limit.again(time_limit_s)
        self._cut_short = False
        best = self.unmodified if self.unmodified.peak_bytes <= budget_bytes else self._best(budget_bytes, limit)
        best = self._confirmed_once(best)
        if best is not self.unmodified:
            self._report.found(self._result(best, budget_bytes, (_ENDED_EARLY,)))
        self._run_frontier(limit)
        if best.peak_bytes > budget_bytes:
            best = self._confirmed_once(self._best_of_all(best, budget_bytes))
        if timed and best.draft not in self._times and limit.allows(1 if best is self.unmodified else 2):
            self._race([best], limit)
        return self._result(best, budget_bytes)

    def _result(self, best: MeasuredPlan[D], budget_bytes: int, notes: Sequence[str] = ()) -> FitResult:
        fits, times = best.peak_bytes <= budget_bytes, self._times.get(best.draft)
        return FitResult(
            device=self._device,
            train=self.train,
            budget_bytes=budget_bytes,
            fits=fits,
            plan=best.plan.model_copy(
                update={
                    "budget_bytes": budget_bytes,
                    "peak_bytes": best.peak_bytes,
                    "step_ms": times.step_ms if times is not None else None,
                    "exact": best.proof.exact,
                }
            ),
            plain=self._point(self.unmodified),
            chosen=self._point(best),
            front=tuple(map(self._point, self._front(best))),
            speedup_x=times.speedup_x if times is not None and best is not self.unmodified else None,
            proof=best.proof,
            static_bytes=self.static_bytes,
            floor_bytes=min(self.floor_bytes, best.peak_bytes, self.unmodified.peak_bytes),  # the forecast may be high
            plans_tried=self._plans_tried(),
            planning_s=time.monotonic() - self._began,
            notes=(*self.step.notes, *self._notes(best, fits), *notes),
        )

    @abstractmethod
    def _best(self, budget_bytes: int, limit: TimeLimit) -> MeasuredPlan[D]:
        """The best candidate within the budget, proven; else the lowest that was found, proven too."""

    @abstractmethod
    def _measure(self, draft: D) -> MeasuredPlan[D] | None:
        """Run it and compare it with the unmodified step; None where it is refused for what it does."""

    def _confirmed_once(self, best: MeasuredPlan[D]) -> MeasuredPlan[D]:
        if best is self.unmodified or best.draft in self._confirmed_drafts:
            return best
        self._confirmed_drafts.add(best.draft)
        confirmed = self._measured[best.draft] = self._confirmed(best)
        return confirmed

    def _confirmed(self, best: MeasuredPlan[D]) -> MeasuredPlan[D]:
        """Proven once more, where later runs go another way than the first."""
        return best

    @abstractmethod
    def _frontier(self) -> Iterable[D]:
        """Drafts that by forecast no other beats in both peak and cost, few enough to read."""

    @abstractmethod
    def _plans_tried(self) -> int: ...

    @abstractmethod
    def _notes(self, best: MeasuredPlan[D], fits: bool) -> Iterable[str]: ...

    def _run_frontier(self, limit: TimeLimit) -> None:
        """Run them as far as time allows. A forecast is not an offer: what is shown next to the chosen plan was run."""
        ends = limit.front_until()
        waiting = [draft for draft in self._frontier() if draft not in self._measured]
        if waiting:
            self._doing("the runs of other plans", limit)
        for draft in waiting:
            if time.monotonic() + limit.run_s > ends:
                return
            with suppress(FitError):  # it is refused for what it does: not offered
                self._measured_once(draft)

    def _best_of_all(self, best: MeasuredPlan[D], budget_bytes: int) -> MeasuredPlan[D]:
        """The best of all that were run, where ``best`` does not fit."""
        return best

    def _front(self, best: MeasuredPlan[D]) -> list[MeasuredPlan[D]]:
        """Candidates of which none is both lower and cheaper, by falling peak, of all that were run."""
        front: list[MeasuredPlan[D]] = []
        for candidate in sorted(self._run_so_far, key=lambda candidate: (candidate.peak_bytes, candidate.cost_ms)):
            if not front or candidate.cost_ms < front[-1].cost_ms or candidate in (best, self.unmodified):
                front.append(candidate)
        return front[::-1]

    @property
    def _run_so_far(self) -> list[MeasuredPlan[D]]:
        by_draft = {
            candidate.draft: candidate
            for candidate in (self.unmodified, *self._measured.values())
            if candidate is not None
        }
        return list(by_draft.values())

    def _may_run(self, limit: TimeLimit) -> bool:
        """One plan is run in any case, even if looking at the step took longer than expected."""
        return limit.allows(_RUNS_OF_A_PLAN) or len(self._run_so_far) == 1

    def _measured_once(self, draft: D) -> MeasuredPlan[D] | None:
        if draft not in self._measured:
            self._measured[draft] = self._measure(draft)
        return self._measured[draft]

    def _within(
        self, budget_bytes: int, aim_bytes: int, limit: TimeLimit, search: Callable[[int, float], D | None]
    ) -> MeasuredPlan[D] | None:
        """The candidate that ``search(aim_bytes, deadline)`` finds, once its measured peak is within the budget.

        A peak above the budget by so much asks for a forecast that is lower by as much.
        """
        attempt = 0
        while attempt < _ATTEMPTS:
            self._doing("the search for a plan", limit)
            deadline = limit.search_until(attempt)
            draft = search(aim_bytes, deadline)
            if draft is None or not (draft in self._measured or self._may_run(limit)):
                self._cut_short |= draft is not None or time.monotonic() >= deadline
                return None
            self._doing("the run that proves a plan", limit)
            candidate = self._measured_once(draft)
            if candidate is None:  # refused, and what it did is not looked for again
                continue
            attempt += 1
            if candidate.peak_bytes <= budget_bytes:
                return candidate
            aim_bytes = min(aim_bytes, candidate.forecast_bytes) - (candidate.peak_bytes - budget_bytes)
        return None

    def _race(self, candidates: Iterable[MeasuredPlan[D]], limit: TimeLimit) -> None:
        """Unmodified step and candidates in turns. As many rounds as fit, one at least."""
        self._doing("timing steps in turns", limit)
        racing = {candidate.draft: candidate.forwards for candidate in (self.unmodified, *candidates)}
        conditions = [partial(self._ready, forwards) for forwards in racing.values()]
        ends = min(limit.timing_until(), time.monotonic() + self.timing_s)
        rounds = self.rounds if len(racing) > 1 else _ROUNDS_ALONE
        times = in_turns(lambda: step_ms(self.step), *conditions, rounds=rounds, ends=ends)
        self._times |= dict(zip(racing, times, strict=True))

    def _forwards_of(self, plan: Plan) -> tuple[ReplacedForward, ...]:
        """What the plan puts on the module, taken away again."""
        plan.apply(self.step.module)
        forwards = tuple(forwards_of(self.step.module))
        plan.remove()
        return forwards

    @contextmanager
    def _ready(self, forwards: Sequence[ReplacedForward]) -> Iterator[None]:
        with self._same_start(), self._under(forwards):
            yield

    def _doing(self, what: str, limit: TimeLimit) -> None:
        """Tell whoever waits."""
        self._report.entered(what, limit.patience_s)

    def _same_start(self) -> AbstractContextManager[None]:
        return same_start(self.step.module, self._seed, self._moved)

    @contextmanager
    def _under(self, forwards: Sequence[ReplacedForward]) -> Iterator[None]:
        """They stand on the step's module."""
        for forward in forwards:
            forward.put()
        try:
            yield
        finally:
            for forward in forwards:
                forward.take_away()

    def _plan(self, **entries: Any) -> Plan:
        return Plan(module_class=type(self.step.module).__name__, architecture=self._architecture, **entries)

    def _point(self, candidate: MeasuredPlan[D]) -> Point:
        return Point(
            peak_bytes=candidate.peak_bytes,
            recompute_ms=candidate.cost_ms,
            changes=len(candidate.plan.chunks or candidate.plan.policies),
            parts=sum(chunk.parts - 1 for chunk in candidate.plan.chunks),
            step_ms=times.step_ms if (times := self._times.get(candidate.draft)) is not None else None,
            measured=True,
        )
