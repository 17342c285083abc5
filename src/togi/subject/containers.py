"""Containers of values, taken apart and put together again.

Known are tuple, namedtuple, list, dict, mappings with a class of their own (transformers' ModelOutput), dataclasses,
plain objects (attributes and nothing else: transformers' caches) and classes that are registered with torch's pytree.
A list or tuple of another class of its own (``torch.Size``, what ``torch.topk`` returns) is one of its items, and where
it is given a plain one will do. It is made again as one of its class if that is known to hold nothing else.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from togi.core.quantities import a_type
from togi.subject.classes import (
    OTHER_ATTRIBUTES,
    attributes_beside,
    check_registered,
    data_names,
    factory_of,
    filled,
    is_data,
    is_mapping,
    is_plain,
    kept_by_class,
    name_of,
    of_items,
)

if TYPE_CHECKING:
    from togi.core.record import Scalar

Container = Literal["tuple", "namedtuple", "list", "dict", "mapping", "dataclass", "object", "pytree"]
NAMED = ("namedtuple", "mapping", "dataclass", "object")
KEYED = ("dict", *NAMED)
SEQUENCES = ("tuple", "list")
WHOLE = ("object", "pytree")
"""Taken apart only where nothing in them is opaque."""


class Items(NamedTuple):
    """A container taken apart."""

    kind: Container
    keys: tuple[Scalar, ...]
    children: list[Any]
    context: Scalar = None


def class_of(value: Any, items: Items) -> tuple[str, Scalar]:
    """What makes a container of the class of ``value`` out of its items: the name of the class where it has one of its
    own, and what else it keeps."""
    named = items.kind in NAMED or (items.kind in SEQUENCES and type(value) not in (tuple, list))
    kept: Scalar = kept_by_class(value)
    if items.context is not None:
        kept = items.context if kept is None else OTHER_ATTRIBUTES
    return name_of(type(value)) if named else "", kept


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
    """Puts the children of a container together again, of class ``cls`` where it has one of its own. Of a list or
    tuple None is a plain one."""
    if kind == "tuple" and cls is not None:
        return functools.partial(of_items, cls)
    if kind in SEQUENCES:
        return tuple if kind == "tuple" else list
    if kind == "pytree":
        from togi.torch_internals.tensors import from_one_level

        check_registered(str(context))
        return lambda children: from_one_level(list(children), str(context))
    if kind == "dict":
        return lambda children: dict(zip(keys, children, strict=True))
    names = tuple(map(str, keys))
    factory_of(context)  # raises now, not in a call
    return lambda children: filled(cls, kind, dict(zip(names, children, strict=True)), context)


def parts_by_key(value: Any, kind: str, keys: tuple[Scalar, ...], count: int) -> list[Any]:
    """The part of ``value`` at the place of each of ``count`` parts of a container; None where it has none there."""
    if kind in ("dict", "mapping"):
        return [value.get(key) for key in keys] if isinstance(value, Mapping) else [None] * count
    if kind == "object":
        return [getattr(value, "__dict__", {}).get(key) for key in keys]
    if kind == "dataclass":  # of which some keep their fields in slots
        return [getattr(value, str(key), None) for key in keys]
    held = value if kind != "pytree" and isinstance(value, list | tuple) else ()
    return [*held[:count], *[None] * (count - len(held))]


def put_in(value: Any, kind: str, keys: tuple[Scalar, ...], children: list[Any]) -> bool:
    """Make a container hold these parts alone. False where it is of another kind, or none that can be changed."""
    cls: Any = type(value)
    if kind == "list" and isinstance(value, list):
        value[:] = children
    elif kind in ("dict", "mapping") and cls in (dict, OrderedDict, defaultdict):
        value.clear()
        value.update(zip(keys, children, strict=True))
    elif kind in ("object", "dataclass") and is_plain(cls):
        vars(value).clear()
        vars(value).update(zip(map(str, keys), children, strict=True))
    elif kind == "dataclass" and is_data(cls) and data_names(value) == keys:
        for key, child in zip(keys, children, strict=True):
            object.__setattr__(value, str(key), child)
    else:
        return False
    return True


def labels(kind: str, keys: tuple[Scalar, ...], count: int) -> list[str]:
    """The children of a container as they are written behind it: ``[0]``, ``['key']``, ``.name``."""
    if kind in ("tuple", "list", "pytree"):
        return [f"[{i}]" for i in range(count)]
    return [f"[{key!r}]" if kind in ("dict", "mapping") else f".{key}" for key in keys]


def described(value: Any) -> str:
    items = items_of(value)
    return a_type(value) + (f" of {len(items.children)}" if items else "")
