"""``torch.cuda.set_sync_debug_mode`` on a real GPU: its warnings, each with the line of the thread that raised it.

The mode is global to the process, not to a thread: everything that runs meanwhile is seen, and another user of it would
be disturbed. It is put back on every way out. What autograd's own threads warn of is delayed by PyTorch to the end of
the backward pass and belongs then to the line that started it; hooks and custom functions have their own lines.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from togi.lint.trace.record import Event
from togi.lint.trace.recorder import Recorder

MESSAGE = "called a synchronizing CUDA operation"


@contextlib.contextmanager
def debug_mode_events(names: dict[int, str] | None = None) -> Iterator[list[Event]]:
    """A list that holds, after the block, one event per line that made the host wait."""
    recorder = Recorder(names)
    found: list[Event] = []
    shown = warnings.showwarning

    def show(message: Any, category: Any, filename: Any, lineno: Any, file: Any = None, line: Any = None) -> None:
        if MESSAGE in str(message):
            recorder.record("wait", "a synchronizing CUDA operation", "PyTorch reports a synchronisation", waits=True)
        else:
            shown(message, category, filename, lineno, file, line)

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{MESSAGE}.*")
        warnings.showwarning = show
        try:
            torch.cuda.set_sync_debug_mode("warn")
            recorder.armed = True
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
            found.extend(recorder.events)


def confirmed(watched: Iterable[Event], reported: Iterable[Event]) -> tuple[Event, ...]:
    """Events of the watch, told apart by what the debug mode reported at their lines; then those only it reported."""
    seen = {line for event in reported if (line := _line(event)) is not None}
    events = [
        event.model_copy(update={"seen_by_debug_mode": _line(event) in seen}) if event.waits else event
        for event in watched
    ]
    known = {_line(event) for event in events if event.waits}
    return (*events, *(event for event in reported if _line(event) not in known))


def agreement(watched: Iterable[Event], reported: Iterable[Event]) -> str:
    """How far both saw the same, in a sentence."""
    ours = {_line(event) for event in watched if event.waits} - {None}
    theirs = {_line(event) for event in reported} - {None}
    return (
        f"PyTorch's debug mode reported synchronisations at {len(theirs)} lines, the watch at {len(ours)}; "
        f"{len(ours & theirs)} are the same."
    )


def _line(event: Event) -> tuple[str, int] | None:
    return (event.stack[0].path, event.stack[0].line) if event.stack else None
