"""From events to findings: merged by line, with place, chain and counts. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from togi.lint.finding import Place
from togi.lint.trace.record import Event, Frame, Trace

_LIBRARIES = ("site-packages", "dist-packages")


def by_line(events: Iterable[Event]) -> list[list[Event]]:
    """Events grouped by the user's line; each group with the most frequent one first."""
    groups: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        place = event.stack[0] if event.stack else None
        groups.setdefault((place.path, place.line) if place else ("", 0), []).append(event)
    return [sorted(group, key=lambda event: -event.count) for group in groups.values()]


def place_of(event: Event) -> Place | None:
    """Where the event happened; None where no line of the user's is known."""
    if not event.stack:
        return None
    frame = event.stack[0]
    return Place(
        path=shown(frame.path),
        line=frame.line,
        column=frame.column,
        end_line=frame.end_line,
        end_column=frame.end_column,
    )


def shown(path: str) -> str:
    """A path as the user would type it."""
    full = Path(path)
    if full.is_absolute() and full.is_relative_to(Path.cwd()):
        full = full.relative_to(Path.cwd())
    return str(full).replace(os.sep, "/")


def evidence(events: Sequence[Event], trace: Trace) -> str:
    """What was called how often, on what, and the chain of calls that led there."""
    seen = "; ".join(dict.fromkeys(_seen(event) for event in events))
    lines = [f"{seen}, in {_per(trace)}."]
    event = events[0]
    if event.detail:
        lines.append(event.detail)
    if len(event.stack) > 1:
        lines.append("Called from " + ", from ".join(_frame(frame) for frame in _telling(event.stack[1:])) + ".")
    if event.backward:
        lines.append("It happens in the backward pass.")
    return "\n".join(lines)


def _seen(event: Event) -> str:
    shapes = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in zip(event.dtypes, event.shapes, strict=False))
    return f"{event.op}{f' of {shapes}' if shapes else ''}, {times(event.count)}"


def _telling(stack: Sequence[Frame]) -> Sequence[Frame]:
    """Not the calls through nn.Module's children in the same library: the first frames, and the user's own last."""
    own = [frame for frame in stack if not any(name in frame.path for name in _LIBRARIES)]
    return [*stack[:3], *[frame for frame in own[:2] if frame not in stack[:3]]]


def _frame(frame: Frame) -> str:
    return f"{shown(frame.path)}:{frame.line} in {frame.function}"


def total(events: Iterable[Event]) -> int:
    return sum(event.count for event in events)


def total_bytes(events: Iterable[Event]) -> int:
    return sum(event.bytes for event in events)


def times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"


def _per(trace: Trace) -> str:
    if trace.step:
        return "one training step"
    return "one forward pass" if trace.samples == 1 else f"one forward pass over {trace.samples} samples"


def per_step(trace: Trace) -> str:
    """``per step`` or ``per pass``."""
    return "per step" if trace.step else "per pass"
