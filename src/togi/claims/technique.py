"""Measures what a technique claims: alone, next to the same recipe without it.

On a small model that is made for it, or on the user's subject. Both are verified and take turns; ``decide`` says what
is faster and what is faithful. Whether it pays next to all others is for ``togi tune`` to find out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from togi.claims.claim import ClaimVerdict, Measured, MeasuredClaim
from togi.claims.experiments import DEFAULT, EXPERIMENTS, Experiment
from togi.core.quantities import bounds, relative, significant, size, times
from togi.core.records import ErrorReport, Facts, Footprint, Machine, Outcome, Recipe, TensorFacts, Timing
from togi.decide.faithful import accept
from togi.decide.faster import BETWEEN_PROCESSES, Speed
from togi.machine.describe import machine
from togi.measure import race
from togi.techniques import all_techniques, recipe
from togi.techniques.base import Options, Refuses, Remedy, Technique
from togi.worker.deadline import Deadline, whole_s
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, OnPhase, RunningTrial, TrialEnded

LONGEST_S = 50.0
"""From the loaded subject to the last turn, so that a proof takes less than a minute."""
_BUDGET_S = 10.0
"""For the turns; they end as soon as it is clear which is faster."""
_ROUNDS = 10
"""From 8 rounds on an interval has ends; a slow subject takes longer for them."""


_ANY_MODEL = Facts(
    machine=Machine(cpu_model="", cpu_cores=1, memory_bytes=0, threads=1, os="", python=""),
    module_class="Module",
    functions=dict.fromkeys(
        "conv2d conv3d batch_norm linear add mul matmul softmax select interpolate cat "
        "scaled_dot_product_attention gru".split(),
        1,
    ),
    parameters=10**9,
    parameter_dtypes=("float32",),
    inputs=(TensorFacts(name="x", dtype="float32", shape=(4,)),),
    outputs=(TensorFacts(name="output", dtype="float32", shape=(4,)),),
)
"""A model that holds whatever a technique may ask for: one that refuses it refuses the machine."""
_WORDS = {Speed.FASTER: "Faster", Speed.SAME: "No difference that matters", Speed.SLOWER: "Slower"}


def limits(seconds: float) -> Limits:
    """The limits of a process that may take so long."""
    return Limits(timeout_s=max(1.0, seconds))


def prove_technique(technique: Technique, *, on: str = "", device: str, seed: int, on_phase: OnPhase) -> MeasuredClaim:
    """Measure what the technique claims.

    Args:
        on: locator of the user's subject; empty: a small model that is made for the technique.
        device: ``cpu`` or ``cuda``; one on which it cannot work is replaced.

    Raises SubjectError where the subject cannot be loaded.
    """
    experiment, device = experiment_of(technique, on, device)
    if untestable := _missing_here(technique, experiment, device):
        return untestable

    def beside(pool: WorkerPool, left_s: Callable[[], float]) -> MeasuredClaim:
        return _prove_beside(pool, technique, experiment, left_s, on_phase)

    return run_experiment(technique, experiment, beside, device=device, seed=seed)


def experiment_of(remedy: Remedy, on: str, device: str) -> tuple[Experiment, str]:
    """How its claim is tested, and on which device. ``on``, ``device``: as ``prove_technique`` takes them."""
    experiment = EXPERIMENTS.get(remedy.id, DEFAULT)
    device = device if device.partition(":")[0] in remedy.devices else min(remedy.devices)
    return experiment.on(on) if on else experiment.at(device), device


def run_experiment(
    remedy: Remedy,
    experiment: Experiment,
    measure: Callable[[WorkerPool, Callable[[], float]], MeasuredClaim],
    *,
    device: str,
    seed: int,
) -> MeasuredClaim:
    """Measure a claim in processes of its own, in less than a minute once the subject is loaded.

    ``measure`` is given these, and a function that says how many seconds are left.
    """
    subject = SubjectRef.here("locator", experiment.locator)
    deadline = Deadline(time.monotonic() + whole_s(LONGEST_S))
    with WorkerPool(subject, machine(device), device=device, seed=seed, deadline=deadline) as pool:
        until = time.monotonic() + LONGEST_S
        try:
            return measure(pool, lambda: until - time.monotonic())
        except TrialEnded as ended:
            return _ended(remedy, experiment, ended)


def _prove_beside(
    pool: WorkerPool, technique: Technique, experiment: Experiment, left_s: Callable[[], float], on_phase: OnPhase
) -> MeasuredClaim:
    """One process with the technique next to one without it."""
    survey, _ = pool.survey(limits(left_s()), on_phase)
    facts = pool.capture(survey, limits(left_s()), on_phase).facts
    if refusal := _refusal(technique, facts):
        return untested(technique, experiment, refusal.reason)
    facts = pool.make_truth(facts, limits(left_s()), on_phase)
    without, with_ = _recipes(technique, experiment, facts)
    with pool.start(without, facts, limits(left_s()), on_phase) as reference:
        reference.warm()
        with pool.start(with_, facts, limits(left_s()), on_phase) as running:
            running.warm()
            on_phase("measure")
            return _measure(technique, experiment, reference, running, left_s(), pool.config.seed)


def _needed(technique: Technique) -> list[Technique]:
    """Techniques that provide what it needs, e.g. its engine."""
    techniques = all_techniques().values()
    return [next(provider for provider in techniques if need in provider.provides) for need in sorted(technique.needs)]


def _refusal(technique: Technique, facts: Facts) -> Refuses | None:
    """The reason why it, or what it needs, must not be tried on such a subject."""
    decisions = (tried.applies(facts) for tried in (technique, *_needed(technique)))
    return next((decision for decision in decisions if isinstance(decision, Refuses)), None)


def _missing_here(technique: Technique, experiment: Experiment, device: str) -> MeasuredClaim | None:
    """The proof where this machine lacks something, whatever the model: no process needs to be started then."""
    here, kind = machine(device), device.partition(":")[0]
    if not technique.infers:
        reason = "its claim is about a training step, next to which 'togi tune --train' measures and proves it"
        return untested(technique, experiment, reason, f"togi tune SUBJECT --train --only {technique.id}")
    if kind == "cuda" and here.gpu is None:
        return untested(technique, experiment, "it needs a CUDA device, and none was found here")
    if refusal := _refusal(technique, _ANY_MODEL.model_copy(update={"machine": here, "device": kind})):
        return untested(technique, experiment, refusal.reason)
    for package in (package for one in (technique, *_needed(technique)) for package in one.packages):
        if problem := package.missing():
            return untested(technique, experiment, problem, package.fix)
    return None


def _ended(remedy: Remedy, experiment: Experiment, ended: TrialEnded) -> MeasuredClaim:
    """The survey, the truth, or one of the two recipes did not come to its end."""
    reason, fix = f"{ended.trial.name}: {str(ended).rstrip('.')}", ended.ending.fix
    if ended.ending.outcome is Outcome.TIMED_OUT:
        only = f" --only {remedy.id}" if isinstance(remedy, Technique) else ""
        reason = f"It takes more than a minute, which is all that a proof may take. {reason}"
        fix = fix or f"togi tune {experiment.locator}{only}"
    return untested(remedy, experiment, reason, fix)


def _recipes(technique: Technique, experiment: Experiment, facts: Facts) -> tuple[Recipe, Recipe]:
    """The same recipe without and with the technique."""
    base = {needed.id: dict(next(iter(needed.options(facts)))) for needed in _needed(technique)}
    options = experiment.options or dict(next(iter(technique.options(facts)), {}))
    if technique.id == "no_grad":
        return Recipe(), recipe(no_grad={})
    grad_mode: dict[str, Options] = {} if "grad_mode" in technique.provides else {"no_grad": {}}
    return recipe(**base, no_grad={}), recipe(**base, **grad_mode, **{technique.id: options})


def _measure(
    technique: Technique,
    experiment: Experiment,
    reference: RunningTrial,
    running: RunningTrial,
    left_s: float,
    seed: int,
) -> MeasuredClaim:
    enough_s = max(_BUDGET_S, _ROUNDS * (reference.turn_s + running.turn_s))
    result = race([running], reference, budget_s=min(enough_s, left_s), seed=seed)
    timing = result.timing(running.name)
    if timing is None or running.error is None:
        return untested(technique, experiment, result.sentence)
    footprints = (reference.footprint(), running.footprint()) if experiment.memory else None
    return proof_of(technique, experiment, (reference.recipe, running.recipe), running.error, timing, footprints)


def proof_of(
    remedy: Remedy,
    experiment: Experiment,
    recipes: tuple[Recipe, Recipe],
    error: ErrorReport,
    timing: Timing,
    footprints: tuple[Footprint, Footprint] | None = None,
) -> MeasuredClaim:
    """``recipes`` and ``footprints``: without the technique, then with it."""
    verdict, sentence = judge(remedy, experiment, error, timing, footprints)
    was, now = footprints or (None, None)
    rows = (
        Measured(name=recipes[0].label, peak_bytes=was.peak_bytes if was else None, median_ms=timing.reference_ms),
        Measured(
            name=recipes[1].label,
            peak_bytes=now.peak_bytes if now else None,
            median_ms=timing.latency_ms.median,
            speedup_x=timing.speedup_x,
            note="; ".join(timing.noise.warnings),
        ),
    )
    return MeasuredClaim(
        claim=remedy.id,
        verdict=verdict,
        sentence=sentence,
        setting=experiment.setting,
        right=_accepted(remedy, error)[0] is not Outcome.WRONG,
        rows=rows,
    )


def _accepted(remedy: Remedy, error: ErrorReport) -> tuple[Outcome, str]:
    return accept(error, exact=remedy.exact, max_error=None if remedy.exact else float("inf"))


def judge(
    remedy: Remedy,
    experiment: Experiment,
    error: ErrorReport,
    timing: Timing,
    footprints: tuple[Footprint, Footprint] | None = None,
) -> tuple[ClaimVerdict, str]:
    """The verdict on the claim, and its figures in a sentence.

    Args:
        footprints: without and with the technique, where its claim is about memory.
    """
    outcome, wrong = _accepted(remedy, error)
    if outcome is Outcome.WRONG:
        return ClaimVerdict.REFUTED, f"Its output is wrong on {experiment.about}: {wrong}."
    speed, speedup = BETWEEN_PROCESSES.speed(timing.speedup_x), timing.speedup_x
    figures = f"{times(speedup.median)} the speed of the same without it ({bounds(speedup)}) on {experiment.about}"
    right = (
        "as right as plain eager"
        if error.faithful
        else (f"approximate: relative error {relative(error.rmse)}, {significant(error.units, 2)} times eager's own")
    )
    if speed is Speed.UNCLEAR:
        verdict = ClaimVerdict.UNTESTED
        said = f"The figures do not decide on this machine now: about {figures}. Repeat it when the machine is quiet."
    else:
        verdict = ClaimVerdict.HOLDS if speed is experiment.expects else ClaimVerdict.REFUTED
        said = f"{_WORDS[speed]}: {figures}, {right}."
    if footprints is None:
        return verdict, said
    was, now = footprints[0].peak_bytes, footprints[1].peak_bytes
    if (now < was) != (verdict is ClaimVerdict.HOLDS):
        verdict = ClaimVerdict.HOLDS_IN_PART
    return verdict, f"A call's peak goes from {size(was)} to {size(now)}. {said}"


def untested(remedy: Remedy, experiment: Experiment, reason: str, fix: str = "") -> MeasuredClaim:
    return MeasuredClaim(
        claim=remedy.id,
        verdict=ClaimVerdict.UNTESTED,
        sentence=f"{reason}.",
        setting=experiment.setting,
        fix=fix,
    )
