"""Plans of one step under byte budgets: searched, run, proven and timed in turns. What training and inference share.

A search works on forecasts, so what it finds is run: where the measured peak is above the budget, the search goes on
with a lower aim. ``training.planner`` and ``inference.planner`` say what a plan consists of and how it is proven.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from togi.core.errors import FitError
from togi.footprint.fit.measure import same_start
from togi.footprint.fit.plan import Plan, architecture_of
from togi.footprint.fit.result import FitResult, Point, StepProof
from togi.footprint.step import Step, step_ms

_ATTEMPTS = 4
"""Searches with lower and lower aims before a budget is given up."""
_SEARCH_SHARE = 0.25
"""Of the time limit, for the first search."""
_LEAST_SEARCH_S = 1.0
_FRONT_SHARE = 0.15
"""Of the time limit, for running the plans besides the chosen one."""
D = TypeVar("D")
"""What a search decides about: hashable."""


class TimeLimit:
    """A limit on how long planning may take, from the first look at the step on. What has begun is finished."""

    def __init__(self, seconds: float, spent_s: float = 0.0) -> None:
        now = time.monotonic()
        self.seconds = seconds
        self.ends = max(now - spent_s + seconds, now + seconds / 2)
        """On ``time.monotonic()``. A step that took long to look at leaves the search half the time all the same: a
        poor plan costs more than a late one."""

    @property
    def over(self) -> bool:
        return time.monotonic() > self.ends

    def search_until(self, attempt: int) -> float:
        """The deadline of a search, on ``time.monotonic()``. ``attempt``: from 0 on; later ones get less."""
        return time.monotonic() + max(_LEAST_SEARCH_S, self.seconds * _SEARCH_SHARE / (1 + attempt))


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


class Planner(ABC, Generic[D]):
    """Plans of one step under any number of budgets: it is run and watched once, when the planner is made."""

    train: ClassVar[bool]
    turns: ClassVar[int]
    """In how many turns plans are timed at most."""
    timing_s: ClassVar[float]
    """After how many seconds no further turn begins."""
    unmodified: MeasuredPlan[D]
    static_bytes: int
    floor_bytes: int
    prepared_s: float

    def __init__(self, step: Step, device: str, seed: int) -> None:
        self.step, self._device, self._seed = step, device, seed
        self._measured: dict[D, MeasuredPlan[D] | None] = {}
        self._ms: dict[D, float] = {}
        self._architecture = architecture_of(step.module)
        self._moved: tuple[str, ...] = ()
        """Parameters that the forward pass writes into."""

    def plan(self, budget_bytes: int, *, time_limit_s: float = 60.0, timed: bool = True) -> FitResult:
        """The best plan whose measured peak is within the budget, else the one with the lowest peak that was found.

        Args:
            timed: also time unmodified and planned steps in turns.
        """
        began = time.monotonic()
        limit = TimeLimit(time_limit_s, self.prepared_s)
        best = self.unmodified if self.unmodified.peak_bytes <= budget_bytes else self._best(budget_bytes, limit)
        self._run_frontier(limit)
        if best.peak_bytes > budget_bytes:
            best = self._best_of_all(best, budget_bytes)
        if timed and best.draft not in self._ms:
            self._race([best], limit)
        fits = best.peak_bytes <= budget_bytes
        return FitResult(
            device=self._device,
            train=self.train,
            budget_bytes=budget_bytes,
            fits=fits,
            plan=best.plan.model_copy(
                update={
                    "budget_bytes": budget_bytes,
                    "peak_bytes": best.peak_bytes,
                    "step_ms": self._ms.get(best.draft),
                    "exact": best.proof.exact,
                }
            ),
            plain=self._point(self.unmodified),
            chosen=self._point(best),
            front=tuple(map(self._point, self._front(best))),
            proof=best.proof,
            static_bytes=self.static_bytes,
            floor_bytes=min(self.floor_bytes, best.peak_bytes, self.unmodified.peak_bytes),  # the forecast may be high
            plans_tried=self._plans_tried(),
            planning_s=self.prepared_s + time.monotonic() - began,
            notes=(*self.step.notes, *self._notes(best, fits)),
        )

    @abstractmethod
    def _best(self, budget_bytes: int, limit: TimeLimit) -> MeasuredPlan[D]:
        """The best candidate within the budget, proven; else the lowest that was found, proven too."""

    @abstractmethod
    def _measure(self, draft: D) -> MeasuredPlan[D] | None:
        """Run it and compare it with the unmodified step; None where it is refused for what it does."""

    @abstractmethod
    def _frontier(self) -> Iterable[D]:
        """Drafts that by forecast no other beats in both peak and cost, few enough to read."""

    @abstractmethod
    def _plans_tried(self) -> int: ...

    @abstractmethod
    def _notes(self, best: MeasuredPlan[D], fits: bool) -> Iterable[str]: ...

    def _run_frontier(self, limit: TimeLimit) -> None:
        """Run them as far as time allows. A forecast is not an offer: what is shown next to the chosen plan was run."""
        ends = min(limit.ends, time.monotonic() + _FRONT_SHARE * limit.seconds)
        for draft in self._frontier():
            if time.monotonic() > ends:
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
        for attempt in range(_ATTEMPTS):
            draft = search(aim_bytes, limit.search_until(attempt))
            if draft is None:
                return None
            candidate = self._measured_once(draft)
            if candidate is None:
                continue
            if candidate.peak_bytes <= budget_bytes:
                return candidate
            aim_bytes = min(aim_bytes, candidate.forecast_bytes) - (candidate.peak_bytes - budget_bytes)
        return None

    def _race(self, candidates: Iterable[MeasuredPlan[D]], limit: TimeLimit) -> None:
        """Unmodified step and candidates in turns; the best of each counts. As many turns as fit, one at least."""
        racing = {candidate.draft: candidate.plan for candidate in (self.unmodified, *candidates)}
        began = time.monotonic()
        ends = min(limit.ends, began + self.timing_s)
        for turn in range(1, self.turns + 1):
            for draft, plan in racing.items():
                with self._same_start(), self._under(plan):
                    self._ms[draft] = min(step_ms(self.step), self._ms.get(draft, math.inf))
            now = time.monotonic()
            if now + (now - began) / turn > ends:
                return

    def _same_start(self) -> AbstractContextManager[None]:
        return same_start(self.step.module, self._seed, self._moved)

    @contextmanager
    def _under(self, plan: Plan) -> Iterator[None]:
        """``plan`` on the step's module."""
        plan.apply(self.step.module)
        try:
            yield
        finally:
            plan.remove()

    def _plan(self, **entries: Any) -> Plan:
        return Plan(module_class=type(self.step.module).__name__, architecture=self._architecture, **entries)

    def _point(self, candidate: MeasuredPlan[D]) -> Point:
        return Point(
            peak_bytes=candidate.peak_bytes,
            recompute_ms=candidate.cost_ms,
            changes=len(candidate.plan.chunks or candidate.plan.policies),
            parts=sum(chunk.parts - 1 for chunk in candidate.plan.chunks),
            step_ms=self._ms.get(candidate.draft),
            measured=True,
        )
