"""Outputs in the form in which they are compared: what holds numbers as tensors, all else as constants.

A program returns NumPy arrays, pictures, tables and bytes as well as tensors. An array is compared within the tolerance
of its dtype, whatever has no numbers must be equal. An object of another class is what its attributes hold, where
verification asks (``taken_apart``).
"""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from togi.subject.classes import name_of, slots_of
from togi.subject.containers import items_of
from togi.subject.leaves import CONSTANTS
from togi.subject.nested import ENTER, is_opaque, replaced
from togi.subject.nested import tensors_in as known_tensors_in
from togi.subject.structure import Structure

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

_NUMBERS = "biufcmM"
"""Kinds of NumPy's dtypes that hold numbers."""
_SIGNED = {2: "int32", 4: "int64", 8: "int64"}
"""Torch computes little with unsigned integers of more than a byte."""
_DEEPEST = 8
"""Levels of objects that are taken apart inside of each other."""
_MOST_PARTS = 20_000
"""So much is looked at in one value: an object may reach half of its program."""
_NOT_LOOKED_AT = object()
_ORDERED_BY = 8
"""So many numbers of a tensor say which of a set's items comes first."""
_Taken = Callable[[Any], Any]


class ArrayOf(NamedTuple):
    """An array, a NumPy number or a picture."""

    kind: type
    array: Tensor


class NumberOf(NamedTuple):
    """A number of Python's, or of a class derived from that: NumPy's float64 is one."""

    kind: type
    number: Tensor


class TextOf(NamedTuple):
    """A value that holds nothing to look at, as a date does: its class says when two are equal, and this is how it
    writes one."""

    kind: type
    text: str


class ItemsOf(NamedTuple):
    """What a value holds whose class ``togi.subject.containers`` does not know."""

    kind: type
    items: Any


class AttributesOf(tuple[Any, ...]):
    """A named tuple of what an object holds that nothing else knows, by the names of its attributes. Its class is the
    first of them."""

    _fields: tuple[str, ...]

    @classmethod
    def named(cls, kind: type, held: Mapping[str, Any]) -> AttributesOf:
        made = cls((kind, *held.values()))
        made._fields = ("class", *held)
        return made


NUMBER, TEXT, ATTRIBUTES = name_of(NumberOf), name_of(TextOf), name_of(AttributesOf)
"""The ``type`` of their structures."""


def as_compared(value: Any) -> Any:
    """A nested value whose numbers are tensors: floats, which were computed, and arrays, whose memory they share."""
    return replaced(value, lambda part: _compared(part, as_compared))


def taken_apart(value: Any) -> Any:
    """The same, and of objects of any other kind what they hold: attributes, items, or what their
    ``repr`` says where their class defines when two are equal. Functions, modules, iterators and whatever else can only
    be used stay as they are."""
    return _TakenApart().of(value)


def attributes_of(item: Any) -> dict[str, Any]:
    """What an object holds in its attributes, in slots first; nothing of what its class computes."""
    attributes = {name: getattr(item, name) for name in slots_of(type(item)) if hasattr(item, name)}
    attributes.pop("__dict__", None)
    return attributes | getattr(item, "__dict__", {})


def is_code(item: Any) -> bool:
    """Classes, functions and modules hold weights and the world, not an answer."""
    return isinstance(item, types.ModuleType) or (callable(item) and not hasattr(item, "__iter__"))


def tensor_of(value: Any) -> Tensor | None:
    """The numbers of an array, a NumPy number or a picture, in its memory where torch can read that. None for anything
    else, tensors included."""
    array = _array_of(value)
    if array is None or array.dtype.kind not in _NUMBERS:
        return None
    array = _known_to_torch(array)
    if not array.flags.writeable or any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def with_numbers(value: Any, tensor: Tensor) -> Any:
    """The numbers of ``tensor`` as an array or a NumPy number of the class, dtype, shape and layout of ``value``."""
    import numpy as np

    numbers = tensor.detach().cpu().numpy()
    if isinstance(value, np.generic):
        return numbers.astype(value.dtype)[()]
    array = np.empty_like(value)
    array[...] = numbers.view(value.dtype) if value.dtype.kind in "mM" else numbers
    return array


class _TakenApart:
    """One value, taken apart."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        """By identity; kept, so that no other takes its place."""
        self._depth = 0
        self._left = _MOST_PARTS

    def of(self, value: Any) -> Any:
        return replaced(value, self._part)

    def _part(self, part: Any) -> Any:
        self._left -= 1
        if self._depth and self._left < 0:
            return _NOT_LOOKED_AT
        known = _compared(part, self.of)
        return self._object(part) if known is ENTER and is_opaque(part) else known

    def _object(self, part: Any) -> Any:
        try:
            text = _own_text(part)
            return self._held(part) if text is None else TextOf(type(part), text)
        except Exception:  # foreign code, and what holds itself: it stays as it is
            return part

    def _held(self, part: Any) -> Any:
        cls, held = type(part), attributes_of(part)
        if self._depth == _DEEPEST or is_code(part):
            return part
        if id(part) in self._seen:
            return ItemsOf(cls, "again")
        self._seen[id(part)] = part
        self._depth += 1
        try:
            if held:
                return AttributesOf.named(cls, {name: self.of(item) for name, item in held.items()})
            if isinstance(part, Mapping):
                return ItemsOf(cls, [[self.of(key), self.of(item)] for key, item in part.items()])
            if isinstance(part, Collection):
                return ItemsOf(cls, [self.of(item) for item in part])
        finally:
            self._depth -= 1
        return AttributesOf.named(cls, {}) if hasattr(part, "__dict__") and not _of_python(cls) else part


def _own_text(part: Any) -> str | None:
    """What tells apart values as ``TextOf`` has them. None for any other."""
    cls: Any = type(part)
    if cls.__eq__ is object.__eq__ or cls.__repr__ is object.__repr__ or hasattr(part, "__dict__") or is_code(part):
        return None
    if isinstance(part, Collection) and not isinstance(part, range):
        return None
    return repr(part) if _of_python(cls) or not attributes_of(part) else None


def _of_python(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in sys.stdlib_module_names


def _compared(part: Any, inside: _Taken) -> Any:
    """``inside``: does the same with what the part holds."""
    if isinstance(part, Tensor | str):
        return part
    if isinstance(part, float | complex):
        dtype = torch.complex128 if isinstance(part, complex) else torch.float64
        return NumberOf(type(part), torch.tensor(part, dtype=dtype))
    if isinstance(part, bytes | bytearray):
        return ItemsOf(type(part), f"{len(part)} bytes, sha256 {hashlib.sha256(part).hexdigest()}")
    if isinstance(part, set | frozenset):
        return ItemsOf(type(part), sorted(map(inside, part), key=_place))
    if isinstance(part, dict) and items_of(part) is None:  # its keys are no names
        return ItemsOf(type(part), [[inside(key), inside(item)] for key, item in part.items()])
    if isinstance(part, CONSTANTS):
        return part
    return _labelled(part) or _as_array(part)


def _place(item: Any) -> tuple[str, list[str], list[list[float]]]:
    """Where an item of a set comes among the others, in whatever order these are met: by what it is, then by numbers,
    which roundings move a little."""
    if isinstance(item, CONSTANTS):
        return repr(item), [], []
    numbers = [tensor.detach().flatten()[:_ORDERED_BY] for tensor in known_tensors_in(item)]
    reals = [torch.view_as_real(n).flatten() if n.is_complex() else n for n in numbers]
    return Structure.of(item).to_json(), [str(n.dtype) for n in numbers], [n.tolist() for n in reals]


def _as_array(part: Any) -> Any:
    if (tensor := tensor_of(part)) is not None:
        return ArrayOf(type(part), tensor)
    array = _array_of(part)
    if array is None or not (array.ndim or array.dtype.names):
        return ENTER
    if array.dtype.names:
        return ItemsOf(type(part), {name: as_compared(array[name]) for name in array.dtype.names})
    return ItemsOf(type(part), as_compared(array.tolist()))  # of texts or objects


def _labelled(part: Any) -> ItemsOf | None:
    """A table or one of its columns, with its labels (pandas, polars)."""
    cls = type(part)
    if not hasattr(cls, "__array__") or not (hasattr(cls, "columns") or hasattr(cls, "index")):
        return None
    index = _array_of(getattr(part, "index", None))
    labels = {} if index is None else {"index": as_compared(index)}
    if not hasattr(cls, "columns"):
        values = _array_of(part)
        return None if index is None or values is None else ItemsOf(cls, {**labels, "values": as_compared(values)})
    columns = [column for _, column in part.items()] if hasattr(cls, "items") else list(part)
    named = zip(part.columns, map(_array_of, columns), strict=True)
    return ItemsOf(cls, {**labels, "columns": [[as_compared(name), as_compared(column)] for name, column in named]})


def _array_of(value: Any) -> Array | None:
    """NumPy's view of a value that offers one."""
    numpy = sys.modules.get("numpy")  # before it is imported nothing is an array
    if numpy is None or isinstance(value, Tensor | type):
        return None
    if not (hasattr(type(value), "__array__") or hasattr(type(value), "__array_interface__")):
        return None
    try:
        return numpy.asarray(value)  # type: ignore[no-any-return]
    except Exception:  # foreign code: a class that offers an array and has none to give
        return None


def _known_to_torch(array: Array) -> Array:
    """The same numbers in a dtype that torch computes with: a copy only where it has no such dtype."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind in "mM":
        return array.view("int64")
    if kind == "u" and size > 1:
        return array.astype(_SIGNED[size])
    if kind in "fc" and size > (8 if kind == "f" else 16):
        return array.astype("float64" if kind == "f" else "complex128")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
