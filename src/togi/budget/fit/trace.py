"""One real step, watched: what every forward operation costs and leaves behind, and which module called it.

A region of the forward pass is an interval of operations, because modules are entered and left one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from togi.budget.fit.treated import hooks_allowed
from togi.budget.ledger import Ledger, Piece


@dataclass(eq=False)
class Operation:
    """One operation of the forward pass. ``number`` counts from 1, as the ledger does."""

    number: int
    name: str
    ms: float
    seeded: bool
    """It draws random numbers, so it must be repeated whenever its neighbours are."""
    made: list[Piece] = field(default_factory=list)
    """New storages among its results."""

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.made)


@dataclass(eq=False)
class Call:
    """One call of a module: the operations ``start < number <= stop``."""

    name: str
    start: int
    stop: int = 0
    parent: Call | None = None
    inputs: set[Piece] = field(default_factory=set)
    outputs: set[Piece] = field(default_factory=set)
    hooks_forbidden: bool = False
    changed_inputs: int = 0
    """Inputs that somebody wrote into before the backward pass."""


class Trace(Ledger):  # type: ignore[no-untyped-call]
    """A ledger that also times operations, up to where the backward pass begins."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.forward: list[Operation] = []
        self.calls: list[Call] = []
        self.backward_at: int | None = None
        self.packs: list[int] = []
        """At each tensor that autograd kept: how many operations had run."""
        self.written: dict[Piece, int] = {}
        """The last forward operation that wrote into a storage which it did not make."""
        self._names = {part: name for name, part in module.named_modules()}
        self._open: list[Call] = []
        self._entered: list[tuple[Call, list[Tensor], list[int]]] = []

    @contextmanager
    def following(self) -> Iterator[None]:
        """With hooks on every module, taken away afterwards."""
        with ExitStack() as stack:
            for part in self._names:
                stack.callback(part.register_forward_pre_hook(self._enters, with_kwargs=True).remove)
                stack.callback(part.register_forward_hook(self._leaves, always_call=True).remove)
            stack.enter_context(self)
            yield
        self._entered.clear()

    @contextmanager
    def packing(self) -> Iterator[None]:
        """Round the forward pass: counts what autograd keeps."""
        if not hooks_allowed():
            yield
            return
        with saved_tensors_hooks(self._packed, lambda kept: kept):
            yield

    def forward_ends(self) -> None:
        """Right before ``backward()``: inputs that were written into show now."""
        self.backward_at = self.operations
        for call, inputs, versions in self._entered:
            call.changed_inputs = sum(tensor._version != old for tensor, old in zip(inputs, versions, strict=True))
        self._entered.clear()

    def alive_at_end(self, piece: Piece) -> bool:
        """Whether it lived when the forward pass was over."""
        end = self.backward_at or self.operations
        return piece.died is None or piece.died > end

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.backward_at is not None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        timed, before = _Timed(func), len(self.pieces)
        self._note_writes(func, args, kwargs or {})
        results = super().__torch_dispatch__(timed, types, args, kwargs)
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        operation = Operation(self.operations, str(func), timed.ms, seeded, self.pieces[before:])
        self.forward.append(operation)
        return results

    def _note_writes(self, func: Any, args: Any, kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        for argument, value in zip(func._schema.arguments, given, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for leaf in tree_leaves(value):
                    if isinstance(leaf, Tensor) and (piece := self.piece_of(leaf)):
                        self.written[piece] = self.operations + 1

    def _packed(self, tensor: Tensor) -> Tensor:
        self.packs.append(self.operations)
        return tensor

    def _enters(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.backward_at is not None:
            return
        call = Call(self._names[module], self.operations, parent=self._open[-1] if self._open else None)
        call.hooks_forbidden = not hooks_allowed()
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and not leaf.is_inference()]
        call.inputs = {piece for leaf in inputs if (piece := self.piece_of(leaf))}
        self._entered.append((call, inputs, [leaf._version for leaf in inputs]))
        self._open.append(call)
        self.calls.append(call)

    def _leaves(self, module: nn.Module, _: Any, output: Any) -> None:
        if self.backward_at is not None or not self._open:
            return
        call = self._open.pop()
        call.stop = self.operations
        call.outputs = {
            piece for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and (piece := self.piece_of(leaf))
        }


class _Timed:
    """An operation that notes how long it took; on a GPU it waits for the end."""

    def __init__(self, func: Any) -> None:
        self._func = func
        self.ms = 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        results = self._func(*args, **kwargs)
        wait_for_device()
        self.ms = (time.perf_counter() - started) * 1e3
        return results

    def __str__(self) -> str:
        return str(self._func)


def wait_for_device() -> None:
    """A GPU works on after a call returns; times are taken when it is done."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
