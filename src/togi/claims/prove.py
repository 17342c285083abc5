"""Proves claims: those of techniques here, by one experiment for all; any other as its own file says.

A claim is proven in processes of its own, so that what it needs is gone afterwards and nothing else is counted. A
technique runs alone against the same recipe without it, on a small model: both verified, taking turns; ``decide`` says
what is faster and what is faithful. Whether it pays for another model is for ``togi tune`` to find out.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from togi.claims.claim import Measured, Proof, Verdict, all_claims
from togi.core.errors import UnknownNameError, nearest
from togi.core.quantities import bounds, relative, significant, size, times
from togi.core.records import ErrorReport, Facts, Footprint, Machine, Outcome, Recipe, Record, TensorFacts, Timing
from togi.decide.faithful import accept
from togi.decide.faster import BETWEEN_PROCESSES, Speed
from togi.machine.describe import machine
from togi.measure import compare
from togi.techniques import all_techniques, recipe
from togi.techniques.base import Options, Refuses, Technique
from togi.worker.call import ChildCall
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, OnPhase, RunningTrial, TrialEnded


class ProofRequest(Record):
    claim: str


_MEASURE = ChildCall(function="togi.claims.prove:measure", request=ProofRequest, answer=Proof, purpose="measured")


def prove(id: str, *, device: str = "cpu", seed: int = 0, on_phase: OnPhase = lambda _: None) -> Proof:
    """Measure a claim of ``all_claims`` or what a technique claims, here; dashes and underscores are the same.

    Raises UnknownNameError, or SubjectError when its process failed.
    """
    if (claim := id.replace("_", "-")) in all_claims():
        return _MEASURE(SubjectRef.here("nothing"), ProofRequest(claim=claim), seed=seed, on_phase=on_phase)
    if (name := id.replace("-", "_")) in all_techniques():
        return prove_technique(all_techniques()[name], device=device, seed=seed, on_phase=on_phase)
    known = (*all_claims(), *all_techniques())
    raise UnknownNameError(
        f"'{id}' is neither a claim nor a technique, so there is nothing to measure{nearest(id, known) or '.'} "
        "'togi explain' lists them"
    )


def measure(_: object, request: ProofRequest) -> Proof:
    """Runs in the child."""
    return all_claims()[request.claim].prove()


_BUDGET_S, _MOST_S = 3.0, 12.0
_ROUNDS = 10
"""From 8 rounds on an interval has ends; a slow machine takes longer for them."""
_LIMITS = Limits(timeout_s=120.0)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """How the claim of a technique is tested."""

    model: str
    """A function of ``claims.formulas.models``."""
    about: str
    """That model, in words."""
    expects: Speed = Speed.FASTER
    memory: bool = False
    """The claim is about memory too: a call's peak must be lower."""
    options: Options = field(default_factory=dict)
    """Of the technique; empty: the most promising of its own."""


_CONVOLUTIONS = Experiment(model="convolutions", about="a small residual network")
_TRANSFORMER = Experiment(model="transformer", about="four transformer blocks")
_SMALL = Experiment(model="small_operations", about="sixty small layers")
EXPERIMENTS: dict[str, Experiment] = {
    "drop_no_ops": Experiment(model="copies", about="elementwise operations between copies"),
    "compute_once": Experiment(model="standardised", about="convolutions that standardise their weights"),
    "fuse_formulas": Experiment(model="handwritten", about="four transformer blocks written out by hand"),
    "fold_batch_norm": _CONVOLUTIONS,
    "merge_branches": Experiment(model="branches", about="RepVGG blocks as they are trained"),
    "pad_channels": Experiment(model="odd_channels", about="a small residual network of 61 channels"),
    "channels_last": _CONVOLUTIONS,
    "channels_last_3d": Experiment(model="volumes", about="3 x 3 x 3 convolutions"),
    "bf16": _TRANSFORMER,
    "fp16": _TRANSFORMER,
    "bf16_openvino": _TRANSFORMER,
    "int8_onnxruntime": _CONVOLUTIONS,
    "int8_openvino": _CONVOLUTIONS,
    "tf32": _TRANSFORMER,
    "aot_inductor": Experiment(
        model="transformer", about="four transformer blocks", options={"freezing": True, "max_autotune": False}
    ),
    "cuda_graph": _SMALL,
    "eager": Experiment(model="convolutions", about="a small residual network", expects=Speed.SAME),
    "onnxruntime": _CONVOLUTIONS,
    "openvino": _CONVOLUTIONS,
    "parts": _CONVOLUTIONS,
    "torch_compile": Experiment(
        model="transformer", about="four transformer blocks", options={"mode": "default", "freezing": True}
    ),
    "torch_tensorrt": _CONVOLUTIONS,
    "torchscript": _CONVOLUTIONS,
    "allocator": Experiment(model="large_activations", about="elementwise operations on 16 MiB"),
    "cudnn_benchmark": _CONVOLUTIONS,
    "flush_denormal": Experiment(model="decaying", about="a filter that decays to denormal numbers"),
    "inference_mode": _SMALL,
    "no_grad": Experiment(model="kept_activations", about="sixty small layers of 512 rows", memory=True),
    "threads": Experiment(model="small_operations", about="sixty small layers", options={"count": 1}),
}
"""Techniques of third parties, which are not in here, are tested on ``convolutions``."""


_ANY_MODEL = Facts(
    machine=Machine(cpu_model="", cpu_cores=1, memory_bytes=0, threads=1, os="", python=""),
    module_class="Module",
    functions=dict.fromkeys(("conv2d", "conv3d", "batch_norm", "linear", "add", "mul", "matmul", "softmax"), 1),
    parameter_dtypes=("float32",),
    inputs=(TensorFacts(name="x", dtype="float32", shape=(1,)),),
)
"""A model that holds whatever a technique may ask for: one that refuses it refuses the machine."""
_WORDS = {Speed.FASTER: "Faster", Speed.SAME: "No difference that matters", Speed.SLOWER: "Slower"}


def prove_technique(technique: Technique, *, device: str, seed: int, on_phase: OnPhase) -> Proof:
    """Measure what the technique claims. ``device``: ``cpu`` or ``cuda``; one on which it cannot work is replaced.

    Raises SubjectError only where the packaged model itself cannot be run.
    """
    experiment = EXPERIMENTS.get(technique.id, _CONVOLUTIONS)
    device = device if device.partition(":")[0] in technique.devices else min(technique.devices)
    if untestable := _obstacle(technique, experiment, device):
        return untestable
    subject = SubjectRef.here("locator", f"togi.claims.formulas.models:{experiment.model}")
    with WorkerPool(subject, machine(device), device=device, seed=seed) as processes:
        try:
            facts = processes.survey(_LIMITS, on_phase)[0].facts
            if isinstance(decision := technique.applies(facts), Refuses):
                return _untested(technique, experiment, decision.reason)
            facts = processes.make_truth(facts, _LIMITS, on_phase)
            without, with_ = _recipes(technique, experiment, facts)
            with processes.start(without, facts, _LIMITS, on_phase) as reference:
                reference.warm()
                with processes.start(with_, facts, _LIMITS, on_phase) as running:
                    running.warm()
                    on_phase("measure")
                    return _measure(technique, experiment, reference, running, seed)
        except TrialEnded as ended:
            return _untested(technique, experiment, f"{ended.trial.name}: {ended.ending.reason}", ended.ending.fix)


def _needed(technique: Technique) -> list[Technique]:
    """Techniques that provide what it needs, e.g. its engine."""
    others = all_techniques().values()
    return [next(other for other in others if need in other.provides) for need in sorted(technique.needs)]


def _obstacle(technique: Technique, experiment: Experiment, device: str) -> Proof | None:
    """What this machine lacks, whatever the model: then no process needs to be started."""
    here, kind = machine(device), device.partition(":")[0]
    if kind == "cuda" and here.gpu is None:
        return _untested(technique, experiment, "it needs a CUDA device, and none was found here")
    facts = _ANY_MODEL.model_copy(update={"machine": here, "device": kind})
    if isinstance(decision := technique.applies(facts), Refuses):
        return _untested(technique, experiment, decision.reason)
    for package in (package for one in (technique, *_needed(technique)) for package in one.packages):
        if problem := package.missing():
            return _untested(technique, experiment, problem, package.fix)
    return None


def _recipes(technique: Technique, experiment: Experiment, facts: Facts) -> tuple[Recipe, Recipe]:
    """The same recipe without and with the technique."""
    base = {needed.id: dict(next(iter(needed.options(facts)))) for needed in _needed(technique)}
    options = experiment.options or dict(next(iter(technique.options(facts)), {}))
    if technique.id == "no_grad":
        return Recipe(), recipe(no_grad={})
    grad_mode: dict[str, Options] = {} if "grad_mode" in technique.provides else {"no_grad": {}}
    return recipe(**base, no_grad={}), recipe(**base, **grad_mode, **{technique.id: options})


def _measure(
    technique: Technique, experiment: Experiment, reference: RunningTrial, running: RunningTrial, seed: int
) -> Proof:
    enough_s = min(_MOST_S, _ROUNDS * (reference.turn_s + running.turn_s))
    result = compare(reference, running, budget_s=max(_BUDGET_S, enough_s), seed=seed)
    timing = result.timing(running.name)
    if timing is None or running.error is None:
        return _untested(technique, experiment, result.sentence)
    footprints = (reference.footprint(), running.footprint()) if experiment.memory else None
    verdict, sentence = judge(technique, experiment, running.error, timing, footprints)
    was, now = footprints or (None, None)
    rows = (
        Measured(
            name=reference.recipe.label,
            peak_bytes=was.peak_bytes if was else None,
            median_ms=statistics.median(reference_ms for reference_ms, _ in timing.rounds_ms),
        ),
        Measured(
            name=running.recipe.label,
            peak_bytes=now.peak_bytes if now else None,
            median_ms=timing.latency_ms.median,
            speedup_x=timing.speedup_x,
            note="; ".join(timing.noise.warnings),
        ),
    )
    return Proof(
        claim=technique.id, verdict=verdict, sentence=sentence, setting=f"{experiment.about}, float32", rows=rows
    )


def judge(
    technique: Technique,
    experiment: Experiment,
    error: ErrorReport,
    timing: Timing,
    footprints: tuple[Footprint, Footprint] | None = None,
) -> tuple[Verdict, str]:
    """The verdict on the claim, and its figures in a sentence.

    Args:
        footprints: without and with the technique, where its claim is about memory.
    """
    outcome, wrong = accept(error, exact=technique.exact, max_error=None if technique.exact else float("inf"))
    if outcome is Outcome.WRONG:
        return Verdict.REFUTED, f"Its output is wrong on {experiment.about}: {wrong}."
    speed, found = BETWEEN_PROCESSES.speed(timing.speedup_x), timing.speedup_x
    figures = f"{times(found.median)} the speed of the same without it ({bounds(found)}) on {experiment.about}"
    right = (
        "as right as plain eager"
        if error.faithful
        else (f"approximate: relative error {relative(error.rmse)}, {significant(error.units, 2)} times eager's own")
    )
    if speed is Speed.UNCLEAR:
        verdict = Verdict.UNTESTED
        said = f"It cannot be told on this machine now: about {figures}. Repeat it when the machine is quiet."
    else:
        verdict = Verdict.HOLDS if speed is experiment.expects else Verdict.REFUTED
        said = f"{_WORDS[speed]}: {figures}, {right}."
    if footprints is None:
        return verdict, said
    was, now = footprints[0].peak_bytes, footprints[1].peak_bytes
    if (now < was) != (verdict is Verdict.HOLDS):
        verdict = Verdict.HOLDS_IN_PART
    return verdict, f"A call's peak goes from {size(was)} to {size(now)}. {said}"


def _untested(technique: Technique, experiment: Experiment, reason: str, fix: str = "") -> Proof:
    return Proof(
        claim=technique.id,
        verdict=Verdict.UNTESTED,
        sentence=f"{reason}.",
        setting=f"{experiment.about}, float32",
        fix=fix,
    )
