"""The structure of nested values of tensors, as JSON, and nested values built again from tensors.

What is neither one of ``leaves`` nor of ``containers`` is ``opaque``: it can be run live but not stored, and any value
of its class stands in its place. So does a constant of a program's calls that differs between them. Where a number
followed the size of a tensor next to it in all calls seen (the length that a cache keeps), it is a ``count`` of that.
One that calls count up and that decides nothing (how much went through a window that is full) is ``carried``.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import is_
from typing import TYPE_CHECKING, Any, get_args

from pydantic import model_validator

from togi.core.errors import ArtifactError
from togi.core.records import Record, Scalar
from togi.subject.classes import OTHER_ATTRIBUTES, find_class, name_of
from togi.subject.containers import (
    KEYED,
    NAMED,
    SEQUENCES,
    WHOLE,
    Container,
    Items,
    class_of,
    described,
    items_of,
    labels,
    maker,
    parts_by_key,
    put_in,
    quick_opener,
)
from togi.subject.leaves import Leaf, constant_of, described_leaf, kind_of_constant
from togi.subject.nested import folded

if TYPE_CHECKING:
    from torch import Tensor

Kind = Leaf | Container
_LEAVES = frozenset(get_args(Leaf))


class Structure(Record):
    """A nested structure with numbered tensors as leaves (their order is the order of traversal)."""

    kind: Kind
    children: tuple[Structure, ...] = ()
    keys: tuple[Scalar, ...] = ()
    """Of the children. Of a count: the key of the tensor next to it that it counts, and which dimension. Of what is
    carried: the least number."""
    type: str = ""
    """``module:qualified name`` of the class of a namedtuple, mapping, dataclass, object or enum member, and of a list
    or tuple that has one of its own; of the value where it is opaque, a class, or a number that is not finite."""
    value: Scalar = None
    """A constant; the name of a dtype, device or enum member; what torch's pytree knows of a value, as JSON; what else
    its class keeps. Of a count, how much more it is than that size. The number that is carried, or, after a call, how
    much more it is than before."""

    @model_validator(mode="after")
    def _complete(self) -> Structure:
        for child in self.children:
            if child.kind == "count":
                self._counted(child)
        if self.kind in KEYED and len(self.keys) != len(self.children):
            raise ValueError(f"{len(self.keys)} keys for {len(self.children)} values of a {self.kind}")
        if self.is_leaf and self.children:
            raise ValueError(f"a {self.kind} that holds values")
        if self.kind == "carried" and [type(number) for number in (self.value, *self.keys)] != [int, int]:
            raise ValueError(f"a number {self.value!r} that is carried from {self.keys} on")
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Structure):
            return NotImplemented
        return kind_of_constant(self.value) is kind_of_constant(other.value) and super().__eq__(other)

    def _counted(self, count: Structure) -> tuple[int, int, int]:
        """The number of the child that a count counts, which dimension, and how much more it is than that."""
        if self.kind in KEYED and len(count.keys) == 2:
            tensors = [i for i, child in enumerate(self.children) if child.kind == "tensor"]
            counted = next((i for i in tensors if self.keys[i : i + 1] == count.keys[:1]), None)
            dim, more = count.keys[1], count.value
            if counted is not None and type(dim) is int and dim >= 0 and type(more) is int:
                return counted, dim, more
        raise ValueError(f"a count of {count.keys}, which is not a size of a tensor next to it")

    @staticmethod
    def of(value: Any) -> Structure:
        return folded(value, _leaf_of, _container_of)

    def walk(self, value: Any, path: str = "") -> Iterator[tuple[str, Structure, Any]]:
        """``(path, structure, value)`` of every leaf of a value of this structure.

        Raises ValueError naming the path where the value has another structure.
        """
        return (found for found in self.walk_all(value, path) if found[1].is_leaf)

    def walk_all(self, value: Any, path: str = "") -> Iterator[tuple[str, Structure, Any]]:
        """The same of every part, each before what it holds."""
        yield path, self, value
        if self.is_leaf:
            return
        items = self._taken_apart(value)
        if items is None:
            raise ValueError(f"{path or 'the value'} is {described(value)}, expected {self.describe()}")
        for count, counted, dim, more in self._counts:
            number, tensor = items.children[count], items.children[counted]
            if hasattr(tensor, "shape") and _count(tensor, dim, more) != number:
                key, counted_key = self._labels[count], self._labels[counted]
                raise ValueError(
                    f"{path}{key} is {number!r}, where {path}{counted_key} has the shape {tuple(tensor.shape)}, but in "
                    f"every call seen it was {f'{more} more than ' * bool(more)}its size in dimension {dim}"
                )
        for key, child, item in zip(self._labels, self.children, items.children, strict=True):
            yield from child.walk_all(item, f"{path}{key}")

    @property
    def admits(self) -> Callable[[Any], bool]:
        """True for the values that this leaf stands for: any tensor, the same constant (of the same kind: not 2 for
        2.0), or what is of the same class and handed on as it is."""
        if self.kind == "constant":
            constant: Any = constant_of(self.kind, self.type, self.value)
            kind = kind_of_constant(constant)
            if constant != constant:  # NaN
                return lambda value: kind_of_constant(value) is kind and bool(value != value)
            return lambda value: (type(value) is kind or kind_of_constant(value) is kind) and bool(value == constant)
        if self.kind == "count":
            return lambda value: type(value) is int
        if self.kind == "carried":
            least = int(str(self.keys[0]))
            return lambda value: type(value) is int and value >= least
        if self.kind in ("dtype", "device"):
            name = f"torch.{self.value}" if self.kind == "dtype" else self.value
            return lambda value: str(value) == name
        if self.kind == "opaque":
            return self._is_of_class
        return lambda value: Structure.of(value) == self

    @property
    def is_leaf(self) -> bool:
        return self.kind in _LEAVES

    @functools.cached_property
    def _labels(self) -> list[str]:
        return labels(self.kind, self.keys, len(self.children))

    def read(self, value: Any, tensors: list[Tensor]) -> bool:
        """Add the tensors of a value of this structure. False where it has another one, or other constants; ``walk``
        then says where."""
        return self._reader(value, tensors)

    def build(self, tensors: Iterator[Any]) -> Any:
        """The value again, taking tensors, and numbers that are carried, in order of traversal."""
        return self._builder(tensors)

    def renewer(self, stays: Iterator[bool]) -> Callable[[Any, Iterator[Any]], Any]:
        """``build`` for a value that is there already: ``renew(value, tensors)``.

        ``stays``: for each part with parts of its own, in order of traversal, whether it is the same list, dict or
        object afterwards, and only holds other things.
        """
        staying = False if self.is_leaf else next(stays, False)
        inner = [child.renewer(stays) for child in self.children]
        if self.is_leaf:
            build, admits = self._builder, self.admits
            if self.kind != "constant":
                return lambda _, tensors: build(tensors)
            return lambda value, tensors: value if admits(value) else build(tensors)
        make, fill_in = self._maker, self._filling_in_counts()

        def renew(value: Any, tensors: Iterator[Any]) -> Any:
            parts = parts_by_key(value, self.kind, self.keys, len(inner))
            children = [renewed(part, tensors) for renewed, part in zip(inner, parts, strict=True)]
            fill_in(children)
            if staying and put_in(value, self.kind, self.keys, children):
                return value
            as_before = staying and value is not None and all(map(is_, children, parts))
            return value if as_before else make(children)

        return renew

    @functools.cached_property
    def settled(self) -> Structure:
        """The same with one number for each that is carried."""
        if self.kind == "carried":
            return Structure(kind="constant", value=self.value)
        if not self.carries:
            return self
        return self.with_children([child.settled for child in self.children])

    @functools.cached_property
    def carries(self) -> bool:
        """Whether it holds numbers that are carried."""
        return self.kind == "carried" or any(child.carries for child in self.children)

    @functools.cached_property
    def carried_numbers(self) -> Callable[[Any], list[int]]:
        """Reads the numbers that are carried from a value of this structure."""
        if self.kind == "carried":
            return lambda value: [value]
        opened = self._opener()
        inner = [(place, child.carried_numbers) for place, child in enumerate(self.children) if child.carries]

        def read(value: Any) -> list[int]:
            children = list(opened(value) or ())
            return [number for place, numbers in inner for number in numbers(children[place])]

        return read

    def with_children(self, children: Iterable[Structure]) -> Structure:
        return Structure(kind=self.kind, keys=self.keys, children=tuple(children), type=self.type, value=self.value)

    @functools.cached_property
    def _reader(self) -> Callable[[Any, list[Tensor]], bool]:
        """``read``, with what does not depend on the value done once: programs read their caches in every step."""
        if self.kind == "tensor":
            return _read_tensor
        if self.is_leaf:
            admits = self.admits
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
        quickly = quick_opener(self.kind, self.keys, len(self.children))

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

    def _taken_apart(self, value: Any) -> Items | None:
        """The parts of a value, or None where it is not a container of this kind, class and keys."""
        items = items_of(value)
        if items is None or (items.kind, items.keys, len(items.children)) != self._form:
            return None
        return items if self._is_class_of(value, items) else None

    @functools.cached_property
    def _form(self) -> tuple[Kind, tuple[Scalar, ...], int]:
        return self.kind, self.keys, len(self.children)

    def _is_class_of(self, value: Any, items: Items) -> bool:
        """True if a value is of the very class: one derived from it may behave otherwise. A class that togi imported
        from a file under a name of its own is the program's own import of it. Of lists and tuples any will do, with
        whatever factory of a dict."""
        if self.kind not in NAMED:
            return self.kind != "pytree" or items.context == self.value
        if self.kind == "mapping" and not isinstance(value, defaultdict) and items.context != self.value:
            return False
        return self._is_of_class(value)

    def _is_of_class(self, value: Any) -> bool:
        if self.type == name_of(type(value)):
            return True
        try:
            return type(value) is find_class(self.type, "class" if self.kind == "opaque" else self.kind)
        except ArtifactError:
            return False

    @functools.cached_property
    def _builder(self) -> Callable[[Iterator[Tensor]], Any]:
        """``build``, with classes and constants looked up once."""
        if self.kind in ("tensor", "carried"):
            return next
        if self.kind == "opaque":
            raise ValueError(f"a {self.type} cannot be rebuilt from tensors")
        if self.is_leaf:
            constant = constant_of(self.kind, self.type, self.value)
            return lambda _: constant
        builders, make = [child._builder for child in self.children], self._maker
        if not self._counts:
            return lambda tensors: make([build(tensors) for build in builders])
        fill_in = self._filling_in_counts()

        def build(tensors: Iterator[Tensor]) -> Any:
            children = [build(tensors) for build in builders]
            fill_in(children)
            return make(children)

        return build

    @functools.cached_property
    def _maker(self) -> Callable[[list[Any]], Any]:
        """Makes the container of its children, with its class looked up once."""
        of_its_own = self.kind in SEQUENCES and self.type and not self.is_opaque
        cls = find_class(self.type, self.kind) if self.kind in NAMED or of_its_own else None
        if self.kind == "object":
            self._check_classes_in(cls)
        return maker(self.kind, self.keys, self.value, cls)

    def _filling_in_counts(self) -> Callable[[list[Any]], None]:
        counts = self._counts

        def fill_in(children: list[Any]) -> None:
            for count, counted, dim, more in counts:
                children[count] = _count(children[counted], dim, more)

        return fill_in

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

    def leaves(self) -> Iterator[Structure]:
        return (part for part in self.parts() if part.is_leaf)

    @property
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
        known = self.kind in ("mapping", "namedtuple", *SEQUENCES)
        return self.kind == "opaque" or (known and self.value == OTHER_ATTRIBUTES)

    def named_leaves(self, path: str = "") -> Iterator[tuple[str, Structure]]:
        """``(path, leaf)``, in the order of traversal."""
        if self.is_leaf:
            yield path, self
            return
        for key, child in zip(self._labels, self.children, strict=True):
            yield from child.named_leaves(f"{path}{key}")

    def describe(self) -> str:
        if self.kind in ("tuple", "list", "dict"):
            inner = [str(k) for k in self.keys] if self.keys else [c.describe() for c in self.children]
            return f"a {self.type or self.kind} of {len(self.children)} ({', '.join(inner)})"
        if self.kind in ("constant", "dtype", "device"):
            return f"the {self.kind} {self.value!r}"
        if self.kind == "count":
            return f"the size of {self.keys[0]} in dimension {self.keys[1]}"
        if self.kind == "carried":
            return f"a number from {self.keys[0]} on"
        return f"a {self.type or self.kind}"


TENSOR = Structure(kind="tensor")


def _leaf_of(value: Any) -> Structure:
    kind, class_name, written = described_leaf(value)
    return TENSOR if kind == "tensor" else Structure(kind=kind, type=class_name, value=written)


def _container_of(value: Any, items: Items, children: list[Structure]) -> Structure:
    if items.kind in WHOLE and any(leaf.kind == "opaque" for child in children for leaf in child.leaves()):
        return Structure(kind="opaque", type=name_of(type(value)))
    class_name, kept = class_of(value, items)
    return Structure(kind=items.kind, keys=items.keys, children=tuple(children), type=class_name, value=kept)


def _read_tensor(value: Any, tensors: list[Tensor]) -> bool:
    tensors.append(value)
    return True


def _count(tensor: Any, dim: int, more: int) -> int | None:
    """A size of it, plus a constant; None where it is not a tensor with such a dimension. A symbol where sizes are
    symbols."""
    shape = getattr(tensor, "shape", ())
    return shape[dim] + more if dim < len(shape) else None
