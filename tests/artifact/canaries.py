"""Classes that a hostile artifact may name, imported before it is loaded: each leaves a file if a line of it runs."""

from __future__ import annotations

import enum
from collections import UserDict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils import _pytree

SPRUNG = "sprung"


def spring(*_: Any, **__: Any) -> Any:
    Path(SPRUNG).touch()


class Items(dict[str, Any]):
    __init__ = __setitem__ = update = spring


class Wrapped(UserDict):  # type: ignore[type-arg]
    __init__ = __setitem__ = spring


class Plain:
    __init__ = __setattr__ = spring


class WithProperty:
    y = property(lambda _: None, spring)


@dataclass
class Fields:
    y: Any
    norm: Any

    __post_init__ = __setattr__ = spring


@dataclass(init=False)
class OwnInit:
    y: Any
    norm: Any

    __init__ = spring


class Deleted:
    __del__ = spring


class Restored:
    __setstate__ = spring


class Slotted:
    __slots__ = ("norm", "y")
    __init__ = spring


class Tuple(namedtuple("Tuple", ["y", "norm"])):
    def __new__(cls, *_: Any, **__: Any) -> Any:
        spring()

    __init__ = spring


class Member(enum.Enum):
    ONE = 1
    _missing_ = spring


class _Meta(enum.EnumMeta):
    __getitem__ = spring


class OwnLookup(enum.Enum, metaclass=_Meta):
    ONE = 1


class Registered:
    """Its class reads its context by a function of its own."""


_pytree.register_pytree_node(
    Registered,
    lambda _: ([], None),
    lambda _children, _context: Registered(),
    serialized_type_name=f"{__name__}.Registered",
    to_dumpable_context=lambda _: "null",
    from_dumpable_context=spring,
)


def __getattr__(name: str) -> Any:
    """As transformers does, a module may import when it is asked for a name."""
    if not name.startswith("__"):
        spring()
    raise AttributeError(name)
