"""Containers of values, taken apart and put together again.

Known are tuple, namedtuple, list, dict, mappings with a class of their own (transformers' ModelOutput), dataclasses,
plain objects (attributes and nothing else: transformers' caches) and classes that are registered with torch's pytree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple

from togi.core.quantities import a_type
from togi.core.records import Scalar
from togi.subject.classes import attributes_beside, check_registered, data_names, filled, is_data, is_mapping, is_plain

Container = Literal["tuple", "namedtuple", "list", "dict", "mapping", "dataclass", "object", "pytree"]
NAMED = ("namedtuple", "mapping", "dataclass", "object")
KEYED = ("dict", *NAMED)
WHOLE = ("object", "pytree")
"""Taken apart only where nothing in them is opaque."""


class Items(NamedTuple):
    """A container taken apart."""

    kind: Container
    keys: tuple[Scalar, ...]
    children: list[Any]
    context: Scalar = None


def items_of(value: Any) -> Items | None:
    """The parts of a container, or None when it is not a known one."""
    if isinstance(value, tuple):
        fields: tuple[str, ...] | None = getattr(value, "_fields", None)
        return Items("tuple" if fields is None else "namedtuple", fields or (), list(value))
    if isinstance(value, list):
        return Items("list", (), value)
    if is_mapping(type(value)):
        keys = tuple(value)
        plain = type(value) is dict
        if not all(isinstance(key, str if not plain else str | int | float | bool) for key in keys):
            return None
        beside = None if plain else attributes_beside(value)
        return Items("dict" if plain else "mapping", keys, list(value.values()), beside)
    if is_data(type(value)):
        names = data_names(value)
        return Items("dataclass", names, [getattr(value, name) for name in names])
    if is_plain(type(value)):  # type: ignore[arg-type]
        return Items("object", tuple(vars(value)), list(vars(value).values()))
    return _registered(value)


def _registered(value: Any) -> Items | None:
    """A value whose class torch's pytree knows."""
    from togi.torch_internals.tensors import one_level

    parts = one_level(value)
    return None if parts is None else Items("pytree", (), *parts)


def quick_opener(kind: str, keys: tuple[Scalar, ...], count: int) -> Callable[[Any], Collection[Any] | None]:
    """The parts of a container whose class is known to be right, or None where they are others."""
    if kind in ("dict", "mapping"):
        return lambda value: value.values() if tuple(value) == keys else None
    if kind == "object":
        return lambda value: vars(value).values() if tuple(vars(value)) == keys else None
    if kind == "dataclass":
        return lambda value: [getattr(value, str(key)) for key in keys] if data_names(value) == keys else None
    return lambda value: value if len(value) == count else None


def maker(kind: str, keys: tuple[Scalar, ...], context: Scalar, cls: Any) -> Callable[[Collection[Any]], Any]:
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


def labels(kind: str, keys: tuple[Scalar, ...], count: int) -> list[str]:
    """The children of a container as they are written behind it: ``[0]``, ``['key']``, ``.name``."""
    if kind in ("tuple", "list", "pytree"):
        return [f"[{i}]" for i in range(count)]
    return [f"[{key!r}]" if kind in ("dict", "mapping") else f".{key}" for key in keys]


def described(value: Any) -> str:
    items = items_of(value)
    return a_type(value) + (f" of {len(items.children)}" if items else "")
