"""The structure of nested values of tensors, as JSON, and nested values built again from tensors.

Structures known: tensors, None, bool, int, float, str, tuple, namedtuple, list, dict, mappings with a class of their
own (transformers' ModelOutput) and dataclasses. Anything else is ``opaque``: it can be run live but not stored.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from togi.core.errors import ArtifactError
from togi.core.records import Record, Scalar

if TYPE_CHECKING:
    from torch import Tensor

CONSTANTS = (type(None), bool, int, float, str)
Kind = Literal["tensor", "constant", "tuple", "namedtuple", "list", "dict", "mapping", "dataclass", "opaque"]


class Structure(Record):
    """A nested structure with numbered tensors as leaves (their order is the order of traversal)."""

    kind: Kind
    children: tuple[Structure, ...] = ()
    keys: tuple[Scalar, ...] = ()
    type: str = ""
    """``module:qualified name`` of a namedtuple, mapping or dataclass; of the value where it is opaque."""
    value: Scalar = None

    @classmethod
    def of(cls, value: Any) -> Structure:
        import torch

        if isinstance(value, torch.Tensor):
            return TENSOR
        if isinstance(value, CONSTANTS):
            return cls(kind="constant", value=value)
        items = _items(value)
        if items is None:
            return cls(kind="opaque", type=_name(type(value)))
        kind, keys, children = items
        named = kind in ("namedtuple", "mapping", "dataclass")
        return cls(
            kind=kind,
            keys=keys,
            children=tuple(cls.of(child) for child in children),
            type=_name(type(value)) if named else "",
        )

    def walk(self, value: Any, path: str = "") -> Iterator[tuple[str, Structure, Any]]:
        """``(path, structure, value)`` of every leaf of a value of this structure.

        Raises ValueError naming the path where the value has another structure.
        """
        if self.kind in ("tensor", "constant", "opaque"):
            yield path, self, value
            return
        items = _items(value)
        if items is None or items[0] != self.kind or items[1] != self.keys or len(items[2]) != len(self.children):
            raise ValueError(f"{path or 'the value'} is {_describe(value)}, expected {self.describe()}")
        for key, child, item in zip(_labels(self), self.children, items[2], strict=True):
            yield from child.walk(item, f"{path}{key}")

    def build(self, tensors: Iterator[Tensor]) -> Any:
        """The value again, taking tensors in order of traversal."""
        if self.kind == "tensor":
            return next(tensors)
        if self.kind == "constant":
            return self.value
        if self.kind == "opaque":
            raise ValueError(f"a {self.type} cannot be rebuilt from tensors")
        children = [child.build(tensors) for child in self.children]
        if self.kind == "tuple":
            return tuple(children)
        if self.kind == "list":
            return children
        fields = dict(zip(self.keys, children, strict=True))
        return (
            fields if self.kind == "dict" else _class(self.type)(**{str(key): child for key, child in fields.items()})
        )

    def leaves(self) -> Iterator[Structure]:
        if not self.children:
            if self.kind in ("tensor", "constant", "opaque"):
                yield self
            return
        for child in self.children:
            yield from child.leaves()

    def describe(self) -> str:
        if self.kind in ("tuple", "list", "dict"):
            inner = [str(k) for k in self.keys] if self.keys else [c.describe() for c in self.children]
            return f"a {self.kind} of {len(self.children)} ({', '.join(inner)})"
        return f"the constant {self.value!r}" if self.kind == "constant" else f"a {self.type or self.kind}"


TENSOR = Structure(kind="tensor")


def merged(first: Structure, second: Structure) -> Structure:
    """What two outputs have in common: a part that differs from call to call cannot be rebuilt from tensors alone."""
    if first == second:
        return first
    alike = (first.kind, first.keys, first.type, len(first.children)) == (
        second.kind,
        second.keys,
        second.type,
        len(second.children),
    )
    if first.children and alike:
        children = tuple(merged(a, b) for a, b in zip(first.children, second.children, strict=True))
        return first.model_copy(update={"children": children})
    kind = first.type or (type(first.value).__name__ if first.kind == "constant" else first.kind)
    return Structure(kind="opaque", type=f"{kind} that differs from call to call")


def _items(value: Any) -> tuple[Kind, tuple[Scalar, ...], list[Any]] | None:
    """``(kind, keys, children)`` of a container, or None when it is not a known one."""
    if isinstance(value, tuple):
        return (
            ("namedtuple", tuple(value._fields), list(value))
            if hasattr(value, "_fields")
            else ("tuple", (), list(value))
        )
    if isinstance(value, list):
        return "list", (), value
    if isinstance(value, Mapping):
        keys = tuple(value)
        plain = type(value) is dict
        if not all(isinstance(key, str if not plain else str | int | float | bool) for key in keys):
            return None
        return ("dict" if plain else "mapping"), keys, [value[key] for key in keys]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return "dataclass", tuple(fields), [getattr(value, field) for field in fields]
    return None


def _labels(structure: Structure) -> list[str]:
    if structure.kind in ("tuple", "list"):
        return [f"[{i}]" for i in range(len(structure.children))]
    if structure.kind in ("dict", "mapping"):
        return [f"[{key!r}]" for key in structure.keys]
    return [f".{key}" for key in structure.keys]


def _describe(value: Any) -> str:
    items = _items(value)
    return f"a {type(value).__name__}" + (f" of {len(items[2])}" if items else "")


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str) -> type:
    """The class of a namedtuple, mapping or dataclass, imported by name; nothing else is ever returned."""
    module_name, _, qualified = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ArtifactError(
            f"the outputs are a {name}, which cannot be imported here ({error}). Install the package that defines it."
        ) from error
    known = isinstance(found, type) and (
        dataclasses.is_dataclass(found) or issubclass(found, Mapping) or hasattr(found, "_fields")
    )
    if not known:
        raise ArtifactError(f"{name} is not a dataclass, mapping or namedtuple: it is not built from a file")
    return found  # type: ignore[no-any-return]
