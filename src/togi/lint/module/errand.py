"""The errand of ``togi check SUBJECT``: module rules, in the subject's own process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from togi.core.records import Record, Scalar
from togi.lint.finding import Cost, Finding
from togi.lint.module.look import look
from togi.lint.module.seen import Seen
from togi.lint.module.tried import BUDGET_S, Attempt, attempt
from togi.lint.roofline.table import cost_table
from togi.lint.rule import ModuleRule, all_rules
from togi.subject.inputs import Subject

NEED_GRAPH = frozenset({"mergeable-branches", "channels-off-multiple"})
"""Rules that read the captured graph; without it they are silent (the first) or say less (the second)."""


class Order(Record):
    """What is asked for: the payload of the errand."""

    device: str = "cpu"
    """``cpu``, ``cuda`` or a GPU's name (``A100``): what times are predicted for. See ``look``."""
    dtype: str | None = None
    """Predict as if floating-point tensors were of this dtype."""
    select: tuple[str, ...] | None = None
    """Ids of rules; None: those that are on by default. Ids of other kinds do not matter."""
    ignore: tuple[str, ...] = ()
    seed: int = 0
    measure: bool = False
    """Try the techniques that mend what was found, and say what they bring."""
    measure_s: float = BUDGET_S
    """How long the race of one technique may take."""
    rows: int = 20
    """Layers in the table."""


def examine(subject: Subject, payload: dict[str, Any]) -> dict[str, Any]:
    """Findings of the module rules, and the table of memory access cost.

    Args:
        subject: what is examined.
        payload: an ``Order`` as a dict.

    Returns:
        ``{"findings": [Finding as JSON, ...], "report": {"tables": [{"title", "columns", "rows"}], "notes": [str]}}``.
    """
    order = Order.model_validate(payload)
    rules = _selected(order)
    needs_graph = order.measure or any(rule.id in NEED_GRAPH for rule in rules)
    seen = look(subject, target=order.device, dtype=order.dtype, seed=order.seed, with_graph=needs_graph)
    found = [finding for rule in rules for finding in rule.check(seen)]
    attempts: dict[str, Attempt] = {}
    if order.measure and _measurable(seen, order):
        attempts = _attempts(seen, found, order)
        found = list(_with_measured_costs(found, attempts))
    tables = [cost_table(seen.costs, seen.kinds, most_rows=order.rows)] if seen.forward.calls else []
    if attempts:
        tables.append(_table_of(attempts.values()))
    notes = list(_notes(seen, order, rules))
    return {
        "findings": [finding.model_dump(mode="json") for finding in found],
        "report": {"tables": tables, "notes": notes},
    }


def _selected(order: Order) -> list[ModuleRule]:
    rules = [rule for rule in all_rules().values() if isinstance(rule, ModuleRule)]
    return [
        rule
        for rule in rules
        if rule.id not in order.ignore and (rule.id in order.select if order.select is not None else rule.default)
    ]


def _measurable(seen: Seen, order: Order) -> bool:
    """Times can be measured where the target is where it runs, in the dtype that it has."""
    return order.device.partition(":")[0] == seen.device and order.dtype is None


def _attempts(seen: Seen, found: Sequence[Finding], order: Order) -> dict[str, Attempt]:
    """Each technique once, however many findings it mends."""
    wanted: dict[str, dict[str, Scalar]] = {}
    for finding in found:
        name = all_rules()[finding.rule].technique
        if name is not None:
            wanted.setdefault(name, {"multiple": 8} if name == "pad_channels" else {})
    return {
        name: attempt(seen, name, options, seed=order.seed, budget_s=order.measure_s)
        for name, options in wanted.items()
    }


def _with_measured_costs(found: Iterable[Finding], attempts: dict[str, Attempt]) -> Iterable[Finding]:
    """The findings with what mending brings; without those of ``pad_channels`` that padding surely does not help."""
    for finding in found:
        tried = attempts.get(all_rules()[finding.rule].technique or "")
        if tried is None:
            yield finding
        elif tried.technique != "pad_channels" or not tried.useless:
            yield finding.model_copy(update={"cost": _cost(finding, tried)})


def _cost(finding: Finding, tried: Attempt) -> Cost:
    before = finding.cost or Cost(text="", measured=False)
    speedup_x = tried.speedup_x.median if tried.faster and tried.speedup_x is not None else None
    text = f"{before.text}; {tried.sentence}" if before.text else tried.sentence
    return before.model_copy(update={"text": text, "measured": tried.speedup_x is not None, "speedup_x": speedup_x})


def _table_of(attempts: Iterable[Attempt]) -> dict[str, Any]:
    rows = []
    for tried in attempts:
        options = ", ".join(f"{key}={value}" for key, value in tried.options.items())
        found = tried.speedup_x
        numbers = [round(x, 3) for x in (found.median, found.low, found.high)] if found else [None] * 3
        rows.append([tried.technique, options, *numbers, tried.sentence])
    return {
        "title": "Techniques tried alone against the module as it is, taking turns",
        "columns": ["technique", "options", "speed-up", "low", "high", "in words"],
        "rows": rows,
    }


def _notes(seen: Seen, order: Order, rules: Sequence[ModuleRule]) -> Iterable[str]:
    yield from seen.notes
    if seen.forward.error:
        yield (
            f"Its forward pass could not be watched operation by operation ({seen.forward.error}): rules that need "
            "that found nothing, and there is no table of costs."
        )
    if seen.captured is None and (order.measure or any(rule.id in NEED_GRAPH for rule in rules)):
        yield (
            f"It could not be captured as a graph ({seen.capture_error}): mergeable-branches did not run, padding was "
            "only counted, and no technique was tried."
        )
    if order.measure and not _measurable(seen, order):
        yield f"Nothing was measured: times are for {seen.costs.figures.name} in {order.dtype or 'its own dtypes'}."
