"""From a training step to plans under budgets: searched by forecasts, then measured and proven."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from togi.core.quantities import first_line, size
from togi.footprint.fit.choose import Search
from togi.footprint.fit.compressed import ms_per_byte
from togi.footprint.fit.errors import FitError
from togi.footprint.fit.fake import on_fake_tensors
from togi.footprint.fit.measured import measured_peak_bytes, static_bytes, step_ms
from togi.footprint.fit.observe import Observed, observe
from togi.footprint.fit.optimizer_advice import advise
from togi.footprint.fit.plan import Action, Plan, Treatment
from togi.footprint.fit.proof import Outcome, compare, outcome_of, same_beginning
from togi.footprint.fit.record import FitResult, Point, Proof
from togi.footprint.fit.timeline import Choice, Timeline
from togi.footprint.fit.workspaces import Costs, costs_of
from togi.footprint.step import Step

_ATTEMPTS = 4
_SEARCH_SHARE = 0.25
_FRONT = 12
_TURNS = 3


@dataclass(frozen=True)
class _Run:
    outcome: Outcome
    peak_bytes: int


class Planner:
    """Plans of one step under any number of budgets: it is run and watched once.

    The step's module is left untreated, and its parameters as they were: the optimizer's learning rate is set to zero.

    Raises:
        FitError: the step cannot be repeated, or gradients differ between two equal runs.
    """

    def __init__(self, step: Step, *, allow_approximate: bool = False, device: str = "cpu", seed: int = 0) -> None:
        started = time.monotonic()
        self.step, self._device, self._seed = step, device, seed
        _hold_still(step)
        if step.optimizer is not None:
            with same_beginning(step.module, seed):
                step.run()  # makes its state, which counts
        self._reference = self._run()
        costs = self._watched(allow_approximate)
        observed, self._note = _observed(step, costs.milliseconds, seed)
        workspaces = costs.workspaces if costs.operations == observed.end else {}
        kinds = {torch.bool: Action.BITS, torch.float32: Action.NARROW}
        allowed = [torch.bool, torch.float32] if allow_approximate else [torch.bool]
        self._kinds = {dtype: kinds[dtype] for dtype in allowed}
        self.timeline = Timeline(
            observed, workspaces, packing_ms_per_byte={one: ms_per_byte(one, device) for one in allowed}
        )
        self._search = Search(self.timeline)
        plain = self._search.forecast(Choice()).peak_bytes
        self._unseen_bytes = max(0, self._reference.peak_bytes - plain)
        """By how much the allocator's peak is above the forecast's."""
        self._prepared_s = time.monotonic() - started

    def plan(self, budget_bytes: int, *, time_limit_s: float = 60.0, timed: bool = True) -> FitResult:
        """The cheapest plan whose measured peak is within the budget, else the lowest that was found.

        ``timed``: also run plain and planned steps in turns.
        """
        began = time.monotonic()
        choice, plan, run = self._measured(budget_bytes, time_limit_s)
        proof = self._proven(plan, run)
        plain_ms, step_ms = None, None
        if timed:
            plain_ms, step_ms = self._in_turns(plan, began - self._prepared_s + time_limit_s)
        return FitResult(
            device=self._device,
            budget_bytes=budget_bytes,
            fits=run.peak_bytes <= budget_bytes,
            plan=plan.model_copy(update={"peak_bytes": run.peak_bytes, "step_ms": step_ms, "exact": proof.exact}),
            plain=Point(peak_bytes=self._reference.peak_bytes, recompute_ms=0.0, treatments=0, step_ms=plain_ms),
            chosen=Point(
                peak_bytes=run.peak_bytes,
                recompute_ms=self._search.seen[choice][1],
                treatments=len(plan.treatments),
                step_ms=step_ms,
                measured=True,
            ),
            front=self._front(choice),
            proof=proof,
            static_bytes=static_bytes(self.step),
            plans_tried=len(self._search.seen),
            planning_s=self._prepared_s + time.monotonic() - began,
            notes=tuple(self._notes(budget_bytes, run.peak_bytes)),
        )

    def _run(self) -> _Run:
        """Forward, backward and the optimizer from the same beginning, with its peak."""
        found: list[Outcome] = []
        with same_beginning(self.step.module, self._seed):
            peak = measured_peak_bytes(self.step, lambda: found.append(outcome_of(self.step)), self._device)
        return _Run(found[0], peak)

    def _watched(self, allow_random: bool) -> Costs:
        """The unmodified step again. It must do the same, or no plan could be proven."""
        found: list[Outcome] = []
        try:
            with same_beginning(self.step.module, self._seed):
                costs = costs_of(self.step, lambda: found.append(outcome_of(self.step)), self._device)
        except RuntimeError as error:  # foreign code: it ran once
            raise FitError(self._why_not_again(error)) from error
        again = compare(self._reference.outcome, found[0])
        if not again.exact and not allow_random:
            raise FitError(
                "two runs of the unmodified step with the same seed, weights and inputs differ, so no plan can be "
                f"proven right: {'; '.join(again.differences[:3])}. Find what draws outside torch's generator (random, "
                "numpy) or is not deterministic (torch.use_deterministic_algorithms names it), or allow approximate."
            )
        return costs

    def _why_not_again(self, error: RuntimeError) -> str:
        first = first_line(error)
        try:
            with same_beginning(self.step.module, self._seed):
                outcome_of(self.step)
        except RuntimeError:
            return (
                f"the step ran, and failed the second time with the same inputs ({first}). It keeps something from the "
                "run before, such as a hidden state with its graph: detach it, or reset it in the step."
            )
        return (
            f"the step forbids hooks for saved tensors ({first}), which is what a plan is made of. "
            "disable_saved_tensors_hooks() saves no memory itself: take it away."
        )

    def _measured(self, budget_bytes: int, time_limit_s: float) -> tuple[Choice, Plan, _Run]:
        """Search and measure; where the measured peak is above the budget, again with a lower aim."""
        if self._reference.peak_bytes <= budget_bytes:
            return Choice(), self._plan(Choice(), budget_bytes), self._reference
        aim = budget_bytes - self._unseen_bytes
        for attempt in range(_ATTEMPTS):
            # a step that took long leaves the search its share all the same: a poor plan costs more than it
            share = _SEARCH_SHARE / (1 + attempt)
            self._search.deadline = time.monotonic() + time_limit_s * share
            found = self._search.cheapest(aim)
            choice = self._search.least if found is None else found
            plan = self._plan(choice, budget_bytes)
            with self._under(plan):
                run = self._run()
            if found is None or run.peak_bytes <= budget_bytes:
                break
            aim -= run.peak_bytes - budget_bytes
        return choice, plan, run

    @contextmanager
    def _under(self, plan: Plan) -> Iterator[None]:
        """``plan`` on the step's module; what fails under it is explained."""
        plan.apply(self.step.module)
        try:
            yield
        except RuntimeError as error:
            raise FitError(
                f"the step runs, and fails under a plan ({first_line(error)}). Something that was computed "
                "again did not come out as the first time: a result was written into behind torch's back."
            ) from error
        finally:
            plan.remove()

    def _plan(self, choice: Choice, budget_bytes: int) -> Plan:
        return Plan(
            module_class=type(self.step.module).__name__,
            budget_bytes=budget_bytes,
            treatments=tuple(self._treatments(choice)),
        )

    def _treatments(self, choice: Choice) -> Iterator[Treatment]:
        named: set[str] = set()
        for result in self.timeline.results:
            action = None
            if result.key in choice.dropped:
                action = Action.RECOMPUTE
            elif result.key in choice.kept:
                action = Action.KEEP
            elif result.key in choice.packed:
                action = self._kinds.get(result.dtype)
            if action is not None and result.key not in named:
                named.add(result.key)
                again = self.timeline.maker[result].ms if action is Action.RECOMPUTE else 0.0
                yield Treatment(
                    value=result.key, module=result.module, action=action, bytes=result.bytes, recompute_ms=again
                )

    def _proven(self, plan: Plan, run: _Run) -> Proof:
        proof = compare(self._reference.outcome, run.outcome)
        if not proof.exact and all(one.action is not Action.NARROW for one in plan.treatments):
            raise FitError(
                "the plan was refused, because its step is not the unmodified one to the bit: "
                f"{'; '.join(proof.differences[:3])}. Something writes into tensors without torch's knowledge (NumPy, "
                "a kernel that is called directly), or keeps state that the plan does not see."
            )
        return proof

    def _in_turns(self, plan: Plan, deadline: float) -> tuple[float, float]:
        """(plain, planned) milliseconds: the best of as many turns as fit, at least one."""
        plain, planned = [], []
        with same_beginning(self.step.module, self._seed):
            for _ in range(_TURNS):
                began = time.monotonic()
                plain.append(step_ms(self.step))
                with self._under(plan):
                    planned.append(step_ms(self.step))
                if 2 * time.monotonic() - began > deadline:
                    break
        return min(plain), min(planned)

    def _front(self, chosen: Choice) -> tuple[Point, ...]:
        points = [
            Point(peak_bytes=peak + self._unseen_bytes, recompute_ms=ms, treatments=len(one.dropped | one.packed))
            for peak, ms, one in self._search.front
        ]
        thin = max(1, -(-len(points) // _FRONT))
        own = self._search.seen[chosen]
        return tuple(
            point
            for at, point in enumerate(points)
            if at % thin == 0 or at == len(points) - 1 or self._search.front[at][:2] == own
        )

    def _notes(self, budget_bytes: int, peak: int) -> Iterable[str]:
        yield from self.step.notes
        if self._note:
            yield self._note
        if peak > budget_bytes:
            yield _floor(self.timeline)
            yield from advise(self.step)


def _observed(step: Step, milliseconds: dict[str, float], seed: int) -> tuple[Observed, str]:
    """On fake tensors if the step does the same on them, else on the real ones."""
    try:
        with on_fake_tensors(step) as fake:
            found = observe(fake, milliseconds)
        if list(dict.fromkeys(call.name for call in found.calls)) == list(milliseconds):
            return found, ""
        note = "The step runs other operations on fake tensors than on real ones; it was watched on real ones."
    except Exception as error:  # foreign code: a model may read values, or not be copied
        first = first_line(error)
        note = f"The step does not run on fake tensors ({type(error).__name__}: {first}); it was watched on real ones."
    with same_beginning(step.module, seed):
        return observe(step, milliseconds), note


def _floor(timeline: Timeline) -> str:
    """What the program itself holds at its worst moment."""
    ground = timeline.ground_bytes
    at = int(ground.argmax())
    alive = sorted((p for p in timeline.observed.pieces if p.alive_at(at // 2) and p.op), key=lambda p: -p.bytes)
    largest = ", ".join(f"{size(p.bytes)} of {p.op} for {p.where.module or 'the step'}" for p in alive[:4])
    return (
        f"With nothing kept for the backward pass the program itself holds {size(int(ground[at]))} at once, and no "
        f"plan lowers that; beside parameters and inputs the largest then are {largest}."
    )


def _hold_still(step: Step) -> None:
    """Every run must begin with equal parameters, the optimizer's work included."""
    for group in step.optimizer.param_groups if step.optimizer is not None else ():
        group["lr"] = 0.0
