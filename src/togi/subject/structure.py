"""The structure of nested values of tensors, as JSON, and nested values built again from tensors.

Structures known: tensors, None, bool, int, float, str, dtypes, devices, enum members, classes, tuple, namedtuple, list,
dict, mappings with a class of their own (transformers' ModelOutput), dataclasses, plain objects (attributes and nothing
else: transformers' caches) and classes that are registered with torch's pytree. Anything else is ``opaque``: it can be
run live but not stored. Where a number followed the size of a tensor next to it in all calls seen (the length that a
cache keeps), it is a ``count`` of that.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from pydantic import model_validator

from togi.core.errors import ArtifactError
from togi.core.quantities import a_type
from togi.core.records import Record, Scalar
from togi.subject.classes import (
    OTHER_ATTRIBUTES,
    attributes_beside,
    check_registered,
    data_names,
    enum_member,
    filled,
    find_class,
    is_data,
    is_mapping,
    is_plain,
    name_of,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CONSTANTS = (type(None), bool, int, float, str)
Leaf = Literal["tensor", "constant", "count", "dtype", "device", "enum", "class", "opaque"]
Container = Literal["tuple", "namedtuple", "list", "dict", "mapping", "dataclass", "object", "pytree"]
Kind = Leaf | Container
_LEAVES = frozenset(get_args(Leaf))
_NAMED = ("namedtuple", "mapping", "dataclass", "object")
KEYED = ("dict", *_NAMED)
_WHOLE = ("object", "pytree")
"""Taken apart only where nothing in them is opaque."""


class Structure(Record):
    """A nested structure with numbered tensors as leaves (their order is the order of traversal)."""

    kind: Kind
    children: tuple[Structure, ...] = ()
    keys: tuple[Scalar, ...] = ()
    """Of the children. Of a count: the key of the tensor next to it that it counts, and which dimension."""
    type: str = ""
    """``module:qualified name`` of the class of a namedtuple, mapping, dataclass, object or enum member; of the value
    where it is opaque or a class."""
    value: Scalar = None
    """A constant; the name of a dtype, device or enum member; what torch's pytree knows of a value, as JSON; how much
    more a count is than that size."""

    @model_validator(mode="after")
    def _complete(self) -> Structure:
        for child in self.children:
            if child.kind == "count":
                self._counted(child)
        if self.kind in KEYED and len(self.keys) != len(self.children):
            raise ValueError(f"{len(self.keys)} keys for {len(self.children)} values of a {self.kind}")
        if self.is_leaf and self.children:
            raise ValueError(f"a {self.kind} that holds values")
        return self

    def _counted(self, count: Structure) -> tuple[int, int, int]:
        """The number of the child that a count counts, which dimension, and how much more it is than that."""
        if self.kind in KEYED and len(count.keys) == 2:
            tensors = [i for i, child in enumerate(self.children) if child.kind == "tensor"]
            counted = next((i for i in tensors if self.keys[i : i + 1] == count.keys[:1]), None)
            dim, more = count.keys[1], count.value
            if counted is not None and type(dim) is int and dim >= 0 and type(more) is int:
                return counted, dim, more
        raise ValueError(f"a count of {count.keys}, which is not a size of a tensor next to it")

    @classmethod
    def of(cls, value: Any) -> Structure:
        return cls._of(value, ())

    @classmethod
    def _of(cls, value: Any, around: tuple[int, ...]) -> Structure:
        """``around``: identities of the containers that it lies in; one that holds itself is opaque."""
        import torch

        if isinstance(value, torch.Tensor):
            return TENSOR
        if isinstance(value, enum.Enum):
            return cls(kind="enum", type=name_of(type(value)), value=value.name)
        if isinstance(value, CONSTANTS):
            return cls(kind="constant", value=value)
        if isinstance(value, torch.SymInt):
            return cls(kind="constant", value=str(value))
        if isinstance(value, torch.dtype):
            return cls(kind="dtype", value=str(value).removeprefix("torch."))
        if isinstance(value, torch.device):
            return cls(kind="device", value=str(value))
        if isinstance(value, type):
            return cls(kind="class", type=name_of(value))
        opaque = cls(kind="opaque", type=name_of(type(value)))
        items = None if id(value) in around else _items(value)
        if items is None:
            return opaque
        inner = (*around, id(value))
        children = tuple(cls._of(child, inner) for child in items.children)
        if items.kind in _WHOLE and any(leaf.kind == "opaque" for c in children for leaf in c.leaves()):
            return opaque
        name = name_of(type(value)) if items.kind in _NAMED else ""
        return cls(kind=items.kind, keys=items.keys, children=children, type=name, value=items.context)

    def walk(self, value: Any, path: str = "") -> Iterator[tuple[str, Structure, Any]]:
        """``(path, structure, value)`` of every leaf of a value of this structure.

        Raises ValueError naming the path where the value has another structure.
        """
        if self.is_leaf:
            yield path, self, value
            return
        items = self._taken_apart(value)
        if items is None:
            raise ValueError(f"{path or 'the value'} is {_describe(value)}, expected {self.describe()}")
        for count, counted, dim, more in self._counts:
            number, tensor = items.children[count], items.children[counted]
            if hasattr(tensor, "shape") and _count(tensor, dim, more) != number:
                key, counted_key = _labels(self)[count], _labels(self)[counted]
                raise ValueError(
                    f"{path}{key} is {number!r}, where {path}{counted_key} has the shape {tuple(tensor.shape)}, but in "
                    f"every call seen it was {f'{more} more than ' * bool(more)}its size in dimension {dim}"
                )
        for key, child, item in zip(_labels(self), self.children, items.children, strict=True):
            yield from child.walk(item, f"{path}{key}")

    def admits(self, value: Any) -> bool:
        """True if a value is the one that this leaf stands for: any tensor, or the same constant."""
        return self._admits(value)

    @functools.cached_property
    def _admits(self) -> Callable[[Any], bool]:
        if self.kind == "constant":
            constant = self.value
            return lambda value: isinstance(value, CONSTANTS) and bool(value == constant)
        if self.kind == "count":
            return lambda value: type(value) is int
        if self.kind in ("dtype", "device"):
            name = f"torch.{self.value}" if self.kind == "dtype" else self.value
            return lambda value: str(value) == name
        return lambda value: self.kind != "opaque" and Structure.of(value) == self

    @property
    def is_leaf(self) -> bool:
        return self.kind in _LEAVES

    def read(self, value: Any, tensors: list[Tensor]) -> bool:
        """Add the tensors of a value of this structure. False where it has another one, or other constants; ``walk``
        then says where."""
        return self._reader(value, tensors)

    def build(self, tensors: Iterator[Tensor]) -> Any:
        """The value again, taking tensors in order of traversal."""
        return self._builder(tensors)

    @functools.cached_property
    def _reader(self) -> Callable[[Any, list[Tensor]], bool]:
        """``read``, with what does not depend on the value done once: programs read their caches in every step."""
        if self.kind == "tensor":
            return _read_tensor
        if self.is_leaf:
            admits = self._admits
            return lambda value, _: admits(value)
        readers, opened, counts = [child._reader for child in self.children], self._opener(), self._counts

        def read(value: Any, tensors: list[Tensor]) -> bool:
            children = opened(value)
            if children is None:
                return False
            for reader, child in zip(readers, children, strict=True):
                if not reader(child, tensors):
                    return False
            if counts:
                parts = list(children)
                return all(_count(parts[counted], dim, more) == parts[count] for count, counted, dim, more in counts)
            return True

        return read

    @functools.cached_property
    def _counts(self) -> list[tuple[int, int, int, int]]:
        """The counts among the children: for each its number, that of the tensor, the dimension, how much more it
        is."""
        return [(i, *self._counted(child)) for i, child in enumerate(self.children) if child.kind == "count"]

    def _opener(self) -> Callable[[Any], Collection[Any] | None]:
        """The children of a value, or None where it is not such a container."""
        right_classes: set[type] = set()  # classes of which nothing but the parts has to be looked at
        quickly = _quick_opener(self.kind, self.keys, len(self.children))

        def opened(value: Any) -> Collection[Any] | None:
            if type(value) in right_classes:
                return quickly(value)
            items = self._taken_apart(value)
            if items is None:
                return None
            if self.kind != "pytree":
                right_classes.add(type(value))
            return items.children

        return opened

    def _taken_apart(self, value: Any) -> _Items | None:
        """The parts of a value, or None where it is not a container of this kind, class and keys."""
        items = _items(value)
        own = (self.kind, self.keys, self.value, len(self.children))
        if items is None or (items.kind, items.keys, items.context, len(items.children)) != own:
            return None
        return items if self._is_class_of(value) else None

    def _is_class_of(self, value: Any) -> bool:
        """True if a value is of the very class: one derived from it may behave otherwise. A class that togi imported
        from a file under a name of its own is the program's own import of it."""
        if self.kind not in _NAMED or self.type == name_of(type(value)):
            return True
        try:
            return type(value) is find_class(self.type, self.kind)
        except ArtifactError:
            return False

    @functools.cached_property
    def _builder(self) -> Callable[[Iterator[Tensor]], Any]:
        """``build``, with classes and constants looked up once."""
        if self.kind == "tensor":
            return next
        if self.kind == "opaque":
            raise ValueError(f"a {self.type} cannot be rebuilt from tensors")
        if self.is_leaf:
            constant = self._constant()
            return lambda _: constant
        builders, counts = [child._builder for child in self.children], self._counts
        cls = find_class(self.type, self.kind) if self.kind in _NAMED else None
        if self.kind == "object":
            self._check_classes_in(cls)
        make = _maker(self.kind, self.keys, self.value, cls)
        if not counts:
            return lambda tensors: make([build(tensors) for build in builders])

        def build(tensors: Iterator[Tensor]) -> Any:
            children = [build(tensors) for build in builders]
            for count, counted, dim, more in counts:
                children[count] = _count(children[counted], dim, more)
            return make(children)

        return build

    def _check_classes_in(self, cls: Any) -> None:
        """An object may call the classes that it holds, so these are of the packages that its own class comes from: a
        cache holds the class of its layers."""
        own = {base.__module__.partition(".")[0] for base in cls.__mro__}
        for leaf in self.leaves():
            package = leaf.type.partition(":")[0].partition(".")[0]
            if leaf.kind == "class" and package not in own:
                raise ArtifactError(
                    f"{self.type} is given the class {leaf.type!r}, of another package: it is not built"
                )

    def _constant(self) -> Any:
        match self.kind:
            case "dtype":
                return dtype_of(str(self.value))
            case "device":
                return _device_of(str(self.value))
            case "enum":
                return enum_member(self.type, str(self.value))
            case "class":
                return find_class(self.type, self.kind)
            case _:
                return self.value

    def leaves(self) -> Iterator[Structure]:
        return (part for part in self.parts() if part.is_leaf)

    @functools.cached_property
    def tensor_count(self) -> int:
        return sum(leaf.kind == "tensor" for leaf in self.leaves())

    def resolve(self) -> None:
        """That values can be built again here. Raises ArtifactError where a class is missing or not of such values."""
        _ = self._builder

    def parts(self) -> Iterator[Structure]:
        """Itself and all that it holds, however deep."""
        yield self
        for child in self.children:
            yield from child.parts()

    @property
    def is_opaque(self) -> bool:
        """No file says how it is built again."""
        return self.kind == "opaque" or (self.kind == "mapping" and self.value == OTHER_ATTRIBUTES)

    def named_leaves(self, path: str = "") -> Iterator[tuple[str, Structure]]:
        """``(path, leaf)``, in the order of traversal."""
        if self.is_leaf:
            yield path, self
            return
        for key, child in zip(_labels(self), self.children, strict=True):
            yield from child.named_leaves(f"{path}{key}")

    def describe(self) -> str:
        if self.kind in ("tuple", "list", "dict"):
            inner = [str(k) for k in self.keys] if self.keys else [c.describe() for c in self.children]
            return f"a {self.kind} of {len(self.children)} ({', '.join(inner)})"
        if self.kind in ("constant", "dtype", "device"):
            return f"the {self.kind} {self.value!r}"
        if self.kind == "count":
            return f"the size of {self.keys[0]} in dimension {self.keys[1]}"
        return f"a {self.type or self.kind}"


TENSOR = Structure(kind="tensor")


def dtype_of(name: str) -> torch.dtype:
    """Raises ArtifactError where torch has no dtype of this name."""
    import torch

    dtype = vars(torch).get(name)
    if not isinstance(dtype, torch.dtype):
        raise ArtifactError(
            f"{name[:80]!r} is not a dtype of torch {torch.__version__}: it is damaged, or for another one"
        )
    return dtype


def _device_of(name: str) -> torch.device:
    import torch

    try:
        return torch.device(name)
    except RuntimeError:
        raise ArtifactError(f"{name[:80]!r} is not a device of torch {torch.__version__}: it is damaged") from None


def _read_tensor(value: Any, tensors: list[Tensor]) -> bool:
    tensors.append(value)
    return True


def _count(tensor: Any, dim: int, more: int) -> int | None:
    """A size of it, plus a constant; None where it is not a tensor with such a dimension. A symbol where sizes are
    symbols."""
    shape = getattr(tensor, "shape", ())
    return shape[dim] + more if dim < len(shape) else None


class _Items(NamedTuple):
    """A container taken apart."""

    kind: Kind
    keys: tuple[Scalar, ...]
    children: list[Any]
    context: Scalar = None


def _items(value: Any) -> _Items | None:
    """The parts of a container, or None when it is not a known one."""
    if isinstance(value, tuple):
        fields: tuple[str, ...] | None = getattr(value, "_fields", None)
        return _Items("tuple" if fields is None else "namedtuple", fields or (), list(value))
    if isinstance(value, list):
        return _Items("list", (), value)
    if is_mapping(type(value)):
        keys = tuple(value)
        plain = type(value) is dict
        if not all(isinstance(key, str if not plain else str | int | float | bool) for key in keys):
            return None
        beside = None if plain else attributes_beside(value)
        return _Items("dict" if plain else "mapping", keys, list(value.values()), beside)
    if is_data(type(value)):
        names = data_names(value)
        return _Items("dataclass", names, [getattr(value, name) for name in names])
    if is_plain(type(value)):  # type: ignore[arg-type]
        return _Items("object", tuple(vars(value)), list(vars(value).values()))
    return _registered(value)


def _quick_opener(kind: Kind, keys: tuple[Scalar, ...], count: int) -> Callable[[Any], Collection[Any] | None]:
    """The parts of a container whose class is known to be right, or None where they are others."""
    if kind in ("dict", "mapping"):
        return lambda value: value.values() if tuple(value) == keys else None
    if kind == "object":
        return lambda value: vars(value).values() if tuple(vars(value)) == keys else None
    if kind == "dataclass":
        return lambda value: [getattr(value, str(key)) for key in keys] if data_names(value) == keys else None
    return lambda value: value if len(value) == count else None


def _registered(value: Any) -> _Items | None:
    """A value whose class torch's pytree knows."""
    from togi.torch_internals.tensors import one_level

    parts = one_level(value)
    return None if parts is None else _Items("pytree", (), *parts)


def _maker(kind: Kind, keys: tuple[Scalar, ...], context: Scalar, cls: Any) -> Callable[[Collection[Any]], Any]:
    """Puts the children of a container together again, of class ``cls`` where it has one of its own (``dict`` may be
    given)."""
    if kind == "tuple":
        return tuple
    if kind == "list":
        return list
    if kind == "pytree":
        from togi.torch_internals.tensors import from_one_level

        check_registered(str(context))
        return lambda children: from_one_level(list(children), str(context))
    if kind == "dict":
        return lambda children: dict(zip(keys, children, strict=True))
    names = tuple(map(str, keys))
    return lambda children: filled(cls, kind, dict(zip(names, children, strict=True)), context)


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A nested value with every tensor replaced by ``change(tensor)``: new containers, the same opaque values."""
    import torch

    return _changed(value, lambda part: change(part) if isinstance(part, torch.Tensor) else _ENTER, new=True)


def with_floats_as_tensors(value: Any) -> Any:
    """A nested value whose Python floats are tensors: numbers that were computed, to be compared as such."""
    import torch

    def change(part: Any) -> Any:
        if isinstance(part, float):
            return torch.tensor(part, dtype=torch.float64)
        return part if isinstance(part, torch.Tensor | str) else _ENTER

    return _changed(value, change)


def substituted(value: Any, table: Mapping[int, Any]) -> Any:
    """A nested value with what ``table`` names by identity (``id(part)``) replaced."""
    return _changed(value, lambda part: table.get(id(part), _ENTER))


def put_back(value: Any, table: Mapping[str, Any]) -> Any:
    """A nested value that nobody else holds, with the strings that ``table`` names replaced.

    Dicts are changed where they stand: transformers' ModelOutput takes longer to make than a small part of a program
    takes to run.
    """
    return _changed(value, lambda part: table.get(part, _ENTER) if isinstance(part, str) else _ENTER, in_place=True)


_ENTER = object()


def _changed(value: Any, change: Callable[[Any], Any], *, new: bool = False, in_place: bool = False) -> Any:
    """A nested value with every part that ``change`` does not answer with ``_ENTER`` replaced by its answer.

    A container in which nothing changed stays the same object, unless ``new`` ones are wanted; with ``in_place`` a dict
    does in any case.
    """
    import torch

    answer = change(value)
    if answer is not _ENTER:
        return answer
    items = None if isinstance(value, (torch.Tensor, *CONSTANTS)) else _opened(value)
    if items is None:
        return value
    children = [_changed(child, change, new=new, in_place=in_place) for child in items.children]
    if not new and all(changed is child for changed, child in zip(children, items.children, strict=True)):
        return value
    if in_place and isinstance(value, dict):
        for key, changed, child in zip(items.keys, children, items.children, strict=True):
            if changed is not child:
                value[key] = changed
        return value
    if isinstance(value, list | tuple) and items.kind != "namedtuple":
        return type(value)(children)
    if items.context == OTHER_ATTRIBUTES:  # only its own class knows what else it keeps
        return _made_by_its_class(type(value), dict(zip(map(str, items.keys), children, strict=True)))
    return _maker(items.kind, items.keys, items.context, type(value))(children)


def _made_by_its_class(cls: Any, named: dict[str, Any]) -> Any:
    try:
        return cls(**named)
    except TypeError:
        return cls(named)


def _opened(value: Any) -> _Items | None:
    """The parts of a container that can be put together again from others."""
    items = _items(value)
    return items if items is not None and (items.kind not in _WHOLE or _collect(value, [], ())) else None


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a nested value, in the order of ``walk``; none of what is opaque."""
    tensors: list[Tensor] = []
    _collect(value, tensors, ())
    return tensors


def _collect(value: Any, tensors: list[Tensor], around: tuple[int, ...]) -> bool:
    """Add the tensors of a value. Whether all of it can be taken apart."""
    import torch

    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return True
    if isinstance(value, (*CONSTANTS, enum.Enum, torch.dtype, torch.device, torch.SymInt, type)):
        return True
    items = None if id(value) in around else _items(value)
    if items is None:
        return False
    before = len(tensors)
    whole = True
    for child in items.children:
        whole &= _collect(child, tensors, (*around, id(value)))
    if not whole and items.kind in _WHOLE:
        del tensors[before:]
    return whole


def assign(value: Any, other: Any) -> None:
    """Make a list, dict or object hold what ``other``, of the same kind, holds.

    Raises TypeError for what cannot be changed in place.
    """
    if isinstance(value, list):
        value[:] = other
    elif isinstance(value, dict):
        value.clear()
        value.update(other)
    elif hasattr(value, "__dict__"):
        vars(value).clear()
        vars(value).update(vars(other))
    else:
        raise TypeError(f"{a_type(value)} cannot be changed in place")


def _labels(structure: Structure) -> list[str]:
    if structure.kind in ("tuple", "list", "pytree"):
        return [f"[{i}]" for i in range(len(structure.children))]
    if structure.kind in ("dict", "mapping"):
        return [f"[{key!r}]" for key in structure.keys]
    return [f".{key}" for key in structure.keys]


def _describe(value: Any) -> str:
    items = _items(value)
    return a_type(value) + (f" of {len(items.children)}" if items else "")
