"""From a training step and a budget to a plan that was searched, measured and proven."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from togi.budget.fit.errors import FitError
from togi.budget.fit.knapsack import Draft
from togi.budget.fit.plan import Action, Plan, Treatment
from togi.budget.fit.proof import Outcome, close_outcome, compare, equal, outcome_of, same_beginning
from togi.budget.fit.record import FitResult, Point, Proof
from togi.budget.fit.regions import Regions
from togi.budget.fit.search import Search
from togi.budget.fit.simulate import simulate
from togi.budget.fit.trace import Trace, wait_for_device
from togi.budget.step import Step
from togi.measure.memory import torch_allocator_peak_bytes

_MARGIN = 0.998
"""Plans are searched a little below the budget: a kernel's own workspace is not in the simulation."""
_ATTEMPTS = 3
_SEARCH_SHARE = 0.5
_FRONT = 12
_UNTREATED = Draft((), ())


def fit_step(
    step: Step,
    budget_bytes: int,
    *,
    allow_approximate: bool = False,
    device: str = "cpu",
    seed: int = 0,
    time_limit_s: float = 60.0,
) -> FitResult:
    """Plan ``step`` under ``budget_bytes``, which count all: parameters, gradients, optimizer state, activations.

    The step's module is left untreated, and its parameters as they were: the optimizer's learning rate is set to zero.

    Raises:
        FitError: gradients differ between two equal runs, or a plan that should be exact is not.
    """
    planner = Planner(step, allow_approximate=allow_approximate, device=device, seed=seed)
    return planner.plan(budget_bytes, time_limit_s=time_limit_s)


class Planner:
    """Plans of one step under any number of budgets: it is run and watched once."""

    def __init__(self, step: Step, *, allow_approximate: bool = False, device: str = "cpu", seed: int = 0) -> None:
        started = time.monotonic()
        self.step, self._device, self._seed = step, device, seed
        _hold_still(step)
        if step.optimizer is not None:
            with same_beginning(step.module, seed):
                step.run()  # makes its state, which counts
        self.regions, self._reference = _traced(step, seed, allow_approximate)
        self._simulation = simulate(step)
        self._search = Search(
            self._simulation.peak_bytes,
            self.regions.partitions(),
            deadline=0.0,
            cast_ms_per_byte=_cast_ms_per_byte(device) if allow_approximate else None,
        )
        self._plain_peak = self._simulation.peak_bytes(())
        self._search.peaks[_UNTREATED] = self._plain_peak
        self._prepared_s = time.monotonic() - started

    def plan(self, budget_bytes: int, *, time_limit_s: float = 60.0, timed: bool = True) -> FitResult:
        """The cheapest plan whose measured peak is within the budget, else the lowest that was found.

        ``timed``: also run plain and planned steps in turns.
        """
        started = time.monotonic() - self._prepared_s
        # a step that took long leaves the search its minimum all the same: a poor plan costs more than it
        least_s = time_limit_s * _SEARCH_SHARE / 2
        self._search.deadline = max(started + time_limit_s * _SEARCH_SHARE, time.monotonic() + least_s)
        draft, plan, proof, peak = self._measured(budget_bytes)
        plain_ms, step_ms = None, None
        if timed:
            with same_beginning(self.step.module, self._seed):
                plain_ms, step_ms = _in_turns(self.step, plan.treatments, started + time_limit_s)
        treated = len(plan.treatments)
        return FitResult(
            device=self._device,
            budget_bytes=budget_bytes,
            fits=peak <= budget_bytes,
            plan=plan.model_copy(update={"peak_bytes": peak, "step_ms": step_ms, "exact": proof.exact}),
            plain=Point(peak_bytes=self._plain_peak, recompute_ms=0.0, treatments=0, step_ms=plain_ms),
            chosen=Point(peak_bytes=peak, recompute_ms=draft.ms, treatments=treated, step_ms=step_ms, measured=True),
            front=_front(self._search),
            proof=proof,
            static_bytes=static_bytes(self.step),
            plans_tried=len(self._search.peaks),
            planning_s=time.monotonic() - started,
            notes=tuple(_notes(self.step, self.regions, self._simulation.note)),
        )

    def _measured(self, budget_bytes: int) -> tuple[Draft, Plan, Proof, int]:
        """Search, prove, measure; where the measured peak is above the budget, again with a lower aim."""
        aim = int(budget_bytes * _MARGIN)
        for _ in range(_ATTEMPTS):
            found = _UNTREATED if self._plain_peak <= aim else self._search.cheapest(aim)
            draft = self._search.least if found is None else found
            plan = _plan(draft, budget_bytes, self.step)
            proof = _proof(self.step, plan, self._reference, self._seed)
            with same_beginning(self.step.module, self._seed):
                peak = _with(self.step, plan.treatments, lambda: peak_bytes(self.step, self._device))
            if found is None or peak <= budget_bytes:
                break
            aim -= int((peak - budget_bytes) * 1.1) + 1
        return draft, plan, proof, peak


def _hold_still(step: Step) -> None:
    """Every run must begin with equal parameters, the optimizer's work included."""
    for group in step.optimizer.param_groups if step.optimizer is not None else ():
        group["lr"] = 0.0


def peak_bytes(step: Step, device: str = "cpu") -> int:
    """Measured by the allocator: what is there before the step, and how far the step rises above it."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step.run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    rise = torch_allocator_peak_bytes(step.run)
    if rise is None:
        raise FitError("the profiler reports no memory here, so no peak can be measured and no plan trusted")
    return _bytes(_before(step)) + rise


def static_bytes(step: Step) -> int:
    """What no plan lowers: parameters, buffers, inputs, optimizer state, and the gradients of the parameters."""
    gradients = sum(p.nbytes for p in step.module.parameters() if p.requires_grad)
    return _bytes(_before(step)) + gradients


def _before(step: Step) -> Iterable[Tensor]:
    state = list(step.optimizer.state.values()) if step.optimizer is not None else []
    inputs = (step.sample.args, dict(step.sample.kwargs))
    yield from step.module.parameters()
    yield from step.module.buffers()
    yield from (leaf for leaf in tree_leaves((inputs, state)) if isinstance(leaf, Tensor))


def _bytes(tensors: Iterable[Tensor]) -> int:
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _traced(step: Step, seed: int, allow_random: bool) -> tuple[Regions, Outcome]:
    """The unmodified step twice: plainly, and watched. Both must agree, or no plan could be proven."""
    reference = outcome_of(step, seed)
    try:
        try:
            trace, changed, again = _watched(step, reference, seed, packing=True)
        except RuntimeError:  # code that forbids hooks fails under them: less is known without, but enough
            step.module.zero_grad()
            trace, changed, again = _watched(step, reference, seed, packing=False)
    except RuntimeError as error:  # foreign code: it ran once
        raise FitError(
            f"the step ran, and failed the second time with the same inputs ({str(error).splitlines()[0]}). It keeps "
            "something from the run before, such as a hidden state with its graph: detach it, or reset it in the step."
        ) from error
    if not again.exact and not allow_random:
        raise FitError(
            "two runs of the unmodified step with the same seed, weights and inputs differ, so no plan can be proven "
            f"right: {'; '.join(again.differences[:3])}. Find what draws outside torch's generator (random, numpy) or "
            "is not deterministic (torch.use_deterministic_algorithms names it), or allow approximate."
        )
    return Regions(step.module, trace, changed), reference


def _watched(step: Step, reference: Outcome, seed: int, *, packing: bool) -> tuple[Trace, list[str], Proof]:
    """A second run: its trace, the buffers that changed, and how it compares with the first."""
    trace = Trace(step.module)
    trace.enter([*step.module.parameters(), *step.module.buffers()], "parameter")
    trace.enter([leaf for leaf in tree_leaves(step.sample.args) if isinstance(leaf, Tensor)], "input")
    with same_beginning(step.module, seed):
        before = {name: buffer.clone() for name, buffer in _buffers(step)}
        with trace.following():
            with trace.packing() if packing else nullcontext():
                loss = step.loss(step.module, step.sample)
            trace.forward_ends()
            loss.backward()  # type: ignore[no-untyped-call]
        # by value: batch norm's kernels write running statistics without counting a new version
        changed = [name for name, buffer in _buffers(step) if name not in before or not equal(before[name], buffer)]
        return trace, changed, compare(reference, close_outcome(step.module, loss))


def _buffers(step: Step) -> list[tuple[str, Tensor]]:
    return list(step.module.named_buffers(remove_duplicate=False))


def _plan(draft: Draft, budget_bytes: int, step: Step) -> Plan:
    return Plan(
        module_class=type(step.module).__name__,
        budget_bytes=budget_bytes,
        exact=all(treatment.action is Action.RECOMPUTE for treatment in draft.treatments),
        treatments=draft.treatments,
    )


def _proof(step: Step, plan: Plan, reference: Outcome, seed: int) -> Proof:
    found: Proof = _with(step, plan.treatments, lambda: compare(reference, outcome_of(step, seed)))
    if plan.exact and not found.exact:
        raise FitError(
            "the plan was refused, because its step is not the unmodified one to the bit: "
            f"{'; '.join(found.differences[:3])}. A module that keeps state outside its buffers (a cache, a counter) "
            "cannot be computed again: switch that state off for training (use_cache=False)."
        )
    return found


def _with(step: Step, treatments: Iterable[Treatment], run: Callable[[], Any]) -> Any:
    """``run`` under the plan; what a repetition cannot do is explained."""
    plan = Plan(treatments=tuple(treatments))
    plan.apply(step.module)
    try:
        return run()
    except RuntimeError as error:  # torch's CheckpointError among them
        raise FitError(
            f"the step runs, and fails under a plan ({str(error).splitlines()[0]}). A treated module does something "
            "else when it runs again: it decides by state that it changes itself, such as a cache (use_cache=False "
            "switches that of language models off) or a counter; or it forbids hooks (disable_saved_tensors_hooks)."
        ) from error
    finally:
        plan.remove()


def _in_turns(step: Step, treatments: tuple[Treatment, ...], deadline: float) -> tuple[float, float]:
    """(plain, planned) milliseconds: the best of as many turns as fit, at least one and at most three."""
    plain, planned = [], []
    for _ in range(3):
        began = time.monotonic()
        plain.append(_ms(step))
        planned.append(_with(step, treatments, lambda: _ms(step)))
        if 2 * time.monotonic() - began > deadline:
            break
    return min(plain), min(planned)


def _ms(step: Step) -> float:
    wait_for_device()
    started = time.perf_counter()
    step.run()
    wait_for_device()
    return (time.perf_counter() - started) * 1e3


def _cast_ms_per_byte(device: str) -> float:
    """Measured: float32 to bfloat16 and back, for each byte."""
    values = torch.ones(1 << 22, device=device)
    values.to(torch.bfloat16).to(torch.float32)
    started = time.perf_counter()
    values.to(torch.bfloat16).to(torch.float32)
    return (time.perf_counter() - started) * 1e3 / values.nbytes


def _front(search: Search) -> tuple[Point, ...]:
    points = [
        Point(peak_bytes=peak, recompute_ms=draft.ms, treatments=len(draft.treatments)) for peak, draft in search.front
    ]
    keep = max(1, -(-len(points) // _FRONT))
    return tuple(point for at, point in enumerate(points) if at % keep == 0 or at == len(points) - 1)


def _notes(step: Step, regions: Regions, simulation: str) -> Iterable[str]:
    yield from step.notes
    if simulation:
        yield simulation
    for name, problem in list(regions.problems.items())[:5]:
        yield f"{name or 'The whole module'} is left as it is: {problem}."
    if any(part._forward_hooks or part._forward_pre_hooks for part in step.module.modules()):
        yield "The module has forward hooks: those inside a treated part run a second time when it is recomputed."
