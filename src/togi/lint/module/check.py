"""Module rules on a subject, in the subject's own process: run it, watch it, capture it, then the rules."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from togi.core.errors import Refused
from togi.core.records import Facts, Machine, Obstacle
from togi.graph.candidate import Candidate
from togi.graph.capture import GraphModule, capture
from togi.lint.calls import ModuleRequest, SubjectReport
from togi.lint.module.context import ModuleContext
from togi.lint.module.measured_fix import measure_fixes, table_of, with_measured_costs
from togi.lint.module.observe import observe
from togi.lint.module.step_inputs import as_its_step_calls
from togi.lint.roofline.costs import Costs, cost_table
from togi.lint.roofline.devices import check_dtype, gpu
from togi.lint.roofline.this_machine import figures_here
from togi.lint.rule import ModuleRule, rules_to_run
from togi.machine.describe import machine
from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest
from togi.subject.inputs import Subject
from togi.subject.inventory import class_name, count_modules
from togi.subject.prepare import is_exported, prepare
from togi.subject.program import ProgramModule
from togi.subject.signature import Signature
from togi.torch_internals.autograd import version_of
from togi.worker.survey import first_call

if TYPE_CHECKING:
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
    findings = [finding for rule in rules for finding in rule.check(context)]
    tables = [cost_table(context.costs, context.kinds)] if context.forward.calls else []
    if request.measure and _measurable(context, request):
        fixes = measure_fixes(context, findings, request)
        findings = list(with_measured_costs(findings, fixes))
        tables += [table_of(fixes.values())] if fixes else []
    return SubjectReport(
        findings=tuple(findings),
        tables=tuple(tables),
        notes=tuple(_notes(context, request, rules)),
    )


def _measurable(context: ModuleContext, request: ModuleRequest) -> bool:
    """Times can be measured where the target is where it runs, in the dtype that it has."""
    return request.device.partition(":")[0] == context.device and request.dtype is None


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
    training = {name: class_name(part) for name, part in parts if part.training and not is_exported(part)}
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
        capture=captured,
        notes=ready.notes,
    )


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
    """The modules that cannot be captured: itself, unless it is Python around its modules, and what matters inside."""
    with tempfile.TemporaryDirectory(prefix="togi-") as folder:
        inside = find_cuts(subject, CutRequest(folder=folder, device=context.device, seed=seed)).obstacles
    if isinstance(context.module, ProgramModule):
        return inside
    name = class_name(context.module)
    return (Obstacle(path="", module=name, share=1.0, reason=context.capture_error), *inside)
