"""From a training step and a budget to a plan that was searched, measured and proven."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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


@dataclass
class _Traced:
    regions: Regions
    reference: Outcome
    plain_ms: float


def fit_step(
    step: Step,
    budget_bytes: int,
    *,
    allow_approximate: bool = False,
    device: str = "cpu",
    seed: int = 0,
    time_limit_s: float = 60.0,
    progress: Callable[[str], None] = lambda _: None,
) -> FitResult:
    """Plan ``step`` under ``budget_bytes``, which count all: parameters, gradients, optimizer state, activations.

    The step's module is left untreated, and its parameters as they were: the optimizer's learning rate is set to zero.

    Raises:
        FitError: gradients differ between two equal runs, or a plan that should be exact is not.
    """
    started = time.monotonic()
    _hold_still(step)
    progress("running")
    if step.optimizer is not None:
        step.run()  # makes its state, which counts
    traced = _traced(step, seed, allow_approximate)
    progress("searching")
    simulation = simulate(step)
    search = Search(
        simulation.peak_bytes,
        traced.regions.partitions(),
        started + time_limit_s * _SEARCH_SHARE,
        _cast_ms_per_byte(device) if allow_approximate else None,
    )
    search.peaks[Draft((), ())] = plain_peak = simulation.peak_bytes(())
    target = int(budget_bytes * _MARGIN)
    for _ in range(_ATTEMPTS):
        draft = search.cheapest(target) if plain_peak > target else Draft((), ())
        progress("proving")
        chosen = draft or search.least
        plan = _plan(chosen, budget_bytes, step)
        proof = _proof(step, plan, traced.reference, seed)
        with same_beginning(step.module, seed):
            peak = _with(step, plan.treatments, lambda: peak_bytes(step, device))
        if draft is None or peak <= budget_bytes:
            break
        target -= int((peak - budget_bytes) * 1.1) + 1
    with same_beginning(step.module, seed):
        plain_ms, step_ms = _in_turns(step, plan.treatments, started + time_limit_s)
    fits = peak <= budget_bytes
    return FitResult(
        device=device,
        budget_bytes=budget_bytes,
        fits=fits,
        plan=plan.model_copy(update={"peak_bytes": peak, "step_ms": step_ms, "exact": proof.exact}),
        plain=Point(peak_bytes=plain_peak, recompute_ms=0.0, treatments=0, step_ms=plain_ms),
        chosen=Point(
            peak_bytes=peak, recompute_ms=chosen.ms, treatments=len(plan.treatments), step_ms=step_ms, measured=True
        ),
        front=_front(search),
        proof=proof,
        static_bytes=static_bytes(step),
        plans_tried=len(search.peaks),
        planning_s=time.monotonic() - started,
        notes=tuple(_notes(step, traced.regions, simulation.note)),
    )


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


def _traced(step: Step, seed: int, allow_random: bool) -> _Traced:
    """The unmodified step twice: plainly, and watched. Both must agree, or no plan could be proven."""
    started = time.perf_counter()
    reference = outcome_of(step, seed)
    plain_ms = (time.perf_counter() - started) * 1e3
    module, trace = step.module, Trace(step.module)
    trace.enter([*module.parameters(), *module.buffers()], "parameter")
    trace.enter([leaf for leaf in tree_leaves(step.sample.args) if isinstance(leaf, Tensor)], "input")
    with same_beginning(module, seed):
        before = {name: buffer.clone() for name, buffer in _buffers(step)}
        with trace.following():
            with trace.packing():
                loss = step.loss(module, step.sample)
            trace.forward_ends()
            loss.backward()  # type: ignore[no-untyped-call]
        # by value: batch norm's kernels write running statistics without counting a new version
        changed = [name for name, buffer in _buffers(step) if name not in before or not equal(before[name], buffer)]
        again = compare(reference, close_outcome(module, loss))
        del loss
    if not again.exact and not allow_random:
        raise FitError(
            "two runs of the unmodified step with the same seed, weights and inputs differ, so no plan can be proven "
            f"right: {'; '.join(again.differences[:3])}. Find what draws outside torch's generator (random, numpy) or "
            "is not deterministic (torch.use_deterministic_algorithms names it), or allow approximate."
        )
    return _Traced(Regions(module, trace, changed), reference, plain_ms)


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
    except torch.utils.checkpoint.CheckpointError as error:
        raise FitError(
            f"a treated module does something else when it runs again ({str(error).splitlines()[0]}), so its results "
            "cannot be recomputed. It decides by state that it changes itself: a cache (use_cache=False switches that "
            "of language models off), a counter, Python's random."
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
