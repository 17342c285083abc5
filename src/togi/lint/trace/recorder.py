"""Collects events of one step from all threads, and adds up those that happen at the same line."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

from torch import Tensor

from togi.lint.trace.record import Event, Kind
from togi.lint.trace.stack import described, layer_of, user_frames
from togi.torch_internals.autograd import in_backward
from togi.torch_internals.modes import without_torch_function

_Key = tuple[Kind, str, str, str, int, bool]


class Recorder:
    """Events by kind, operation and line. Records nothing while ``armed`` is false (during the warm-up)."""

    def __init__(self, names: dict[int, str] | None = None) -> None:
        self.armed = False
        self.names = names or {}
        self._events: dict[_Key, Event] = {}
        self._lock = threading.Lock()
        self._quiet = threading.local()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """The calling thread records nothing inside: what it does there is a means, already accounted for."""
        before = getattr(self._quiet, "on", False)
        self._quiet.on = True
        try:
            yield
        finally:
            self._quiet.on = before

    @property
    def events(self) -> tuple[Event, ...]:
        with self._lock:
            return tuple(self._events.values())

    def record(
        self,
        kind: Kind,
        op: str,
        why: str,
        *,
        tensors: Iterable[Tensor] = (),
        moved_bytes: int = 0,
        waits: bool = False,
        seen_by_debug_mode: bool = True,
        detail: str = "",
    ) -> None:
        """One occurrence, at the line that the calling thread is in."""
        if not self.armed or getattr(self._quiet, "on", False):
            return
        with without_torch_function():
            concerned = list(tensors)
            shapes = tuple(tuple(int(size) for size in t.shape) for t in concerned)
            dtypes = tuple(str(t.dtype).removeprefix("torch.") for t in concerned)
        frames = user_frames()
        event = Event(
            kind=kind,
            op=op,
            why=why,
            stack=described(frames),
            layer=layer_of(frames, self.names),
            shapes=shapes,
            dtypes=dtypes,
            bytes=moved_bytes,
            waits=waits,
            seen_by_debug_mode=seen_by_debug_mode,
            backward=in_backward(),
            detail=detail,
        )
        self.add(event)

    def add(self, event: Event) -> None:
        place = event.stack[0] if event.stack else None
        key = (event.kind, event.op, event.why, place.path if place else "", place.line if place else 0, event.waits)
        with self._lock:
            known = self._events.get(key)
            if known is not None:
                event = known.model_copy(
                    update={"count": known.count + event.count, "bytes": known.bytes + event.bytes}
                )
            self._events[key] = event
