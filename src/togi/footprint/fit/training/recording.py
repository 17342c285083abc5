"""A dispatch mode round a forward pass: for every result, the operation that made it and the values that it read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from togi.footprint.fit.training.recompute import Operation, Slot, StoredValue, flat, generator_of, is_plain, replaced
from togi.torch_internals.modes import DispatchObserver
from togi.torch_internals.operators import schema_of
from togi.torch_internals.tensors import storage_key

_OPAQUE_NAMESPACES = ("c10d", "_c10d_functional", "_dtensor", "c10d_functional")
"""Operations between processes: all of them take part, or none."""
_OPAQUE = ("set_", "resize_", "resize_as_", "record_stream", "share_memory_")
_STATISTICS = ("running_mean", "running_var")
"""Arguments that batch norm's kernels write into, whether or not their schema says so."""


@dataclass(frozen=True)
class _SchemaFacts:
    """An operator as its schema describes it."""

    name: str
    writes: tuple[str, ...]
    names: tuple[str, ...]
    seeded: bool
    makes: bool
    """It returns something that is not one of its arguments."""
    opaque: bool


@cache
def _kind(function: Any) -> _SchemaFacts:
    schema = schema_of(function)
    writes = tuple(
        argument.name
        for argument in schema.arguments
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in _STATISTICS
    )
    namespace, _, name = schema.name.partition("::")
    return _SchemaFacts(
        name=str(function),
        writes=writes,
        names=tuple(argument.name for argument in schema.arguments),
        seeded=torch.Tag.nondeterministic_seeded in function.tags,
        makes=any(result.alias_info is None for result in schema.returns),
        opaque=namespace in _OPAQUE_NAMESPACES or name in _OPAQUE,
    )


@dataclass
class _RecordedOperation:
    """The value that a living storage holds."""

    storage: weakref.ref[Any]
    value: Callable[[], StoredValue | None]


class ForwardRecording(DispatchObserver):
    """Entered round one forward pass. ``value_of(tensor)`` then names what a tensor holds."""

    supports_higher_order_operators = False  # what torch.cond runs inside could not be repeated

    def __init__(self, keeps: Callable[[str], bool] = lambda _: False) -> None:
        super().__init__()
        self._keeps = keeps
        """Asked for every result that is read: whether it is held, to make others of."""
        self._current: dict[int, _RecordedOperation] = {}
        self._calls: dict[Any, int] = {}
        self._number = 0

    def value_of(self, tensor: Tensor) -> StoredValue | None:
        """The value that the storage holds now; None where no recorded operation has seen it, or it has not just one
        storage."""
        if not is_plain(tensor):
            return None
        entry = self._current.get(storage_key(tensor.untyped_storage()))
        return entry.value() if entry is not None else None

    def hold(self, value: StoredValue, tensor: Tensor) -> None:
        """``value.hold(tensor)``. From now on it lives as long as somebody wants it, and not as long as its storage."""
        value.hold(tensor)
        entry = self._current.get(storage_key(tensor.untyped_storage()))
        if entry is not None and entry.value() is value:
            entry.value = weakref.ref(value)

    def close(self) -> None:
        """Forget everything that no saved tensor needs."""
        self._current.clear()

    def operation(self, operator: Any, args: Any, kwargs: Any) -> Any:
        kind = _kind(operator)
        given: list[Tensor] = []
        replaced((args, kwargs), Tensor, given.append)
        known = all(is_plain(tensor) and not tensor.is_inference() for tensor in given)
        if kind.opaque or kwargs.get("generator") is not None or not known:
            results = operator(*args, **kwargs)
            self._forget(results, given if kind.writes else ())
            return results
        state = generator_of(args, kwargs).get_state() if kind.seeded else None
        operation = self._read(operator, kind, args, kwargs)
        results = self._run(operator, args, kwargs)
        operation.random_state = state
        self._enter_results(operation, kind, given, results)
        return results

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    def _made(self, operation: Operation, name: str, values: Sequence[tuple[StoredValue, Tensor]]) -> None:
        """Told of every call that made values, in place or not, with a tensor that holds each."""

    def _read(self, func: Any, kind: _SchemaFacts, args: Any, kwargs: Any) -> Operation:
        """The call with slots for tensors. What is about to be overwritten, and cannot be made again, is copied."""
        self._number += 1
        writes: set[int] = set()
        slots: list[Slot] = []
        needed: list[bool] = []

        def slot_of(tensor: Tensor) -> Slot:
            value = self._readable(tensor)
            needed.append(value.read or kind.makes)
            value.read = True
            slots.append(Slot(value, tensor))
            return slots[-1]

        named: dict[str, Any] = {}
        for name, argument in [*zip(kind.names, args, strict=False), *kwargs.items()]:
            before = len(slots)
            named[name] = replaced(argument, Tensor, slot_of)
            if name in kind.writes:
                writes.update(range(before, len(slots)))
        for at in writes:
            if needed[at] and isinstance(held := slots[at].value.held, Tensor):
                slots[at].value.hold(flat(held).clone())
        arguments = tuple(named[name] for name in kind.names[: len(args)])
        keywords = {name: named[name] for name in kwargs}
        return Operation(self._number, func, arguments, keywords, frozenset(writes))

    def _readable(self, tensor: Tensor) -> StoredValue:
        value = self.value_of(tensor)
        if value is None:
            value = StoredValue()
            self._enter(tensor, value)
        if value.held is None and (value.maker is None or self._keeps(value.key)):
            self.hold(value, tensor)
        return value

    def _enter_results(self, operation: Operation, kind: _SchemaFacts, given: Sequence[Tensor], results: Any) -> None:
        count = self._calls.get(kind.name, 0)
        key = f"{kind.name}#{count}"
        before = {storage_key(tensor.untyped_storage()) for tensor in given}
        fresh: list[Tensor] = []
        replaced(results, Tensor, fresh.append)
        values: list[tuple[StoredValue, Tensor]] = []
        for place, tensor in enumerate(fresh):
            if is_plain(tensor) and storage_key(tensor.untyped_storage()) not in before:
                value = StoredValue(operation, place=place, key=f"{key}.{place}" if place else key)
                self._enter(tensor, value)
                values.append((value, tensor))
        for at in sorted(operation.writes):
            values.append((self._overwritten(operation, at, given[at], key), given[at]))
        operation.made = [weakref.ref(value) for value, _ in values]
        if values:
            self._calls[kind.name] = count + 1
            self._made(operation, key, values)

    def _overwritten(self, operation: Operation, at: int, tensor: Tensor, key: str) -> StoredValue:
        """The new value of a storage that an operation wrote into. One that is held (a buffer, an input) is not made
        again."""
        old = operation.slots()[at].value
        again = old.maker is not None
        value = StoredValue(operation, place=at, in_place=True, key=f"{key}.w{at}") if again else StoredValue()
        self._enter(tensor, value)
        return value

    def _enter(self, tensor: Tensor, value: StoredValue) -> None:
        storage = tensor.untyped_storage()
        address = storage_key(storage)
        current = self._current

        def gone(reference: weakref.ref[Any]) -> None:
            if (entry := current.get(address)) is not None and entry.storage is reference:
                del current[address]

        current[address] = _RecordedOperation(weakref.ref(storage, gone), lambda: value)

    def _forget(self, results: Any, written: Sequence[Tensor]) -> None:
        """Enter values that cannot be made again: they are held as soon as somebody reads them."""
        tensors: list[Tensor] = []
        replaced(results, Tensor, tensors.append)
        unseen = [tensor for tensor in tensors if is_plain(tensor) and self.value_of(tensor) is None]
        for tensor in [*unseen, *filter(is_plain, written)]:
            self._enter(tensor, StoredValue())
