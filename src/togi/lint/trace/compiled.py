"""Runs the subject under ``torch.compile``: where its graph breaks, and what makes it compile again.

Only the front end runs (the backend ``eager`` executes the captured graphs as they are), so no kernel is generated and
nothing is measured. The samples are run twice: a second pass shows what changes from call to call, samples of several
sizes what depends on size.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from togi.core.quantities import first_line
from togi.core.user_code import Origin, is_users, printed_frames, user_place
from togi.lint.trace.record import Frame, StepEvent
from togi.subject.inputs import Inputs, Subject, as_given
from togi.subject.prepare import Prepared, prepare, restore_modes
from togi.torch_internals.compiler import checking_every_guard, compilations, reset_dynamo, sizes_by_default

_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_\d+")


def compile_events(subject: Subject, *, device: str = "cpu") -> tuple[tuple[StepEvent, ...], tuple[str, ...]]:
    """``(events, notes)`` of running the subject compiled. A subject that cannot be run so gives a note."""
    prepared = prepared_run(subject, device)
    notes: list[str] = []
    with fresh_dynamo(), checking_every_guard():
        compiled = torch.compile(prepared.module, backend="eager")
        try:
            run(subject, compiled, (*prepared.samples, *prepared.samples))
        except Exception as failure:  # the subject's code under a compiler
            notes.append(
                f"Compiled, it failed ({user_place(failure)}): graph breaks and recompilations are known up to there."
            )
        summary = compilations()
        events = (*_breaks(summary.breaks), *_recompilations(summary.metrics))
    return events, tuple(notes)


def prepared_run(subject: Subject, device: str) -> Prepared:
    """Ready to be run: where the subject has a training step, with each part in the mode it was handed over in."""
    prepared = prepare(subject, device=device, train=subject.step is not None)
    if subject.step is not None:
        restore_modes(prepared.module, subject.module)
    return prepared


def run(subject: Subject, module: Callable[..., Any], samples: Sequence[Inputs]) -> None:
    """All samples, each through the subject's training step where there is one, else a forward pass."""
    for sample in samples:
        if subject.step is not None:
            subject.step(module, as_given(sample))
        else:
            with torch.no_grad():
                module(*sample.args, **sample.kwargs)


@contextlib.contextmanager
def fresh_dynamo() -> Iterator[None]:
    """Forgets what was compiled or set before, and hides dynamo's warnings, since the findings say the same."""
    before = logging.root.manager.disable
    reset_dynamo()
    logging.disable(logging.WARNING)
    try:
        with sizes_by_default():
            yield
    finally:
        logging.disable(before)
        reset_dynamo()


def _breaks(reasons: Iterable[Any]) -> Iterator[StepEvent]:
    """One event per line and reason: a break in a function that was inlined is reported for its callers too."""
    events: dict[tuple[str, int, str], StepEvent] = {}
    for reason in reasons:
        stack = tuple(frame_of(summary) for summary in reversed(reason.user_stack) if is_users(summary.filename))
        if not getattr(reason, "graph_break", True) or not stack:
            continue
        why, hints = _read_reason(reason.reason)
        key = (stack[0].path, stack[0].line, why)
        if key not in events or len(stack) > len(events[key].stack):
            events[key] = StepEvent(kind="graph-break", op="torch.compile", why=why, stack=stack, detail=hints)
    yield from events.values()


def _read_reason(text: str) -> tuple[str, str]:
    """``(what, explanation and hints)`` of a reason of dynamo's."""
    if text.startswith("generic_jump"):
        return "the branch depends on values of a tensor", ""
    lines = [line.strip() for line in text.splitlines()]
    hints = [line for line in lines[1:] if line.startswith(("Explanation:", "Hint:")) and "report an issue" not in line]
    return lines[0], "\n".join(hints)


def _recompilations(metrics: Iterable[Any]) -> Iterator[StepEvent]:
    events: dict[tuple[str, int, str], StepEvent] = {}
    for metric in metrics:
        if not metric.recompile_reason:
            continue
        guard = _guard(metric.recompile_reason)
        frame = _guarded_line(metric)
        if not is_users(frame.path):
            continue
        key = (frame.path, frame.line, re.sub(r"\d+", "N", guard))
        event = StepEvent(kind="recompilation", op="torch.compile", why=guard, stack=(frame,))
        earlier = events.get(key)
        events[key] = event if earlier is None else earlier.model_copy(update={"count": earlier.count + 1})
    yield from events.values()


def _guard(reason: str) -> str:
    """The condition that failed, without dynamo's numbering and comments: ``n == 1``."""
    first = first_line(reason)
    return re.sub(r"^\d+/\d+:\s*", "", first).split("  # ")[0].strip()


def _guarded_line(metric: Any) -> Frame:
    """The line that the guard protects, else the function's first."""
    guarded = printed_frames(metric.recompile_reason, Origin.LIBRARY)[:1]
    resumed = _RESUMED.match(metric.co_name or "")
    function = resumed["function"] if resumed else metric.co_name or ""
    if guarded:
        return frame_of(guarded[0]).model_copy(update={"function": function})
    return Frame(path=metric.co_filename or "", line=metric.co_firstlineno or 1, function=function)


def frame_of(summary: Any) -> Frame:
    """A frame from a summary of the standard library's ``traceback``."""
    return Frame(path=summary.filename, line=summary.lineno or 1, function=summary.name, code=summary.line or "")
