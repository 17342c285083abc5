"""Collects the events of one run from all threads, each with the torch function and the user's line that it belongs to.

The user's frames are all but those of torch, of NumPy, of the standard library and of togi. A model from timm or
transformers is the user's code in this sense: its line is where the operation was written.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from togi.core.user_code import user_frames
from togi.lint.trace.record import Frame, Kind, StepEvent
from togi.torch_internals.autograd import in_backward
from togi.torch_internals.modes import without_torch_function

_Key = tuple[Kind, str, str, str, int, bool]


class EventRecorder:
    """Events by kind, operation and line. Records nothing while ``armed`` is false (during the warm-up)."""

    def __init__(self, names: dict[int, str] | None = None) -> None:
        self.armed = False
        self.names = names or {}
        self._events: dict[_Key, StepEvent] = {}
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
    def events(self) -> tuple[StepEvent, ...]:
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
        frames = list(itertools.islice(user_frames(sys._getframe(1)), _DEPTH))
        event = StepEvent(
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

    def add(self, event: StepEvent) -> None:
        place = event.stack[0] if event.stack else None
        key = (event.kind, event.op, event.why, place.path if place else "", place.line if place else 0, event.waits)
        with self._lock:
            earlier = self._events.get(key)
            if earlier is not None:
                event = earlier.model_copy(
                    update={"count": earlier.count + event.count, "bytes": earlier.bytes + event.bytes}
                )
            self._events[key] = event


@dataclass(frozen=True)
class TorchCall:
    """One call of a torch function, with its arguments as they were given."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def short(self) -> str:
        return getattr(self.function, "__name__", "")


class _OpenCalls(threading.local):
    def __init__(self) -> None:
        self.stack: list[TorchCall] = []


_calls = _OpenCalls()


def open_calls() -> list[TorchCall]:
    """The open calls of this thread, outermost first."""
    return _calls.stack


def current_call() -> TorchCall | None:
    return _calls.stack[-1] if _calls.stack else None


def call_name(op: str) -> str:
    """The user's name for what is happening: the outermost open call, else the operator's own (``aten.nonzero``)."""
    return spelled(_calls.stack[0].function) if _calls.stack else op.removesuffix(".default")


def spelled(function: Callable[..., Any]) -> str:
    """``Tensor.item``, ``torch.nonzero``, ``torch.nn.functional.one_hot``."""
    short = getattr(function, "__name__", str(function))
    if hasattr(torch.Tensor, short) and getattr(torch.Tensor, short, None) is function:
        return f"Tensor.{short}"
    module = getattr(function, "__module__", None) or ""
    qualified = getattr(function, "__qualname__", short)
    if "TensorBase" in qualified or getattr(function, "__objclass__", None) in torch.Tensor.__mro__:
        return f"Tensor.{short}"
    if module.startswith("torch._ops"):
        return f"torch.ops{module.removeprefix('torch._ops')}.{short}"
    if module.startswith("torch") and "_C" not in module:
        return f"{module}.{short}"
    return f"torch.{short}" if hasattr(torch, short) else short


_DEPTH = 24
"""Frames kept: a chain longer than that says nothing more."""


def described(frames: list[FrameType]) -> tuple[Frame, ...]:
    return tuple(_described(frame) for frame in frames)


def _described(frame: FrameType) -> Frame:
    path = frame.f_code.co_filename
    line, end_line, column, end_column = _position(frame.f_code, frame.f_lasti)
    line = line or frame.f_lineno
    return Frame(
        path=path,
        line=line,
        function=frame.f_code.co_name,
        code=linecache.getline(path, line).strip(),
        column=_characters(path, line, column or 0) + 1,
        end_line=end_line,
        end_column=None if end_column is None else _characters(path, end_line or line, end_column) + 1,
    )


def _characters(path: str, line: int, width: int) -> int:
    """How many characters the first ``width`` bytes of a line are."""
    return len(linecache.getline(path, line).encode()[:width].decode(errors="ignore")) or width


@functools.lru_cache(maxsize=4096)
def _position(code: CodeType, instruction: int) -> tuple[int | None, int | None, int | None, int | None]:
    """``(line, end line, column, end column)`` of one instruction; lines from 1, columns in bytes from 0."""
    positions = list(code.co_positions())  # type: ignore[attr-defined]  # Python 3.11, as all with torch
    index = instruction // 2
    return positions[index] if 0 <= index < len(positions) else (None, None, None, None)


def layer_of(frames: list[FrameType], names: dict[int, str]) -> str:
    """Name of the innermost module whose method is running. ``names``: module id -> qualified name."""
    for frame in frames:
        owner: Any = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module) and id(owner) in names:
            return names[id(owner)]
    return ""
