"""Every tensor storage that lives while a run is watched, from birth to death, with who asked for it.

It sees what passes the dispatcher: the storages of results, real or fake, so the same book serves the account of a run
that happens and the prediction of one that does not. What a kernel takes and gives back inside one operation is not in
it; the account finds that with the allocator's own events.

Source: the weak references on storages are those of torch.distributed._tools.mem_tracker.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_OWN = tuple(str(Path(str(module.__file__)).parent) for module in (torch, sys.modules["togi"]))


@dataclass(eq=False)
class Piece:
    """One storage. Times count dispatched operations; ``died`` is None while it lives."""

    bytes: int
    device: str
    born: int
    op: str = ""
    """The operation that made it; empty for what was there before."""
    module: str = ""
    """Qualified name of the innermost module that was running."""
    line: str = ""
    """``file.py:12 in name``: the innermost line of the user's source."""
    phase: str = ""
    """``forward``, ``backward``, ``optimizer``; empty for what was there before."""
    died: int | None = None
    category: str = ""


@dataclass
class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager round the run. ``enter`` what is there before it, then run."""

    module_now: Callable[[], str] = lambda: ""
    """Says which module is running; asked once an operation."""
    phase_now: Callable[[], str] = lambda: ""
    lines: bool = True
    """Look up the user's line for every new storage: a walk up the stack."""
    pieces: list[Piece] = field(default_factory=list)
    current_bytes: int = 0
    peak_bytes: int = 0
    peak_at: int = 0
    """The operation during which the peak was reached."""
    operations: int = 0

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive: dict[int, tuple[weakref.ref[Any], Piece]] = {}

    def enter(self, tensors: Iterable[Tensor], category: str) -> None:
        """Book what exists already (parameters, inputs, ...); a storage that is booked keeps its first category."""
        for tensor in tensors:
            self._book(tensor, category=category)

    def piece_of(self, tensor: Tensor) -> Piece | None:
        """The living piece that holds the tensor's values."""
        found = self._alive.get(tensor.untyped_storage()._cdata)
        return found[1] if found else None

    @property
    def living(self) -> Iterator[Piece]:
        return (piece for _, piece in self._alive.values())

    def alive_at(self, operation: int) -> Iterator[Piece]:
        """What lived during that operation, its results included."""
        return (p for p in self.pieces if p.born <= operation and (p.died is None or p.died >= operation))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        results = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(results):
            if isinstance(leaf, Tensor):
                self._book(leaf, op=str(func))
        return results

    def _book(self, tensor: Tensor, *, op: str = "", category: str = "") -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        piece = Piece(bytes=storage.nbytes(), device=tensor.device.type, born=self.operations, op=op, category=category)
        if op:
            piece.module, piece.phase = self.module_now(), self.phase_now()
            piece.line = users_line(sys._getframe(2)) if self.lines else ""
        self.pieces.append(piece)
        self._alive[key] = (weakref.ref(storage, lambda _: self._bury(key, piece)), piece)
        self.current_bytes += piece.bytes
        if self.current_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_at = self.current_bytes, self.operations

    def _bury(self, key: int, piece: Piece) -> None:
        piece.died = self.operations
        self.current_bytes -= piece.bytes
        if (found := self._alive.get(key)) and found[1] is piece:
            del self._alive[key]


def users_line(frame: FrameType | None) -> str:
    """``file.py:12 in name`` of the innermost frame outside torch and togi; empty inside autograd's own thread."""
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((*_OWN, "<")):
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return ""
