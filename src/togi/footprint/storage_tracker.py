"""Tracks every tensor storage of a run from allocation to release, with the code that asked for it.

It sees what passes the dispatcher: the storages of results, real or fake, so the same tracker serves the account of a
run that happens and the prediction of one that does not. What a kernel takes and gives back inside one operation is not
in it; the account finds that with the allocator's own events.

Source: the weak references on storages are those of torch.distributed._tools.mem_tracker.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from togi.core.quantities import first_line
from togi.footprint.account.record import Category
from togi.torch_internals.layouts import NoStorage, storages_of
from togi.torch_internals.modes import DispatchObserver
from togi.torch_internals.modules import FORWARD, Where
from togi.torch_internals.tensors import operands, storage_key

if TYPE_CHECKING:
    from togi.footprint.step import Step

_NOWHERE = Where()
_DEVICE_OF_FAKE = torch.ops.prim.device.default


@dataclass(eq=False, slots=True)
class StorageLifetime:
    """One storage. Times count dispatched operations; ``died`` is None while it lives."""

    bytes: int
    born: int
    op: str = ""
    """The operation that made it; empty for what was there before."""
    where: Where = _NOWHERE
    used: int = 0
    """The last operation that made or read it."""
    died: int | None = None
    category: str = ""

    def alive_at(self, operation: int) -> bool:
        """True if it lived during that operation, as a result of it too."""
        return self.born <= operation and (self.died is None or self.died >= operation)


def category_of(lifetime: StorageLifetime, backward_at: int | None, kept: Container[StorageLifetime] = ()) -> Category:
    """The purpose of the storage.

    Args:
        backward_at: the last operation before backward began; None where there was no backward.
        kept: what autograd keeps: an activation even where it is something else (an output) too.
    """
    if lifetime.category and lifetime not in kept:
        return Category(lifetime.category)
    made_forward = lifetime.where.phase == FORWARD and lifetime.op != ""
    if made_forward and backward_at is not None and lifetime.born <= backward_at and lifetime.alive_at(backward_at + 1):
        return Category.ACTIVATION
    return Category(lifetime.category) if lifetime.category else Category.TEMPORARY


_UNMARKED = nullcontext()


def _unmarked(_number: int) -> AbstractContextManager[Any]:
    return _UNMARKED


@cache
def _name(operator: Any) -> str:
    return str(operator)


@dataclass
class StorageTracker(DispatchObserver):
    """A context manager round the run. ``add_existing`` what is there before it, then run."""

    supports_higher_order_operators = False  # what torch.cond runs inside could not be tracked

    where: Callable[[], Where] = Where
    """Asked before every operation."""
    mark: Callable[[int], AbstractContextManager[Any]] = _unmarked
    """Entered round every operation, by its number."""
    counts_existing: bool = True
    """What no operation made (parameters, inputs) is in the bytes; it has a lifetime in any case."""
    lifetimes: list[StorageLifetime] = field(default_factory=list)
    current_bytes: int = 0
    peak_bytes: int = 0
    peak_at: int = 0
    """The operation during which the peak was reached."""
    operations: int = 0
    uncounted: dict[str, None] = field(default_factory=dict)
    """Kinds of tensors whose memory torch does not show, in the order in which they were met."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what is not in the figures."""
        return tuple(f"Not counted: tensors of {kind}." for kind in self.uncounted)

    def __post_init__(self) -> None:
        super().__init__()
        self._alive: dict[int, tuple[weakref.ref[Any], StorageLifetime]] = {}
        self._now = _NOWHERE

    def add_existing(self, tensors: Iterable[Tensor], category: str, module: str = "") -> None:
        """Track what exists already (parameters, inputs, ...); a storage keeps its first category."""
        for tensor in tensors:
            self._track(tensor, category=category, where=Where(module))

    def add_step(self, step: Step) -> None:
        """Track what is there when a step begins."""
        for category, tensors in step.existing():
            self.add_existing(tensors, category)

    def categorise(self, tensors: Iterable[Tensor], category: str) -> None:
        """Say what storages are for that have no category yet."""
        for lifetime in (lifetime for tensor in tensors for lifetime in self.lifetimes_behind(tensor)):
            lifetime.category = lifetime.category or category

    def lifetime_of(self, tensor: Tensor) -> StorageLifetime | None:
        """The lifetime of the living storage that holds the tensor (of the first, where it has several); None where
        none is tracked."""
        return next(iter(self.lifetimes_behind(tensor)), None)

    def lifetimes_behind(self, tensor: Tensor) -> list[StorageLifetime]:
        """The lifetimes of all storages that are tracked of the tensor: a sparse one has several."""
        entries = (self._alive.get(storage_key(storage)) for storage in self._storages(tensor))
        return [known[1] for known in entries if known is not None]

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if operator is _DEVICE_OF_FAKE:  # a fake tensor is asked for its device: no operation of the run
            return operator(*args)
        self.operations += 1
        self._now = self.where()
        for tensor in operands((*args, *kwargs.values()) if kwargs else args):
            self._read(tensor)
        with self.mark(self.operations):
            results = operator(*args, **kwargs)
        for tensor in (results,) if isinstance(results, Tensor) else operands((results,)):
            self._track(tensor, _name(operator), self._now)
        return results

    def _read(self, tensor: Tensor) -> None:
        """Note that it is read. What was made before the run, or behind the dispatcher's back, is tracked from here
        on."""
        for storage in self._storages(tensor):
            known = self._alive.get(storage_key(storage))
            if known is None:
                self._track_storage(storage)
            else:
                known[1].used = self.operations

    def _track(self, tensor: Tensor, op: str = "", where: Where = _NOWHERE, category: str = "") -> None:
        for storage in self._storages(tensor):
            self._track_storage(storage, op, where, category)

    def _storages(self, tensor: Tensor) -> list[torch.UntypedStorage]:
        """Never raises: it runs inside of the user's code."""
        try:
            return storages_of(tensor)
        except NoStorage as reason:
            self.uncounted[str(reason)] = None
        except Exception as error:  # foreign code: a tensor subclass, a backend
            self.uncounted[f"{type(tensor).__name__} ({type(error).__name__}: {first_line(error)})"] = None
        return []

    def _track_storage(
        self, storage: torch.UntypedStorage, op: str = "", where: Where = _NOWHERE, category: str = ""
    ) -> None:
        key, size = storage_key(storage), storage.nbytes()
        if known := self._alive.get(key):
            if known[1].bytes == size:
                return
            self._end(key, known[1])  # resized in place: the old memory is gone
        now = self.operations
        lifetime = StorageLifetime(size, now, op, where, now, None, category)
        self._alive[key] = (weakref.ref(storage, lambda _: self._end(key, lifetime)), lifetime)
        self._begin(lifetime, storage)

    def _counts(self, lifetime: StorageLifetime) -> bool:
        return self.counts_existing or bool(lifetime.op)

    def _begin(self, lifetime: StorageLifetime, storage: Any) -> None:
        self.lifetimes.append(lifetime)
        if not self._counts(lifetime):
            return
        self.current_bytes += lifetime.bytes
        if self.current_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_at = self.current_bytes, self.operations

    def _end(self, key: int, lifetime: StorageLifetime) -> None:
        if lifetime.died is not None:
            return
        lifetime.died = self.operations
        if self._counts(lifetime):
            self.current_bytes -= lifetime.bytes
        if (entry := self._alive.get(key)) and entry[1] is lifetime:
            del self._alive[key]
