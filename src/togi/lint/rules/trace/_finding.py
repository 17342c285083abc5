"""What the events at one line of a watched run say, as one finding."""

from __future__ import annotations

from collections.abc import Sequence

from togi.lint.finding import Cost, Finding
from togi.lint.trace.record import StepEvent, Trace, evidence, place_of, total


def finding(
    rule: str,
    events: Sequence[StepEvent],
    trace: Trace,
    *,
    message: str,
    remedy: str,
    cost: str = "",
    moved: int | None = None,
) -> Finding:
    """A finding of the rule with the id ``rule`` where ``events`` happened, the most frequent of them first.

    ``cost`` was counted, not measured; ``moved`` are the bytes that it speaks of.
    """
    first = events[0]
    return Finding(
        rule=rule,
        message=message,
        remedy=remedy,
        place=place_of(first),
        layer=first.layer,
        evidence=evidence(events, trace),
        count=total(events),
        cost=Cost(text=cost, measured=False, bytes=moved) if cost else None,
    )
