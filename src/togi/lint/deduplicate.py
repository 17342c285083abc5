"""Deduplicate: what source and a run both say of one line is reported once.

The source finding stays, with remedy and fix; how often it happened, and what was seen, comes from the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from togi.lint.finding import CheckResult, Cost, Finding, Place, in_order

_WAITS = (
    "blocking-transfer",
    "branch-on-tensor",
    "copy-to-device-in-forward",
    "copy-to-host",
    "data-dependent-shape",
    "scalar-from-tensor",
    "tensor-in-print",
    "tensor-made-in-forward",
)
SAME = {"synchronization": _WAITS, "data-dependent-op": ("data-dependent-shape",)}
"""Source rules by the trace rule that sees the same in a run."""


def deduplicate(result: CheckResult) -> CheckResult:
    """Trace findings go into source findings at the same place, also into silenced ones; equal texts appear once."""
    runs = [finding for finding in result.findings if finding.rule in SAME]
    merged = {id(run) for run in runs if any(_same(one, run) for one in _of_source(result))}
    kept = [_with_runs(one, runs) for one in result.findings if id(one) not in merged]
    return result.model_copy(
        update={
            "findings": in_order(kept),
            "suppressed": in_order([_with_runs(one, runs) for one in result.suppressed]),
            "problems": tuple(dict.fromkeys(result.problems)),
            "notes": tuple(dict.fromkeys(result.notes)),
        }
    )


def _of_source(result: CheckResult) -> Iterable[Finding]:
    return (*result.findings, *result.suppressed)


def _same(source: Finding, run: Finding) -> bool:
    return (
        source.rule in SAME[run.rule]
        and source.place is not None
        and run.place is not None
        and Path(source.place.path).resolve() == Path(run.place.path).resolve()
        and _overlap(source.place, run.place)
    )


def _overlap(one: Place, other: Place) -> bool:
    return _begin(one) < _end(other) and _begin(other) < _end(one)


def _begin(place: Place) -> tuple[int, int]:
    return place.line, place.column


def _end(place: Place) -> tuple[float, float]:
    """Without an end: the end of the line."""
    line = place.end_line or place.line
    return line, place.end_column or float("inf")


def _with_runs(source: Finding, runs: Sequence[Finding]) -> Finding:
    for run in runs:
        if _same(source, run):
            source = source.model_copy(
                update={
                    "evidence": "\n".join(text for text in (source.evidence, f"{run.rule}: {run.evidence}") if text),
                    "count": max(source.count, run.count),
                    "layer": source.layer or run.layer,
                    "cost": _both(source.cost, run.cost),
                }
            )
    return source


def _both(one: Cost | None, other: Cost | None) -> Cost | None:
    if one is None or other is None:
        return one or other
    return one.model_copy(update={"text": f"{one.text}; {other.text}", "bytes": one.bytes or other.bytes})
