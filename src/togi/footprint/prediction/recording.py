"""A run on fake tensors, written down: what lived when, and each operation with what it was called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from togi.footprint.ledger import Ledger, Piece, Where

Mend = Callable[[Any, Any, Any, Any], Any]
"""(operation, args, kwargs, results) -> results."""


def as_they_are(_func: Any, _args: Any, _kwargs: Any, results: Any) -> Any:
    """The results, unchanged."""
    return results


class TensorSpec(NamedTuple):
    """What a kernel's need of memory depends on."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Of the storage that holds it; a view of more counts as itself."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Call:
    """One dispatched operation."""

    number: int
    func: Any
    args: Any
    """Positional and keyword arguments, with ``TensorSpec`` for tensors."""
    before_bytes: int
    """Alive when it began."""
    made_bytes: int
    where: Where
    grad_enabled: bool
    """Some kernels save what backward needs only then."""

    @property
    def key(self) -> str:
        return f"{self.func}{self.args}{self.grad_enabled}"

    @property
    def read_bytes(self) -> int:
        return sum(leaf.bytes for leaf in tree_leaves(self.args, is_leaf=_is_spec) if isinstance(leaf, TensorSpec))


@dataclass
class Recording(Ledger):  # type: ignore[no-untyped-call]
    """A ledger that also keeps the calls and the order of births (+1) and deaths (-1)."""

    calls: list[Call] = field(default_factory=list)
    events: list[tuple[int, Piece | Call]] = field(default_factory=list)
    """(1, piece) is born, (-1, piece) dies, (0, call) begins."""
    mend_results: Mend = as_they_are
    """Replaces results whose size the fake kernel does not know."""
    backward_at: int | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.backward_at is None and torch._C._current_autograd_node() is not None:
            self.backward_at = self.operations
        grad_enabled = torch.is_grad_enabled()
        before, place, number = self.current_bytes, len(self.events), self.operations
        specs = specs_of((args, kwargs or {}))
        results = self._mended(func, args, kwargs or {}, super().__torch_dispatch__(func, types, args, kwargs))
        if self.operations == number:  # the ledger counts no question, such as for the device
            return results
        call = Call(self.operations, func, specs, before, self._made_since(place), self._now, grad_enabled)
        self.calls.append(call)
        self.events.insert(place, (0, call))
        return results

    def _mended(self, func: Any, args: Any, kwargs: Any, results: Any) -> Any:
        mended = self.mend_results(func, args, kwargs, results)
        if mended is not results:
            for leaf in tree_leaves(mended):
                if isinstance(leaf, Tensor):
                    self._book(leaf, op=str(func), where=self._now)
        return mended

    def _made_since(self, place: int) -> int:
        return sum(event.bytes for sign, event in self.events[place:] if sign == 1 and isinstance(event, Piece))

    def _add(self, piece: Piece, storage: Any) -> None:
        super()._add(piece, storage)
        self.events.append((1, piece))

    def _bury(self, key: int, piece: Piece) -> None:
        living = piece.died is None
        super()._bury(key, piece)
        if living:
            self.events.append((-1, piece))


def specs_of(values: Any) -> Any:
    """The same structure with a ``TensorSpec`` in place of every tensor."""
    return tree_map_only(Tensor, lambda t: TensorSpec(tuple(t.shape), tuple(t.stride()), t.dtype), values)


def _is_spec(value: Any) -> bool:
    return isinstance(value, TensorSpec)
