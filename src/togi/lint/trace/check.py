"""Trace rules on a subject, in the subject's own process: one run under watch after a warm-up, then the rules.

On a real GPU, ``torch.cuda.set_sync_debug_mode`` adds its warnings, each with the line of the thread that raised it.
The mode is global to the process, not to a thread: everything that runs meanwhile is seen, and another user of it would
be disturbed. It is put back on every way out. What autograd's own threads warn of is delayed by PyTorch to the end of
the backward pass and belongs then to the line that started it; hooks and custom functions have their own lines.
"""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch

from togi.core.errors import SubjectError
from togi.core.quantities import size
from togi.core.user_code import user_place
from togi.lint.calls import SubjectReport, TraceRequest
from togi.lint.finding import Table, shown
from togi.lint.rule import TraceRule, rules_to_run
from togi.lint.trace.compiled import compile_events, prepared_run, run
from togi.lint.trace.cuda_graphs import graph_events
from togi.lint.trace.record import StepEvent, Trace, by_line, line_of, total, total_bytes
from togi.lint.trace.recorder import EventRecorder
from togi.lint.trace.watching import mark_subject, watching
from togi.subject.inputs import Subject
from togi.subject.prepare import Prepared

NEED_COMPILER = frozenset({"graph-break", "recompilation"})
NEED_CUDA_GRAPHS = frozenset({"no-cuda-graph"})
_MODES = {
    "simulated": "simulated for CUDA on the CPU",
    "watched": "on the CPU, without the simulation",
    "cuda": "on the GPU",
}


def check_run(subject: Subject, request: TraceRequest) -> SubjectReport:
    """Run the subject once under watch and apply the trace rules.

    Its training step is watched where it has one, else a forward pass over its samples.

    Raises:
        SubjectError: the subject cannot be run at all.
    """
    rules = rules_to_run(TraceRule, request.rules)  # type: ignore[type-abstract]
    device = request.device if request.device.partition(":")[0] == "cuda" else "cpu"
    trace = trace_subject(subject, device=device)
    for need, events_of in ((NEED_COMPILER, compile_events), (NEED_CUDA_GRAPHS, graph_events)):
        if need & {rule.id for rule in rules}:
            events, notes = events_of(subject, device=device)
            trace = trace.model_copy(update={"events": (*trace.events, *events), "notes": (*trace.notes, *notes)})
    findings = [finding for rule in rules for finding in rule.check(trace)]
    return SubjectReport(findings=tuple(findings), tables=tuple(_tables(trace)), notes=tuple(_text(trace, request)))


def _tables(trace: Trace) -> list[Table]:
    groups = by_line(event for event in trace.events if event.kind in ("wait", "copy"))
    rows = tuple(
        (
            f"{shown(group[0].stack[0].path)}:{group[0].stack[0].line}" if group[0].stack else "",
            ", ".join(dict.fromkeys(event.op for event in group)),
            str(total(group)),
            str(total(event for event in group if event.waits)),
            size(total_bytes(group)),
        )
        for group in groups
    )
    if not rows:
        return []
    columns = ("line", "operation", "calls", "waits", "bytes between devices")
    return [Table(title=f"Between host and GPU, one step ({_MODES[trace.mode]})", columns=columns, rows=rows)]


def _text(trace: Trace, request: TraceRequest) -> Iterable[str]:
    run_name = "A training step" if trace.step else "A forward pass"
    waits = total(event for event in trace.events if event.waits)
    yield f"{run_name} was watched, {_MODES[trace.mode]}: the host waits for the GPU {waits} times."
    if request.train and not trace.step:
        yield "The subject has no training step (togi.Subject(step=...)), so its forward pass was watched."
    yield from trace.notes


def trace_subject(subject: Subject, *, device: str = "cpu") -> Trace:
    """Watch one forward pass over the samples, or one training step where the subject has one.

    On ``cpu`` the run is simulated for CUDA; if the subject fails under that, it is watched without the appearance, and
    the trace says so. On ``cuda`` PyTorch's own debug mode watches.

    Raises SubjectError: it fails without the simulation too.
    """
    prepared = prepared_run(subject, device)
    if device.startswith("cuda"):
        return _on_gpu(subject, prepared)
    try:
        return _watched(subject, prepared, mode="simulated")
    except Exception as failure:  # the subject's code, on a device that is not quite one
        reason = f"Under simulated CUDA it failed: {user_place(failure)}"
    try:
        trace = _watched(subject, prepared, mode="watched")
    except Exception as failure:  # the subject's code
        raise SubjectError(
            f"the subject fails when it is run: {user_place(failure)}\n{traceback.format_exc(limit=-3).strip()}\n"
            f"{reason}.\nIts run was not watched; 'togi check' on its source needs none."
        ) from failure
    note = f"{reason}. So it was watched as it runs on the CPU: code that asks for the device took its CPU branches."
    return trace.model_copy(update={"notes": (*trace.notes, note)})


def _watched(subject: Subject, prepared: Prepared, *, mode: Literal["simulated", "watched"]) -> Trace:
    recorder = EventRecorder(_names(prepared))
    mark_subject(prepared.module, prepared.samples)
    with watching(recorder, simulated=mode == "simulated"):
        run(subject, prepared.module, prepared.samples)
        recorder.armed = True
        run(subject, prepared.module, prepared.samples)
        recorder.armed = False
    return _trace(subject, prepared, mode, recorder.events)


def _on_gpu(subject: Subject, prepared: Prepared) -> Trace:
    """Once under PyTorch's debug mode, once under the watch: both are compared by line."""
    run(subject, prepared.module, prepared.samples)
    with debug_mode_events(_names(prepared)) as reported:
        run(subject, prepared.module, prepared.samples)
    recorder = EventRecorder(_names(prepared))
    with watching(recorder, simulated=False):
        recorder.armed = True
        run(subject, prepared.module, prepared.samples)
        recorder.armed = False
    torch.cuda.synchronize()
    events = confirmed(recorder.events, reported)
    return _trace(subject, prepared, "cuda", events, agreement(recorder.events, reported))


def _names(prepared: Prepared) -> dict[int, str]:
    return {id(module): name for name, module in prepared.module.named_modules()}


def _trace(
    subject: Subject,
    prepared: Prepared,
    mode: Literal["simulated", "watched", "cuda"],
    events: Iterable[StepEvent],
    *notes: str,
) -> Trace:
    return Trace(
        mode=mode,
        step=subject.step is not None,
        samples=len(prepared.samples),
        events=tuple(events),
        notes=(*prepared.notes, *notes),
    )


MESSAGE = "called a synchronizing CUDA operation"


@contextlib.contextmanager
def debug_mode_events(names: dict[int, str] | None = None) -> Iterator[list[StepEvent]]:
    """A list that holds, after the block, one event per line that made the host wait."""
    recorder = EventRecorder(names)
    events: list[StepEvent] = []
    show_before = warnings.showwarning

    def show(message: Any, category: Any, filename: Any, lineno: Any, file: Any = None, line: Any = None) -> None:
        if MESSAGE in str(message):
            recorder.record("wait", "a synchronizing CUDA operation", "PyTorch reports a synchronisation", waits=True)
        else:
            show_before(message, category, filename, lineno, file, line)

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{MESSAGE}.*")
        warnings.showwarning = show
        try:
            torch.cuda.set_sync_debug_mode("warn")
            recorder.armed = True
            yield events
        finally:
            torch.cuda.set_sync_debug_mode(before)
            events.extend(recorder.events)


def confirmed(watched: Iterable[StepEvent], reported: Iterable[StepEvent]) -> tuple[StepEvent, ...]:
    """Events of the watch, told apart by what the debug mode reported at their lines; then those only it reported."""
    reported_lines = {line for event in reported if (line := line_of(event)) is not None}
    events = [
        event.model_copy(update={"seen_by_debug_mode": line_of(event) in reported_lines}) if event.waits else event
        for event in watched
    ]
    waiting_lines = {line_of(event) for event in events if event.waits}
    return (*events, *(event for event in reported if line_of(event) not in waiting_lines))


def agreement(watched: Iterable[StepEvent], reported: Iterable[StepEvent]) -> str:
    """A sentence on how far both saw the same."""
    ours = {line_of(event) for event in watched if event.waits} - {None}
    theirs = {line_of(event) for event in reported} - {None}
    return (
        f"PyTorch's debug mode reported synchronisations at {len(theirs)} lines, the watch at {len(ours)}; "
        f"{len(ours & theirs)} are the same."
    )
