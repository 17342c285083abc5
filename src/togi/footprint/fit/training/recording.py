"""A dispatch mode round a forward pass: for every result, the operation that made it and the values that it read.

Recording a call costs as much time as a small operation takes, and a plan repeats only some. So a recording that is
given ``Repeats`` passes over the calls that are never repeated, once it has seen which these are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from togi.footprint.fit.training.recompute import Operation, Slot, StoredValue, flat, generator_of, is_plain, replaced
from togi.footprint.fit.training.repeats import Repeats
from togi.torch_internals.modes import DispatchObserver, OutsideDynamo
from togi.torch_internals.operators import may_hold_tensors, schema_of
from togi.torch_internals.tensors import operands, storage_key

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
    holders: tuple[int, ...]
    """Places of the arguments that may hold tensors."""
    seeded: bool
    makes: bool
    """It returns something that is not one of its arguments."""
    opaque: bool
    only_views: bool
    """It makes nothing, and writes nothing."""


@cache
def _schema_facts(function: Any) -> _SchemaFacts:
    schema = schema_of(function)
    writes = tuple(
        argument.name
        for argument in schema.arguments
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in _STATISTICS
    )
    makes = any(result.alias_info is None for result in schema.returns)
    namespace, _, name = schema.name.partition("::")
    opaque = namespace in _OPAQUE_NAMESPACES or name in _OPAQUE
    return _SchemaFacts(
        name=str(function),
        writes=writes,
        names=tuple(argument.name for argument in schema.arguments),
        holders=tuple(at for at, argument in enumerate(schema.arguments) if may_hold_tensors(argument)),
        seeded=torch.Tag.nondeterministic_seeded in function.tags,
        makes=makes,
        opaque=opaque,
        only_views=not (makes or writes or opaque),
    )


class _CurrentValue:
    """The value that a living storage holds."""

    __slots__ = ("_strong", "_weak", "storage")

    def __init__(self, storage: weakref.ref[Any], value: StoredValue) -> None:
        self.storage = storage
        self._strong: StoredValue | None = value
        self._weak: weakref.ref[StoredValue] | None = None

    @property
    def value(self) -> StoredValue | None:
        return self._strong if self._weak is None else self._weak()

    def let_go(self, value: StoredValue) -> None:
        """From now on the value lives as long as somebody wants it, and not as long as its storage."""
        self._strong, self._weak = None, weakref.ref(value)


class ForwardRecording(DispatchObserver):
    """Entered round one forward pass. ``value_of(tensor)`` then names what a tensor holds."""

    supports_higher_order_operators = False  # what torch.cond runs inside could not be repeated

    def __init__(self, keeps: Callable[[str], bool] = lambda _: False, repeats: Repeats | None = None) -> None:
        """``repeats``: calls that are not among them are passed over; None: every call is recorded."""
        super().__init__()
        self._keeps = keeps
        """Asked for every result that is read: whether it is held, to make others of."""
        self._pass = repeats.new_pass() if repeats is not None else None
        self._current: dict[int, _CurrentValue] = {}
        self._calls: dict[str, int] = {}
        self._number = 0

    def value_of(self, tensor: Tensor) -> StoredValue | None:
        """The value that the storage holds now; None where no recorded operation has seen it, or it has not just one
        storage."""
        if tensor.layout is not torch.strided:
            return None
        entry = self._current.get(storage_key(tensor.untyped_storage()))
        return entry.value if entry is not None and is_plain(tensor) else None

    def hold(self, value: StoredValue, tensor: Tensor) -> None:
        """``value.hold(tensor)``. From now on it lives as long as somebody wants it, and not as long as its storage."""
        value.hold(tensor)
        entry = self._entry_of(tensor)
        if entry is not None and entry.value is value:
            entry.let_go(value)

    def will_repeat(self, value: StoredValue) -> None:
        """What makes it is repeated when the backward pass asks for it: such calls are recorded in later passes too."""
        if self._pass is not None:
            self._pass.follow(value)

    def will_name(self, value: StoredValue) -> None:
        """Only its key is asked for, in later passes too: it is kept in another form."""
        if self._pass is not None:
            self._pass.add(value)

    def close(self) -> None:
        """Forget everything that no saved tensor needs."""
        self._current.clear()
        if self._pass is not None:
            self._pass.end()

    def operation(self, operator: Any, args: Any, kwargs: Any) -> Any:
        facts = _schema_facts(operator)
        if facts.only_views:  # a tensor is a value and a geometry: nothing new is made
            return operator(*args, **kwargs)
        number = self._calls.get(facts.name, 0)
        self._calls[facts.name] = number + 1
        if self._passes_over(facts, number, args, kwargs):
            return operator(*args, **kwargs)
        return self._recorded(operator, facts, number, args, kwargs)

    def _passes_over(self, facts: _SchemaFacts, number: int, args: Any, kwargs: Any) -> bool:
        """True if the call is not repeated, and does not change what a repeated one has read or made."""
        if self._pass is None or self._pass.is_repeated(facts.name, number):
            return False
        if not (facts.writes or facts.opaque) or not self._current:
            return True
        return not any(map(self._entry_of, operands((args, kwargs))))

    def _entry_of(self, tensor: Tensor) -> _CurrentValue | None:
        """Of its storage, however the tensor sees it."""
        if tensor.layout is not torch.strided:
            return None
        return self._current.get(storage_key(tensor.untyped_storage()))

    def _recorded(self, operator: Any, facts: _SchemaFacts, number: int, args: Any, kwargs: Any) -> Any:
        given = list(operands((args, kwargs)))
        known = all(is_plain(tensor) and not tensor.is_inference() for tensor in given)
        if facts.opaque or kwargs.get("generator") is not None or not known:
            results = operator(*args, **kwargs)
            self._forget(results, given if facts.writes else ())
            return results
        state = generator_of(args, kwargs).get_state() if facts.seeded else None
        operation = self._read(operator, facts, args, kwargs)
        results = self._run(operator, args, kwargs)
        operation.random_state = state
        self._enter_results(operation, f"{facts.name}#{number}", given, results)
        return results

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    def _made(self, operation: Operation, name: str, values: Sequence[tuple[StoredValue, Tensor]]) -> None:
        """Told of every call that made values, in place or not, with a tensor that holds each."""

    def _read(self, func: Any, facts: _SchemaFacts, args: Any, kwargs: Any) -> Operation:
        """The call with slots for tensors. What is about to be overwritten, and cannot be made again, is copied."""
        self._number += 1
        writes: set[int] = set()
        slots: list[Slot] = []
        needed: list[bool] = []

        def slot_of(tensor: Tensor) -> Slot:
            value = self._readable(tensor)
            needed.append(value.read or facts.makes)
            value.read = True
            slots.append(Slot(value, tensor))
            return slots[-1]

        arguments, keywords = list(args), dict(kwargs)
        for place, holder, name in _holders(facts, arguments, keywords):
            before = len(slots)
            holder[place] = replaced(holder[place], Tensor, slot_of)
            if name in facts.writes:
                writes.update(range(before, len(slots)))
        for at in writes:
            if needed[at] and isinstance(held := slots[at].value.held, Tensor):
                slots[at].value.hold(flat(held).clone())
        return Operation(self._number, func, tuple(arguments), keywords, frozenset(writes), slots)

    def _readable(self, tensor: Tensor) -> StoredValue:
        value = self.value_of(tensor)
        if value is None:
            value = StoredValue()
            self._enter(tensor, value)
        if value.held is None and (value.maker is None or self._keeps(value.key)):
            self.hold(value, tensor)
        return value

    def _enter_results(self, operation: Operation, key: str, given: Sequence[Tensor], results: Any) -> None:
        before = {storage_key(tensor.untyped_storage()) for tensor in given}
        values: list[tuple[StoredValue, Tensor]] = []
        for place, tensor in enumerate(operands((results,))):
            if is_plain(tensor) and storage_key(tensor.untyped_storage()) not in before:
                value = StoredValue(operation, place=place, key=f"{key}.{place}" if place else key)
                self._enter(tensor, value)
                values.append((value, tensor))
        for at in sorted(operation.writes):
            values.append((self._overwritten(operation, at, given[at], key), given[at]))
        operation.made = [weakref.ref(value) for value, _ in values]
        if values:
            self._made(operation, key, values)

    def _overwritten(self, operation: Operation, at: int, tensor: Tensor, key: str) -> StoredValue:
        """The new value of a storage that an operation wrote into. One that is held (a buffer, an input) is not made
        again."""
        old = operation.slots[at].value
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

        current[address] = _CurrentValue(weakref.ref(storage, gone), value)

    def _forget(self, results: Any, written: Sequence[Tensor]) -> None:
        """Enter values that cannot be made again: they are held as soon as somebody reads them. A storage is also
        written through views that are not plain tensors (conjugated, negated)."""
        unseen = [tensor for tensor in operands((results,)) if is_plain(tensor) and self.value_of(tensor) is None]
        for tensor in [*unseen, *(tensor for tensor in written if tensor.layout is torch.strided)]:
            self._enter(tensor, StoredValue())


class PlannedRecording(OutsideDynamo, ForwardRecording):
    """Of a pass under a plan, which Dynamo never compiles."""


def _holders(facts: _SchemaFacts, arguments: list[Any], keywords: dict[str, Any]) -> Iterator[tuple[Any, Any, str]]:
    """(place, list or dict, name) of each argument given that may hold tensors, in the order of the call."""
    for at in facts.holders:
        if at < len(arguments):
            yield at, arguments, facts.names[at]
    for name in keywords:
        yield name, keywords, name
