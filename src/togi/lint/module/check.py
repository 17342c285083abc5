"""Module rules on a subject, in the subject's own process: run it, watch it, capture it, then the rules.

A fix that a rule proposes is measured by the technique that does the same: applied alone, taking turns with the module
as it is. Its outputs for one sample must be faithful (``decide.faithful``); ``togi tune`` proves more.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from togi.core.errors import Refused
from togi.core.records import Facts, Interval, Machine, Obstacle, Record, Scalar
from togi.decide.faithful import MAX_UNITS, within
from togi.decide.faster import WITHIN_PROCESS, Speed
from togi.graph.candidate import Candidate
from togi.graph.capture import GraphModule, capture
from togi.lint.calls import ModuleRequest, SubjectReport
from togi.lint.finding import Cost, Finding, Table
from togi.lint.module.context import ModuleContext
from togi.lint.module.observe import observe
from togi.lint.module.step_inputs import as_its_step_calls
from togi.lint.roofline.costs import Costs, cost_table
from togi.lint.roofline.devices import check_dtype, gpu
from togi.lint.roofline.this_machine import figures_here
from togi.lint.rule import ModuleRule, all_rules, rules_to_run
from togi.machine.describe import machine
from togi.measure import Turn, race, take_turn, warm
from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest
from togi.subject.inputs import Subject
from togi.subject.inventory import class_name, count_modules
from togi.subject.prepare import is_exported, prepare
from togi.subject.program import ProgramModule
from togi.subject.signature import Signature
from togi.techniques import technique
from togi.torch_internals.autograd import version_of
from togi.verify.units import OwnError, seeded_outputs
from togi.worker.survey import first_call

if TYPE_CHECKING:
    from togi.subject.inputs import Inputs
    from togi.subject.prepare import Prepared


NEED_GRAPH = frozenset({"mergeable-branches", "channels-off-multiple", "not-captured"})
"""Rules that read the captured graph; without it they are silent (the first), say less (the second), or say why."""


def check_module(subject: Subject, request: ModuleRequest) -> SubjectReport:
    """Findings of the module rules, and the table of memory access cost."""
    subject = as_its_step_calls(subject, request.seed)
    rules = rules_to_run(ModuleRule, request.rules)  # type: ignore[type-abstract]
    needs_graph = request.measure or any(rule.id in NEED_GRAPH for rule in rules)
    context = inspect_module(
        subject, target=request.device, dtype=request.dtype, seed=request.seed, with_graph=needs_graph
    )
    if context.capture_error and any(rule.id == "not-captured" for rule in rules):
        context.obstacles = _obstacles(subject, context, request.seed)
    found = [finding for rule in rules for finding in rule.check(context)]
    attempts: dict[str, MeasuredFix] = {}
    if request.measure and _measurable(context, request):
        attempts = _attempts(context, found, request)
        found = list(_with_measured_costs(found, attempts))
    tables = [cost_table(context.costs, context.kinds)] if context.forward.calls else []
    if attempts:
        tables.append(_table_of(attempts.values()))
    return SubjectReport(
        findings=tuple(found),
        tables=tuple(tables),
        notes=tuple(_notes(context, request, rules)),
    )


def _measurable(context: ModuleContext, request: ModuleRequest) -> bool:
    """Times can be measured where the target is where it runs, in the dtype that it has."""
    return request.device.partition(":")[0] == context.device and request.dtype is None


def _attempts(context: ModuleContext, found: Sequence[Finding], request: ModuleRequest) -> dict[str, MeasuredFix]:
    """Each technique once, however many findings it fixes."""
    wanted: dict[str, dict[str, Scalar]] = {}
    for finding in found:
        name = all_rules()[finding.rule].technique
        if name is not None:
            wanted.setdefault(name, {"multiple": 8} if name == "pad_channels" else {})
    return {
        name: measure_fix(context, name, options, seed=request.seed, budget_s=request.measure_s)
        for name, options in wanted.items()
    }


def _with_measured_costs(found: Iterable[Finding], attempts: dict[str, MeasuredFix]) -> Iterable[Finding]:
    """The findings with what fixing brings; without those of ``pad_channels`` that padding surely does not help."""
    for finding in found:
        tried = attempts.get(all_rules()[finding.rule].technique or "")
        if tried is None:
            yield finding
        elif tried.technique != "pad_channels" or not tried.useless:
            yield finding.model_copy(update={"cost": _cost(finding, tried)})


def _cost(finding: Finding, tried: MeasuredFix) -> Cost:
    before = finding.cost or Cost(text="", measured=False)
    speedup_x = tried.speedup_x.median if tried.faster and tried.speedup_x is not None else None
    text = f"{before.text}; {tried.sentence}" if before.text else tried.sentence
    return before.model_copy(update={"text": text, "measured": tried.speedup_x is not None, "speedup_x": speedup_x})


def _table_of(attempts: Iterable[MeasuredFix]) -> Table:
    rows: list[tuple[Scalar, ...]] = []
    for tried in attempts:
        options = ", ".join(f"{key}={value}" for key, value in tried.options.items())
        found = tried.speedup_x
        numbers = [round(x, 3) for x in (found.median, found.low, found.high)] if found else [None] * 3
        rows.append((tried.technique, options, *numbers, tried.sentence))
    return Table(
        title="Techniques tried alone against the module as it is, taking turns",
        columns=("technique", "options", "speed-up", "low", "high", "in words"),
        rows=tuple(rows),
    )


def _notes(context: ModuleContext, request: ModuleRequest, rules: Sequence[ModuleRule]) -> Iterable[str]:
    yield from context.notes
    if context.forward.error:
        yield (
            f"Its forward pass could not be watched operation by operation ({context.forward.error}): rules that need "
            "that found nothing, and there is no table of costs."
        )
    if context.captured is None and (request.measure or any(rule.id in NEED_GRAPH for rule in rules)):
        yield (
            f"It could not be captured as a graph ({context.capture_error}): mergeable-branches did not run, padding "
            "was only counted, and no technique was tried."
        )
    if request.measure and not _measurable(context, request):
        dtypes = request.dtype or "its own dtypes"
        yield f"Nothing was measured: times are for {context.costs.figures.name} in {dtypes}."


def inspect_module(subject: Subject, *, target: str, dtype: str | None, seed: int, with_graph: bool) -> ModuleContext:
    """Everything that module rules need to know of ``subject``.

    Args:
        subject: its module is copied once, and not changed.
        target: what times are predicted for: ``cpu`` or ``cuda`` (it runs there, and is measured), or a GPU's name
            (``A100``: it runs on the CPU, and the GPU's data sheet counts).
        dtype: predict as if floating-point tensors were of this dtype; None: as they are.
        seed: for modules that draw random numbers.
        with_graph: capture it too, which takes longer than all the rest.

    Raises SubjectError where it cannot be run, UnknownNameError for a device nobody knows.
    """
    if dtype is not None:
        check_dtype(dtype)
    device = torch.device(target).type if target.partition(":")[0] in ("cpu", "cuda") else "cpu"
    named = None if target.partition(":")[0] in ("cpu", "cuda") else gpu(target)
    parts = subject.module.named_modules() if subject.step is None else ()  # what has a training step is to train
    training = {name: class_name(part) for name, part in parts if _trains(part)}
    ready = prepare(subject, device=target if named is None else device)
    here = machine(device)
    before = _buffer_versions(ready.module)
    outputs = [first_call(ready.module, sample, number, seed) for number, sample in enumerate(ready.samples, start=1)]
    changed = _buffer_versions(ready.module) != before
    captured: Candidate | str = "the selected rules do not need it"
    if with_graph:
        captured = _captured(subject, ready, outputs, here, device, changed)
    del outputs
    forward = observe(ready.module, ready.samples[0], seed=seed)
    figures = named or figures_here(device, here, [dtype] if dtype else _dtypes(ready.module))
    return ModuleContext(
        module=ready.module,
        given=subject.module,
        samples=ready.samples,
        forward=forward,
        costs=Costs.of(forward.calls, figures, dtype),
        device=device,
        training=training,
        captured=captured,
        notes=ready.notes,
    )


def _trains(part: nn.Module) -> bool:
    return part.training and not is_exported(part)


def _dtypes(module: nn.Module) -> list[str]:
    return sorted({str(p.dtype).removeprefix("torch.") for p in module.parameters() if p.is_floating_point()})


def _buffer_versions(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Changes when a buffer is written in place or replaced."""
    return {name: (id(buffer), version_of(buffer)) for name, buffer in module.named_buffers()}


def _captured(
    subject: Subject, ready: Prepared, outputs: Sequence[object], here: Machine, device: str, changed: bool
) -> Candidate | str:
    """A candidate whose module is the captured graph, or why there is none."""
    try:
        signature = Signature.of(ready.module, ready.samples, outputs, subject.dynamic)
        facts = Facts(
            device=device,
            machine=here,
            module_class=class_name(ready.module),
            modules=count_modules(ready.module),
            buffers_change=changed,
        )
        start = Candidate(module=ready.module, samples=ready.samples, signature=signature, facts=facts)
        return start.with_(module=GraphModule(capture(start), signature))
    except Refused as refused:
        return str(refused)
    except Exception as error:  # foreign code: samples of different form, and whatever the tracer raises
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _obstacles(subject: Subject, context: ModuleContext, seed: int) -> tuple[Obstacle, ...]:
    """What cannot be captured: the module itself, unless it is Python round its modules, and what matters inside."""
    with tempfile.TemporaryDirectory(prefix="togi-") as folder:
        inside = find_cuts(subject, CutRequest(folder=folder, device=context.device, seed=seed)).obstacles
    if isinstance(context.module, ProgramModule):
        return inside
    name = class_name(context.module)
    return (Obstacle(path="", module=name, share=1.0, reason=context.capture_error), *inside)


class MeasuredFix(Record):
    """One technique, tried alone."""

    technique: str
    options: dict[str, Scalar] = {}
    speedup_x: Interval | None = None
    """Time of the module as it is over that of the fixed one; None where it was not measured."""
    why_not: str = ""
    """Why it was not measured."""

    @property
    def speed(self) -> Speed:
        """What the measurement allows to say; ``UNCLEAR`` where there is none."""
        return Speed.UNCLEAR if self.speedup_x is None else WITHIN_PROCESS.speed(self.speedup_x)

    @property
    def faster(self) -> bool:
        return self.speed is Speed.FASTER

    @property
    def useless(self) -> bool:
        """Surely not faster."""
        return self.speedup_x is not None and WITHIN_PROCESS.at_most_same(self.speedup_x)

    @property
    def sentence(self) -> str:
        """``1.31x as fast with fold_batch_norm (1.27 to 1.35)``."""
        if self.speedup_x is None:
            return f"{self.technique} could not be tried: {self.why_not}"
        found = self.speedup_x
        interval = f"{found.low:.2f} to {found.high:.2f}"
        if self.faster:
            return f"{found.median:.2f}x as fast with {self.technique} ({interval}), measured here"
        if self.speed is Speed.SLOWER:
            return f"slower with {self.technique} alone ({found.median:.2f}x as fast, {interval}), measured here"
        return (
            f"no difference beyond noise with {self.technique} alone ({found.median:.2f}x, {interval}), measured here"
        )


def measure_fix(
    context: ModuleContext, name: str, options: dict[str, Scalar], *, seed: int, budget_s: float
) -> MeasuredFix:
    """Apply the technique ``name`` to what was captured and race it against the original, both under ``no_grad``.

    The technique gets the captured graph, so the graph without it is what it is compared with: what capturing changes
    is not credited to it. Never raises for what the technique does.
    """
    start = context.captured
    if start is None:
        return MeasuredFix(technique=name, options=options, why_not=f"there is no graph ({context.capture_error})")
    try:
        fixed = technique(name).apply(start, dict(options))
    except Refused as refused:
        return MeasuredFix(technique=name, options=options, why_not=str(refused))
    except Exception as error:  # foreign code: a technique and what it calls
        return MeasuredFix(technique=name, options=options, why_not=f"{type(error).__name__}: {error}")
    with torch.no_grad():
        off = _error_in_units(start.module, fixed.module, start.samples[0], seed)
        if not within(off):
            why_not = f"its output is {off:.3g} times as far from the truth as the module's own (limit {MAX_UNITS:g})"
            return MeasuredFix(technique=name, options=options, why_not=why_not)
        found = _race(start.module, fixed.module, start.samples, context.device, seed, budget_s)
    return MeasuredFix(technique=name, options=options, speedup_x=found)


@dataclass(frozen=True)
class _Here:
    """A runner of this process."""

    name: str
    call: Callable[..., Any]
    samples: Sequence[Inputs]
    device: str

    def turn(self, passes: int) -> Turn:
        return take_turn(self.call, self.samples, passes, device=self.device)


def _race(
    original: Callable[..., Any],
    fixed: Callable[..., Any],
    samples: Sequence[Inputs],
    device: str,
    seed: int,
    budget_s: float,
) -> Interval | None:
    runners = [_Here("original", original, samples, device), _Here("fixed", fixed, samples, device)]
    for runner in runners:
        warm(runner.call, samples, limit_s=budget_s / 4, device=device)
    return (
        race([runners[1]], runners[0], budget_s=budget_s, seed=seed, criterion=WITHIN_PROCESS).entry("fixed").speedup_x
    )


def _error_in_units(original: nn.Module, fixed: nn.Module, sample: Inputs, seed: int) -> float:
    """Of the worst output, in units of the original's own error; infinite where the structure differs."""
    outputs, structure = seeded_outputs(original, sample.clone(), seed)
    found, structure_found = seeded_outputs(fixed, sample.clone(), seed)
    if structure != structure_found or [(t.shape, t.dtype) for t in outputs] != [(t.shape, t.dtype) for t in found]:
        return math.inf
    own = OwnError(original, sample, outputs, seed)
    return max((own.units(at, tensor) for at, tensor in enumerate(found)), default=0.0)
