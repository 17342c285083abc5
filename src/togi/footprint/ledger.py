"""Every tensor storage that lives while a run is watched, from birth to death, with who asked for it.

It sees what passes the dispatcher: the storages of results, real or fake, so the same book serves the account of a run
that happens and the prediction of one that does not. What a kernel takes and gives back inside one operation is not in
it; the account finds that with the allocator's own events.

Source: the weak references on storages are those of torch.distributed._tools.mem_tracker.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Where(NamedTuple):
    """What was running when something happened."""

    module: str = ""
    """Qualified name of the innermost module; empty for the outermost and outside of any."""
    line: str = ""
    """``file.py:12 in name``: the innermost line of the user's source."""
    phase: str = ""
    """``forward``, ``backward`` or ``optimizer``; empty for what was there before."""


_NOWHERE = Where()


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """In sequences and dicts, as operations take and give them. With ``tree_leaves`` watching small operations takes 5
    to 10 % longer."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


@dataclass(eq=False)
class Piece:
    """One storage. Times count dispatched operations; ``died`` is None while it lives."""

    bytes: int
    device: str
    born: int
    op: str = ""
    """The operation that made it; empty for what was there before."""
    where: Where = _NOWHERE
    used: int = 0
    """The last operation that made or read it."""
    died: int | None = None
    category: str = ""

    def alive_at(self, operation: int) -> bool:
        """Whether it lived during that operation, as a result of it too."""
        return self.born <= operation and (self.died is None or self.died >= operation)


@dataclass
class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager round the run. ``enter`` what is there before it, then run."""

    where: Callable[[], Where] = Where
    """Asked before every operation."""
    pieces: list[Piece] = field(default_factory=list)
    current_bytes: int = 0
    peak_bytes: int = 0
    peak_at: int = 0
    """The operation during which the peak was reached."""
    operations: int = 0

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive: dict[int, tuple[weakref.ref[Any], Piece]] = {}
        self._now = _NOWHERE

    def enter(self, tensors: Iterable[Tensor], category: str, module: str = "") -> None:
        """Book what exists already (parameters, inputs, ...); a storage that is booked keeps its first category."""
        for tensor in tensors:
            self._book(tensor, category=category, where=Where(module))

    def piece_of(self, tensor: Tensor) -> Piece | None:
        """The living piece that holds the tensor's values."""
        found = self._alive.get(tensor.untyped_storage()._cdata)
        return found[1] if found else None

    @property
    def living(self) -> Iterator[Piece]:
        return (piece for _, piece in self._alive.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # a fake tensor is asked for its device: no operation of the run
            return func(*args)
        self.operations += 1
        self._now = self.where()
        for tensor in tensors_in((*args, *(kwargs or {}).values())):
            self._read(tensor)
        results = func(*args, **(kwargs or {}))
        for tensor in tensors_in((results,)):
            self._book(tensor, op=str(func), where=self._now)
        return results

    def _read(self, tensor: Tensor) -> None:
        """What was made before the run, or behind the dispatcher's back, is booked when it is first seen."""
        piece = self.piece_of(tensor)
        if piece is None:
            self._book(tensor)
        else:
            piece.used = self.operations

    def _book(self, tensor: Tensor, *, op: str = "", category: str = "", where: Where = _NOWHERE) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if known := self._alive.get(key):
            if known[1].bytes == size:
                return
            self._bury(key, known[1])  # resized in place: the old block is gone
        piece = Piece(
            bytes=size,
            device=tensor.device.type,
            born=self.operations,
            used=self.operations,
            op=op,
            where=where,
            category=category,
        )
        self._alive[key] = (weakref.ref(storage, lambda _: self._bury(key, piece)), piece)
        self._add(piece, storage)

    def _add(self, piece: Piece, storage: Any) -> None:
        self.pieces.append(piece)
        self.current_bytes += piece.bytes
        if self.current_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_at = self.current_bytes, self.operations

    def _bury(self, key: int, piece: Piece) -> None:
        if piece.died is not None:
            return
        piece.died = self.operations
        self.current_bytes -= piece.bytes
        if (found := self._alive.get(key)) and found[1] is piece:
            del self._alive[key]
