"""Outputs in the form in which they are compared: what holds numbers as tensors, all else as constants.

A program returns NumPy arrays, pictures, tables and bytes as well as tensors. An array is compared within the tolerance
of its dtype, whatever has no numbers must be equal. Of an object of another class, the tensors and arrays in its
attributes are compared (``togi.verify.leaves``).
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from togi.subject.containers import items_of
from togi.subject.leaves import CONSTANTS
from togi.subject.nested import ENTER, replaced

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

_NUMBERS = "biufcmM"
"""Kinds of NumPy's dtypes that hold numbers."""
_SIGNED = {2: "int32", 4: "int64", 8: "int64"}
"""Torch computes little with unsigned integers of more than a byte."""


class ArrayOf(NamedTuple):
    """An array, a NumPy number or a picture."""

    kind: type
    array: Tensor


class ItemsOf(NamedTuple):
    """What a value holds whose class ``togi.subject.containers`` does not know."""

    kind: type
    items: Any


def as_compared(value: Any) -> Any:
    """A nested value whose numbers are tensors: floats, which were computed, and arrays, whose memory they share."""
    return replaced(value, _compared)


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


def _compared(part: Any) -> Any:
    if isinstance(part, Tensor | str):
        return part
    if isinstance(part, float | complex):
        return torch.tensor(part, dtype=torch.complex128 if isinstance(part, complex) else torch.float64)
    if isinstance(part, bytes | bytearray):
        return ItemsOf(type(part), f"{len(part)} bytes, sha256 {hashlib.sha256(part).hexdigest()}")
    if isinstance(part, set | frozenset) and all(isinstance(item, CONSTANTS) for item in part):
        return ItemsOf(type(part), sorted(map(repr, part)))
    if isinstance(part, dict) and items_of(part) is None:  # its keys are no names
        return ItemsOf(type(part), [[as_compared(key), as_compared(item)] for key, item in part.items()])
    if isinstance(part, CONSTANTS):
        return part
    return _labelled(part) or _as_array(part)


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
