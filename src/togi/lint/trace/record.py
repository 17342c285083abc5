"""What was seen in one watched run: plain records, no torch, no tensor."""

from __future__ import annotations

from typing import Literal

from togi.core.records import Record

Kind = Literal["wait", "dynamic-shape", "copy", "mixed-devices", "promotion", "layout", "graph-break", "recompilation"]


class Frame(Record):
    """One line of a Python call stack."""

    path: str
    line: int
    function: str
    code: str = ""
    column: int = 1
    end_line: int | None = None
    end_column: int | None = None


class Event(Record):
    """Something that happened once or more often at one line of the user's code during one step."""

    kind: Kind
    op: str
    """What was called, as the user knows it: ``Tensor.item``, ``torch.nonzero``, ``torch.cuda.synchronize``."""
    why: str
    """A clause that completes "here ...": ``its value is read by the host``."""
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
    events: tuple[Event, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, *kinds: Kind) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.kind in kinds)
