"""What a forward pass computed, as values that can be computed again.

A value is what one storage holds after one operation: an in-place operation makes a new value of an old storage. Views
are no values: a tensor is a value and a geometry. So every operation reads values and makes values, and what it made is
had again by repeating it on what it read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Value:
    """One content of one storage."""

    __slots__ = ("__weakref__", "awaited", "held", "in_place", "key", "maker", "place", "read", "rebuilt", "version")

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
        self.rebuilt: Tensor | None = None
        """Computed again, and not yet taken by everybody who waits for it."""
        self.awaited = 0
        """How many saved tensors are still to be given out."""
        self.read = False
        """An operation that may be repeated reads it."""

    def hold(self, tensor: Tensor) -> None:
        """Keep the storage; what it was made from is no longer needed."""
        self.held, self.version, self.maker = tensor, tensor._version, None


class Operation:
    """One call of an operator. Its tensors are replaced by slots; it holds what it read, but not what it made."""

    __slots__ = ("arguments", "function", "keywords", "made", "number", "random_state", "writes")

    def __init__(self, number: int, function: Any, arguments: Any, keywords: Any, writes: frozenset[int]) -> None:
        self.number = number
        self.function = function
        self.arguments = arguments
        self.keywords = keywords
        self.writes = writes
        """Which of its slots it writes into."""
        self.made: list[weakref.ref[Value]] = []
        self.random_state: Tensor | None = None
        """Of the generator, before the call; where it draws."""

    def slots(self) -> list[Slot]:
        """What it reads, in order."""
        found: list[Slot] = []
        replaced((self.arguments, self.keywords), Slot, found.append)
        return found


class Slot:
    """A tensor among an operation's arguments: a value, seen through a geometry."""

    __slots__ = ("dtype", "offset", "size", "stride", "value")

    def __init__(self, value: Value, tensor: Tensor) -> None:
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
    """Whether storage, size, stride and offset say all of it."""
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def replaced(tree: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """``tree`` of tuples, lists and dicts with ``change(leaf)`` for every leaf of that kind."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, list | tuple):
        return type(tree)([replaced(one, kind, change) for one in tree])
    if isinstance(tree, dict):
        return {name: replaced(one, kind, change) for name, one in tree.items()}
    return tree


def wait_for_device() -> None:
    """A GPU works on after a call returns; times are taken when it is done."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
