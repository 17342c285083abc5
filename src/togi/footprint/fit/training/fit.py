"""Plans a training step within a budget; where nothing else fits, in micro-batches too. Or without a budget and without
a proof, for whoever proves and measures it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import nn

from togi.core.errors import FitError
from togi.core.quantities import seconds
from togi.core.report import PhasesOnly, Report
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.result import FitResult, StepProof
from togi.footprint.fit.time_limit import NoTimeToPlan, TimeLimit
from togi.footprint.fit.training.micro_batch_proof import MicroBatchProof, judge
from togi.footprint.fit.training.micro_batches import accumulated
from togi.footprint.fit.training.planner import TrainingPlanner
from togi.footprint.step import Step
from togi.subject.behaviour import cuda_devices
from togi.subject.inputs import Inputs
from togi.subject.micro_batches import rows_of
from togi.subject.training import Snapshot, TrainingStep, mean_of_outputs

_RUNS_OF_PARTS = 12
"""That a division into micro-batches takes until it is planned: some in float64 to prove it, and those of a plan."""


def fit_training(
    step: Step,
    budget_bytes: int,
    *,
    allow_approximate: bool = False,
    device: str = "cpu",
    seed: int = 0,
    time_limit_s: float | None = None,
    report: Report | None = None,
) -> FitResult:
    """Plan ``step`` under ``budget_bytes``, which count all: parameters, gradients, optimizer state, activations.

    Micro-batches come last, and only where approximations are allowed: sums in another order round otherwise.

    Args:
        time_limit_s: from now on; None takes a minute, and more where a step takes long.
        report: hears of each phase, and of a plan as soon as it is proven.

    Raises:
        FitError: gradients differ between two equal runs, a plan that should be exact is not, or the limit is too short
            for any plan.
    """
    limit, report = TimeLimit(time_limit_s), report or Report()
    planner = TrainingPlanner(
        step,
        allow_approximate=allow_approximate,
        device=device,
        seed=seed,
        limit=limit,
        report=report,
        enough_bytes=budget_bytes,
    )
    whole = planner.plan(budget_bytes)
    if whole.fits or not allow_approximate:
        return whole
    report.found(whole)
    for parts in _parts(step):
        if not limit.allows(_RUNS_OF_PARTS):
            return _with_note(whole, _not_tried(parts, limit))
        report.entered(f"the proof that {parts} micro-batches do the same", limit.patience_s)
        proof = judge(step, parts)
        if proof.reason:
            return _with_note(whole, f"Not in micro-batches: {proof.reason}.")
        try:
            planner = TrainingPlanner(
                accumulated(step, parts),
                allow_approximate=True,
                device=device,
                seed=seed,
                limit=limit,
                report=PhasesOnly(report),
            )
        except NoTimeToPlan:
            return _with_note(whole, _not_tried(parts, limit))
        divided = planner.plan(budget_bytes)
        if divided.fits:
            return _in_parts(divided, whole, proof, parts)
    return whole


def plan_to_keep(training: TrainingStep, keep: float, *, seed: int = 0) -> Plan:
    """A plan for a training step, in the state in which it is and is again afterwards, by forecasts alone: exact, and
    neither proven nor measured. It is for modules of another dtype, too, and so for no architecture.

    Args:
        training: of whose samples the largest is planned.
        keep: 0 to 1, the share of what the step takes beyond what it holds in any case.

    Raises:
        FitError: no plan takes less than the step as it is, or two runs of the step differ.
    """
    largest = max(training.samples, key=lambda sample: sum(tensor.nbytes for tensor in sample.tensors()))
    with training.undisturbed():
        before = Snapshot.of(training)
        training.module.zero_grad()
        try:
            step = Step.of(dataclasses.replace(training, samples=(largest,)))
            plan = TrainingPlanner(step, seed=seed).forecast(keep)
        finally:
            before.restore(training)
    return plan.model_copy(update={"architecture": {}})


def load_planner() -> None:
    """Load what planning needs and then stays in the process (fake tensors, the profiler), by a plan of next to
    nothing."""
    with torch.random.fork_rng(cuda_devices()), suppress(FitError):
        module = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        plan_to_keep(TrainingStep(module=module, samples=(Inputs((torch.ones(64, 64),)),), loss=mean_of_outputs), 0.0)


def _not_tried(parts: int, limit: TimeLimit) -> str:
    return f"{parts} and more micro-batches were not tried: the time limit was {seconds(limit.seconds)}."


def _parts(step: Step) -> Iterator[int]:
    """2, 4, 8, ... and at last a row each."""
    try:
        rows = rows_of(step.sample)
    except FitError:
        return
    parts = 2
    while parts < rows:
        yield parts
        parts *= 2
    if rows > 1:
        yield rows


def _in_parts(divided: FitResult, whole: FitResult, proof: MicroBatchProof, parts: int) -> FitResult:
    """The plan of a step in parts next to the unmodified step of the whole batch."""
    draws = " (random draws are others in every part)" if proof.approximate else ""
    rounding = f"{parts} micro-batches: the sums of their gradients round otherwise{draws}"
    if proof.uneven:
        divided = _with_note(divided, f"The micro-batches are those of a mean over rows; this loss is {proof.uneven}.")
    return divided.model_copy(
        update={
            "plan": divided.plan.model_copy(update={"micro_batches": parts, "exact": False}),
            "plain": whole.plain,
            "plans_tried": whole.plans_tried + divided.plans_tried,
            "planning_s": whole.planning_s + divided.planning_s,
            "proof": StepProof(
                exact=False,
                gradients=divided.proof.gradients,
                differences=(rounding, *divided.proof.differences),
                worst_relative=max(proof.relative_difference or 0.0, divided.proof.worst_relative),
            ),
        }
    )


def _with_note(result: FitResult, note: str) -> FitResult:
    return result.model_copy(update={"notes": (*result.notes, note)})
