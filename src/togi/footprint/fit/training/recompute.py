"""Values of a forward pass, the operations that made them, and their recomputation.

A value is what one storage holds after one operation: an in-place operation makes a new value of an old storage. Views
are not values: a tensor is a value and a geometry. So every operation reads values and makes values, and a value is
recomputed by repeating the operations between what is held and what is wanted, once each, in their old order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.core.errors import FitError
from togi.torch_internals.autograd import below_autocast, below_autograd, version_of


class StoredValue:
    """One content of one storage."""

    __slots__ = ("__weakref__", "awaited", "held", "in_place", "key", "maker", "place", "read", "recomputed", "version")

    def __init__(
        self, maker: Operation | None = None, *, place: int = 0, in_place: bool = False, key: str = ""
    ) -> None:
        self.maker = maker
        """Repeating it gives the value; None where that is not possible or not needed, because it is held."""
        self.place = place
        """Which of the operation's results it is; if made in place, which of its slots."""
        self.in_place = in_place
        self.key = key
        """Names it in a plan: operation, number of its call, result."""
        self.held: Any = None
        """A tensor on its storage, or something that ``unpack()`` makes one of."""
        self.version = 0
        self.recomputed: Tensor | None = None
        """Recomputed, and not yet taken by every saved tensor that waits for it."""
        self.awaited = 0
        """How many saved tensors are still to be given out."""
        self.read = False
        """An operation that may be repeated reads it."""

    def hold(self, tensor: Tensor) -> None:
        """Keep the storage; what it was made from is no longer needed."""
        self.held, self.version, self.maker = tensor, version_of(tensor), None


class Operation:
    """One call of an operator. Its tensors are replaced by slots; it holds what it read, but not what it made."""

    __slots__ = ("arguments", "function", "keywords", "made", "number", "random_state", "slots", "writes")

    def __init__(
        self,
        number: int,
        function: Any,
        arguments: Any,
        keywords: Any,
        writes: frozenset[int],
        slots: Sequence[Slot],
    ) -> None:
        self.number = number
        self.function = function
        self.arguments = arguments
        self.keywords = keywords
        self.slots = slots
        """Those in ``arguments`` and ``keywords``, in order: what it reads."""
        self.writes = writes
        """Which of its slots it writes into."""
        self.made: list[weakref.ref[StoredValue]] = []
        self.random_state: Tensor | None = None
        """Of the generator, before the call; where it draws."""


class Slot:
    """A tensor among an operation's arguments: a value, seen through a geometry."""

    __slots__ = ("dtype", "offset", "size", "stride", "value")

    def __init__(self, value: StoredValue, tensor: Tensor) -> None:
        self.value = value
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        self.dtype = tensor.dtype

    def of(self, base: Tensor) -> Tensor:
        """The view of any tensor on the value's storage."""
        if base.dtype != self.dtype:
            base = flat(base).view(self.dtype)
        return base.as_strided(self.size, self.stride, self.offset)


def flat(tensor: Tensor) -> Tensor:
    """Its whole storage, in one dimension."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def is_plain(tensor: Tensor) -> bool:
    """True if storage, size, stride and offset say all of it."""
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def replaced(tree: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """``tree`` of tuples, lists and dicts with ``change(leaf)`` for every leaf of that kind."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, list | tuple):
        return type(tree)([replaced(branch, kind, change) for branch in tree])
    if isinstance(tree, dict):
        return {name: replaced(branch, kind, change) for name, branch in tree.items()}
    return tree


def recompute(value: StoredValue) -> Tensor:
    """A tensor on a storage with the value's content: that of the forward pass to the bit.

    Other values that come by on the way, and that somebody still waits for, are kept until they are taken.

    Raises:
        FitError: something that it depends on was changed in place since.
    """
    if value.recomputed is None:
        if value.held is not None:
            return held(value)
        with torch.enable_grad(), below_autograd(), below_autocast():  # as kernels saw it the first time
            _Recomputation(value).run()
    assert value.recomputed is not None
    return value.recomputed


def held(value: StoredValue) -> Tensor:
    """The tensor that it holds, if that is still the value."""
    if not isinstance(value.held, Tensor):
        unpacked: Tensor = value.held.unpack()
        return unpacked
    if version_of(value.held) != value.version:
        raise FitError(
            f"a tensor of shape {tuple(value.held.shape)} was changed in place "
            f"{version_of(value.held) - value.version} "
            "times after the forward pass read it, so what follows from it cannot be recomputed: the gradient "
            "would be wrong. Make the operation that writes into it out-of-place, or run without the plan."
        )
    return value.held


class _Recomputation:
    """The recomputation of one value."""

    def __init__(self, target: StoredValue) -> None:
        self._target = target
        self._operations = operations_for(target)
        self._left: dict[StoredValue, int] = {}
        """Values made on the way: how many of the operations still read them."""
        for operation in self._operations:
            for slot in operation.slots:
                self._left[slot.value] = self._left.get(slot.value, 0) + 1
        self._tensors: dict[StoredValue, Tensor] = {}

    def run(self) -> None:
        for operation in self._operations:
            self._repeat(operation)

    def _repeat(self, operation: Operation) -> None:
        slots = operation.slots
        scratch = {slots[at].value: self._to_write_into(slots[at].value) for at in operation.writes}
        tensors = [slot.of(scratch[v] if (v := slot.value) in scratch else self._read(v)) for slot in slots]
        arguments, keywords = replaced((operation.arguments, operation.keywords), Slot, lambda _: tensors.pop(0))
        results = repeat(operation, arguments, keywords)
        del arguments, keywords
        for slot in slots:
            self._left[slot.value] -= 1
            if not self._left[slot.value]:
                self._tensors.pop(slot.value, None)
        for reference in operation.made:
            if (value := reference()) is not None and value.held is None:
                self._take(value, scratch[slots[value.place].value] if value.in_place else _nth(results, value.place))

    def _read(self, value: StoredValue) -> Tensor:
        if value in self._tensors:
            return self._tensors[value]
        return value.recomputed if value.recomputed is not None else held(value)

    def _to_write_into(self, value: StoredValue) -> Tensor:
        """The tensor itself where nobody else reads it, else a copy."""
        if value in self._tensors and self._left[value] == 1 and value.recomputed is None:
            return self._tensors[value]
        source = self._read(value)
        return flat(source).clone()

    def _take(self, value: StoredValue, tensor: Tensor) -> None:
        if value is self._target or value.awaited > 0:
            value.recomputed = tensor
        elif self._left.get(value):
            self._tensors[value] = tensor


def operations_for(target: StoredValue) -> list[Operation]:
    """The operations that have to run again for ``target``, in the order of the forward pass."""
    operations: dict[int, Operation] = {}
    waiting = [target]
    while waiting:
        value = waiting.pop()
        if value.maker is None or value.held is not None or value.recomputed is not None:
            continue
        if value.maker.number not in operations:
            operations[value.maker.number] = value.maker
            waiting.extend(slot.value for slot in value.maker.slots)
    return [operations[number] for number in sorted(operations)]


def repeat(operation: Operation, arguments: Any, keywords: Any) -> Any:
    """The call, with the random numbers of the first time where it draws some."""
    if operation.random_state is None:
        return operation.function(*arguments, **keywords)
    generator = generator_of(arguments, keywords)
    now = generator.get_state()
    generator.set_state(operation.random_state)
    try:
        return operation.function(*arguments, **keywords)
    finally:
        generator.set_state(now)


def generator_of(arguments: Any, keywords: Any) -> torch.Generator:
    """The default generator of the device that an operator's call runs on."""
    devices: list[torch.device] = []
    replaced((arguments, keywords), Tensor, lambda tensor: devices.append(tensor.device))
    device = next(
        (device_of_tensor for device_of_tensor in devices if device_of_tensor.type != "cpu"),
        torch.device(keywords.get("device") or "cpu"),
    )
    if device.type == "cpu":
        return torch.default_generator
    module = torch.get_device_module(device)
    return module.default_generators[device.index if device.index is not None else module.current_device()]  # type: ignore[no-any-return]


def _nth(results: Any, place: int) -> Tensor:
    tensors: list[Tensor] = []
    replaced(results, Tensor, tensors.append)
    return tensors[place]
