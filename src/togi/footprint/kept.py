"""What Python objects keep of a call: the dicts, lists and variables that a function reaches, before it and after it.

A run on tensors without values leaves such tensors in caches. They are found here, and what was there before is put
back.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from togi.core.user_code import Origin, names_in, origin
from togi.subject.leaves import CONSTANTS, holds_nothing
from togi.subject.program import parts_of
from togi.torch_internals.tensors import FakeTensor

_DEEPEST = 8
_MOST = 20_000
"""Levels and values that are looked through."""
_LONGEST = 10_000
"""A longer list or dict holds data, and is not looked into."""
_CONTAINERS = (dict, list, tuple, set, deque)


class KeptChange(NamedTuple):
    """An entry that holds another value than before; one of both is empty where it is new or gone."""

    name: str
    before: tuple[Any, ...]
    now: tuple[Any, ...]


class Kept:
    """What a callable reaches, as it is when this is made."""

    def __init__(self, call: Any) -> None:
        self._before = [(holder, holder.entries()) for holder in _holders(call)]

    def also_in(self, other: Kept) -> Kept:
        """What the other reaches, too."""
        theirs = {id(holder.value) for holder, _ in other._before}
        both = Kept(None)
        both._before = [(holder, before) for holder, before in self._before if id(holder.value) in theirs]
        return both

    def changes(self) -> Iterator[KeptChange]:
        """The entries that are others now, in order."""
        for holder, before in self._before:
            now = holder.entries()
            for key in {**before, **now}:
                old, new = ((entries[key],) if key in entries else () for entries in (before, now))
                if len(old) != len(new) or any(map(_differ, old, new)):
                    yield KeptChange(key if isinstance(key, str) else holder.name, old, new)

    def tensors(self) -> list[Tensor]:
        """Those without values that are there now, and were not."""
        return [tensor for change in self.changes() for tensor in fakes_in(change.now)]

    def put_back(self) -> None:
        """If a tensor without values is there now, or may be, all is as it was again: a cache notes next to its tensors
        how many it has. What a thread has written there meanwhile is lost."""
        changed = [
            (holder, before, now)
            for holder, before in self._before
            if before.keys() != (now := holder.entries()).keys()
            or any(_differ(value, now[key]) for key, value in before.items())
        ]
        if any(holder.is_cache for holder, *_ in changed) or self.tensors():
            for holder, before, now in changed:
                holder.put_back(before, now)


@dataclass(frozen=True)
class _Holder:
    """Something that holds values and can be written."""

    name: str
    value: Any
    """A dict, list, deque or set, the cell of a variable, or a function with a cache (``functools.lru_cache``)."""
    names: tuple[str, ...] = ()
    """Of a function's globals those that it names; of others all entries are meant."""

    @property
    def is_cache(self) -> bool:
        """Nobody can look into it: its size is its only entry."""
        return hasattr(type(self.value), "cache_clear")

    def entries(self) -> dict[Any, Any]:
        if self.is_cache:
            return {self.name: self.value.cache_info().currsize}
        if isinstance(self.value, types.CellType):
            try:
                return {self.name: self.value.cell_contents}
            except ValueError:  # not filled yet
                return {}
        if self.names:
            return {name: self.value[name] for name in self.names if name in self.value}
        return dict(self.value) if isinstance(self.value, dict) else dict(enumerate(self.value))

    def put_back(self, before: dict[Any, Any], now: dict[Any, Any]) -> None:
        value = self.value
        if self.is_cache:
            if not any(before.values()):  # else it holds what was there before, too
                value.cache_clear()
        elif isinstance(value, types.CellType):
            if before:
                (value.cell_contents,) = before.values()
            else:
                del value.cell_contents
        elif isinstance(value, dict):
            for key in now.keys() - before.keys():
                del value[key]
            value.update((key, old) for key, old in before.items() if key not in now or _differ(old, now[key]))
        elif isinstance(value, list):
            value[:] = before.values()
        else:
            value.clear()
            (value.update if isinstance(value, set) else value.extend)(before.values())


def _differ(one: Any, other: Any) -> bool:
    alike = is_number(one) and type(one) is type(other) and one == other
    return one is not other and not alike


def is_number(value: Any) -> bool:
    """A number or a text, or a tuple of such: the shape of a tensor."""
    return isinstance(value, CONSTANTS) or (
        isinstance(value, tuple) and all(isinstance(part, CONSTANTS) for part in value)
    )


def fakes_in(value: Any) -> list[Tensor]:
    """The tensors without values that a value holds."""
    return [found for _, found in _reached(value) if isinstance(found, FakeTensor)]


def _holders(call: Any) -> Iterator[_Holder]:
    for name, value in _reached(call):
        if isinstance(value, types.FunctionType):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            yield from (_Holder(variable, cell) for variable, cell in cells)
            names = names_in(value.__code__) if origin(value.__code__.co_filename) is Origin.USER else []
            if names:
                yield _Holder(name, value.__globals__, tuple(names))
        elif hasattr(type(value), "cache_clear") or (
            isinstance(value, dict | list | set | deque) and len(value) <= _LONGEST
        ):
            yield _Holder(name, value)


def _reached(value: Any) -> Iterator[tuple[str, Any]]:
    """A value and all that it leads to, with the last name on the way."""
    seen: dict[int, Any] = {}  # held, so that nothing else gets its number
    queue = deque([("", value, 0)])
    while queue and len(seen) < _MOST:
        name, found, depth = queue.popleft()
        if id(found) in seen:
            continue
        seen[id(found)] = found
        yield name, found
        if depth < _DEEPEST and not holds_nothing(found):
            queue.extend((inner or name, child, depth + 1) for inner, child in _inside(found))


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nn.Module):  # all of its modules at once: they lie deep
        yield from (("", vars(part)) for part in value.modules())
    elif isinstance(value, _CONTAINERS):
        if len(value) <= _LONGEST:
            yield from parts_of(dict(value) if isinstance(value, dict) else tuple(value))
    elif isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        yield from parts_of(value)
        yield "", vars(value) if isinstance(value, types.FunctionType) else ()
    elif not isinstance(value, type | types.ModuleType) and hasattr(value, "__dict__"):
        yield "", vars(value)
