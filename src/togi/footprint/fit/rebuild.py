"""Computes values again: the operations between what is held and what is wanted, once each, in their old order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from togi.footprint.fit.errors import FitError
from togi.footprint.fit.values import Operation, Slot, Value, flat, replaced


def rebuild(value: Value) -> Tensor:
    """A tensor on a storage with the value's content: that of the forward pass to the bit.

    Other values that come by on the way, and that somebody still waits for, are kept until they are taken.

    Raises:
        FitError: something that it depends on was changed in place since.
    """
    if value.rebuilt is None:
        if value.held is not None:
            return held(value)
        with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():  # as kernels saw it the first time
            _Pass(value).run()
    assert value.rebuilt is not None
    return value.rebuilt


def held(value: Value) -> Tensor:
    """What it holds, if that is still the value."""
    if not isinstance(value.held, Tensor):
        unpacked: Tensor = value.held.unpack()
        return unpacked
    if value.held._version != value.version:
        raise FitError(
            f"a tensor of shape {tuple(value.held.shape)} was changed in place {value.held._version - value.version} "
            "times after the forward pass read it, so what follows from it cannot be computed again: the gradient "
            "would be wrong. Make the operation that writes into it out-of-place, or run without the plan."
        )
    return value.held


class _Pass:
    """One computation of one value."""

    def __init__(self, target: Value) -> None:
        self._target = target
        self._operations = needed(target)
        self._left: dict[Value, int] = {}
        """Values made on the way: how many of the operations still read them."""
        for operation in self._operations:
            for slot in operation.slots():
                self._left[slot.value] = self._left.get(slot.value, 0) + 1
        self._tensors: dict[Value, Tensor] = {}

    def run(self) -> None:
        for operation in self._operations:
            self._repeat(operation)

    def _repeat(self, operation: Operation) -> None:
        slots = operation.slots()
        scratch = {slots[at].value: self._to_write_into(slots[at].value) for at in operation.writes}
        tensors = [slot.of(scratch[v] if (v := slot.value) in scratch else self._read(v)) for slot in slots]
        arguments, keywords = replaced((operation.arguments, operation.keywords), Slot, lambda _: tensors.pop(0))
        results = repeated(operation, arguments, keywords)
        del arguments, keywords
        for slot in slots:
            self._left[slot.value] -= 1
            if not self._left[slot.value]:
                self._tensors.pop(slot.value, None)
        for reference in operation.made:
            if (value := reference()) is not None and value.held is None:
                self._take(value, scratch[slots[value.place].value] if value.in_place else _nth(results, value.place))

    def _read(self, value: Value) -> Tensor:
        if value in self._tensors:
            return self._tensors[value]
        return value.rebuilt if value.rebuilt is not None else held(value)

    def _to_write_into(self, value: Value) -> Tensor:
        """The tensor itself where nobody else reads it, else a copy."""
        if value in self._tensors and self._left[value] == 1 and value.rebuilt is None:
            return self._tensors[value]
        source = self._read(value)
        return flat(source).clone()

    def _take(self, value: Value, tensor: Tensor) -> None:
        if value is self._target or value.awaited > 0:
            value.rebuilt = tensor
        elif self._left.get(value):
            self._tensors[value] = tensor


def needed(target: Value) -> list[Operation]:
    """The operations that have to run again for ``target``, in the order of the forward pass."""
    found: dict[int, Operation] = {}
    waiting = [target]
    while waiting:
        value = waiting.pop()
        if value.maker is None or value.held is not None or value.rebuilt is not None:
            continue
        if value.maker.number not in found:
            found[value.maker.number] = value.maker
            waiting.extend(slot.value for slot in value.maker.slots())
    return [found[number] for number in sorted(found)]


def repeated(operation: Operation, arguments: Any, keywords: Any) -> Any:
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
    device = next((one for one in devices if one.type != "cpu"), torch.device(keywords.get("device") or "cpu"))
    if device.type == "cpu":
        return torch.default_generator
    module = torch.get_device_module(device)
    return module.default_generators[device.index if device.index is not None else module.current_device()]  # type: ignore[no-any-return]


def _nth(results: Any, place: int) -> Tensor:
    found: list[Tensor] = []
    replaced(results, Tensor, found.append)
    return found[place]
