"""The record of one watched run, and how its events become findings: merged by line, with place, chain and counts.

No torch and no tensor: the only module here that the parent process may import.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from togi.core.records import Record
from togi.core.user_code import Origin, origin
from togi.lint.finding import Place, shown

Kind = Literal[
    "wait",
    "dynamic-shape",
    "copy",
    "mixed-devices",
    "promotion",
    "layout",
    "graph-break",
    "recompilation",
    "cuda-graph",
]


class Frame(Record):
    """One line of a Python call stack."""

    path: str
    line: int
    function: str
    code: str = ""
    column: int = 1
    end_line: int | None = None
    end_column: int | None = None


class StepEvent(Record):
    """Something that happened once or more often at one line of the user's code during one step."""

    kind: Kind
    op: str
    """What was called, as the user knows it: ``Tensor.item``, ``torch.nonzero``, ``torch.cuda.synchronize``."""
    why: str
    """A clause that completes "here ...": ``its value is read by the host``. Of kind ``cuda-graph``: the cause."""
    stack: tuple[Frame, ...] = ()
    """The user's frames, innermost first: those of torch, of the standard library and of togi are left out."""
    layer: str = ""
    """Qualified name of the innermost module whose code runs in the stack."""
    count: int = 1
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the tensors concerned, the first time."""
    dtypes: tuple[str, ...] = ()
    bytes: int = 0
    """Moved or converted, over all ``count`` times."""
    waits: bool = False
    """The host waits for the GPU here."""
    seen_by_debug_mode: bool = True
    """Whether ``torch.cuda.set_sync_debug_mode`` reports such a wait; what it cannot see is in docs/trace.md."""
    backward: bool = False
    detail: str = ""
    """More for people: guard that failed, dtypes from and to, sizes seen."""


class Trace(Record):
    """The record of one watched step."""

    mode: Literal["simulated", "watched", "cuda"]
    """``simulated``: ran on the CPU while it seemed to be CUDA; ``watched``: the same without the appearance, because
    the subject failed under it; ``cuda``: on a real GPU."""
    step: bool = False
    """A training step was watched, else a forward pass."""
    samples: int = 1
    """Passes watched; counts are of all of them."""
    events: tuple[StepEvent, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, *kinds: Kind) -> tuple[StepEvent, ...]:
        return tuple(event for event in self.events if event.kind in kinds)


def by_line(events: Iterable[StepEvent]) -> list[list[StepEvent]]:
    """Events grouped by the user's line; each group with the most frequent one first."""
    groups: dict[tuple[str, int] | None, list[StepEvent]] = {}
    for event in events:
        groups.setdefault(line_of(event), []).append(event)
    return [sorted(group, key=lambda event: -event.count) for group in groups.values()]


def line_of(event: StepEvent) -> tuple[str, int] | None:
    """File and number of the user's line; None where it is not known."""
    return (event.stack[0].path, event.stack[0].line) if event.stack else None


def place_of(event: StepEvent) -> Place | None:
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


def evidence(events: Sequence[StepEvent], trace: Trace) -> str:
    """What was called how often, on what, and the chain of calls that led there."""
    operations = "; ".join(dict.fromkeys(_seen(event) for event in events))
    lines = [f"{operations}, in {_per(trace)}."]
    event = events[0]
    if event.detail:
        lines.append(event.detail)
    if len(event.stack) > 1:
        lines.append("Called from " + ", from ".join(_frame(frame) for frame in _telling(event.stack[1:])) + ".")
    if event.backward:
        lines.append("It happens in the backward pass.")
    return "\n".join(lines)


def _seen(event: StepEvent) -> str:
    shapes = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in zip(event.dtypes, event.shapes, strict=False))
    return f"{event.op}{f' of {shapes}' if shapes else ''}, {times(event.count)}"


def _telling(stack: Sequence[Frame]) -> Sequence[Frame]:
    """The first frames, and the user's own last; not the calls through children in the same library."""
    own = [frame for frame in stack if origin(frame.path) is Origin.USER]
    return [*stack[:3], *[frame for frame in own[:2] if frame not in stack[:3]]]


def _frame(frame: Frame) -> str:
    return f"{shown(frame.path)}:{frame.line} in {frame.function}"


def total(events: Iterable[StepEvent]) -> int:
    return sum(event.count for event in events)


def total_bytes(events: Iterable[StepEvent]) -> int:
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
