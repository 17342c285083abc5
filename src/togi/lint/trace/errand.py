"""The errand of ``togi check SUBJECT``: trace rules, in the subject's own process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from togi.core.quantities import size
from togi.core.records import Record
from togi.lint.rule import TraceRule, all_rules
from togi.lint.trace.compiled import compile_events
from togi.lint.trace.findings import by_line, shown, total, total_bytes
from togi.lint.trace.record import Trace
from togi.lint.trace.run import trace_subject
from togi.subject.inputs import Subject

NEED_COMPILER = frozenset({"graph-break", "recompilation"})
_MODES = {
    "simulated": "simulated for CUDA on the CPU",
    "watched": "on the CPU, without the simulation",
    "cuda": "on the GPU",
}


class Order(Record):
    """What is asked for: the payload of the errand."""

    device: str = "cpu"
    """``cuda`` watches on a real GPU; anything else is simulated for CUDA on the CPU."""
    train: bool = False
    """A training step was asked for: one is watched wherever the subject has one; without it this only adds a note."""
    rules: tuple[str, ...] | None = None
    """Ids of the rules to run; None: those that are on by default."""


def watch(subject: Subject, payload: dict[str, Any]) -> dict[str, Any]:
    """Run the subject once under watch and apply the trace rules.

    Args:
        subject: its training step is watched where it has one, else a forward pass over its samples.
        payload: an ``Order`` as a dict.

    Returns:
        ``{"findings": [Finding as JSON, ...], "report": {"tables": [{"title", "columns", "rows"}], "text": [str]}}``.

    Raises:
        SubjectError: the subject cannot be run at all.
    """
    order = Order.model_validate(payload)
    rules = _selected(order)
    device = order.device if order.device.partition(":")[0] == "cuda" else "cpu"
    trace = trace_subject(subject, device=device)
    if NEED_COMPILER & {rule.id for rule in rules}:
        events, notes = compile_events(subject, device=device)
        trace = trace.model_copy(update={"events": (*trace.events, *events), "notes": (*trace.notes, *notes)})
    found = [finding for rule in rules for finding in rule.check(trace)]
    return {
        "findings": [finding.model_dump(mode="json") for finding in found],
        "report": {"tables": _tables(trace), "text": list(_text(trace, order))},
    }


def _selected(order: Order) -> Sequence[TraceRule]:
    rules = [rule for rule in all_rules().values() if isinstance(rule, TraceRule)]
    return [rule for rule in rules if (rule.default if order.rules is None else rule.id in order.rules)]


def _tables(trace: Trace) -> list[dict[str, Any]]:
    groups = by_line(event for event in trace.events if event.kind in ("wait", "copy"))
    rows = [
        [
            f"{shown(group[0].stack[0].path)}:{group[0].stack[0].line}" if group[0].stack else "",
            ", ".join(dict.fromkeys(event.op for event in group)),
            str(total(group)),
            str(total(event for event in group if event.waits)),
            size(total_bytes(group)),
        ]
        for group in groups
    ]
    if not rows:
        return []
    columns = ["line", "operation", "calls", "waits", "bytes between devices"]
    return [{"title": f"Between host and GPU, one step ({_MODES[trace.mode]})", "columns": columns, "rows": rows}]


def _text(trace: Trace, order: Order) -> Iterable[str]:
    what = "A training step" if trace.step else "A forward pass"
    waits = total(event for event in trace.events if event.waits)
    yield f"{what} was watched, {_MODES[trace.mode]}: the host waits for the GPU {waits} times."
    if order.train and not trace.step:
        yield "The subject has no training step (togi.Subject(step=...)), so its forward pass was watched."
    yield from trace.notes
