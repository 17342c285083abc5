"""What the parts of a live module hold in plain attributes: an engine has them as the constants that they were."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from operator import itemgetter
from typing import Any

from torch import Tensor, nn

_TORCHS_OWN = frozenset((*dir(nn.Module), *vars(nn.Module())))
"""``forward`` among them, in whose place a part itself stands."""
_MOST_ITEMS = 64


class PlainAttributes:
    """Numbers, texts, functions, tensors and short collections, as the dicts of modules hold them. Objects are known by
    which they are; what is inside of them is not looked at."""

    def __init__(self, parts: Mapping[str, nn.Module], state: Collection[str]) -> None:
        """``state``: attributes that change from call to call. So do those that the calls' own code assigns."""
        classes = {type(part) for part in parts.values()}
        assigned = frozenset(name for cls in classes for name in _assigned_by_calls(cls))
        self._not_watched = _TORCHS_OWN | assigned
        self._state = frozenset(state)
        self._parts = {f"{name}." if name else "": vars(part) for name, part in parts.items()}
        self._dicts = tuple(self._parts.values())
        self.look_again()

    def look_again(self) -> None:
        """From now on they are meant to be as they are."""
        self._before = {
            prefix: {name: _copied(value) for name, value in held.items() if self._is_watched(prefix, name)}
            for prefix, held in self._parts.items()
        }
        filled = [(self._parts[prefix], before) for prefix, before in self._before.items() if before]
        self._filled = tuple(held for held, _ in filled)
        self._getters: tuple[Callable[[Any], Any], ...] = tuple(itemgetter(*before) for _, before in filled)
        self._values = [get(before) for get, (_, before) in zip(self._getters, filled, strict=True)]
        self._count = sum(map(len, self._dicts))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Those that are held by themselves, by name."""
        for prefix, before in self._before.items():
            yield from ((f"{prefix}{name}", value) for name, value in before.items() if isinstance(value, Tensor))

    def are_the_same(self) -> bool:
        """Whether all are as they were."""
        try:
            if [get(held) for get, held in zip(self._getters, self._filled, strict=True)] != self._values:
                return False
        except Exception:  # one is gone; the truth of a tensor that is not one number, or another class's own ==
            return False
        if sum(map(len, self._dicts)) != self._count:  # a wrapper put round ``forward`` is no other attribute
            if any(self._added(prefix) for prefix in self._parts):
                return False
            self._count = sum(map(len, self._dicts))
        return True

    def what_changed(self) -> str:
        """The first that is not as it was, in words; empty where all are."""
        for prefix, before in self._before.items():
            held = self._parts[prefix]
            for name, value in before.items():
                if name not in held:
                    return f"its attribute '{prefix}{name}' is gone"
                if not _equal(held[name], value):
                    return f"its attribute '{prefix}{name}' was given another value"
            for name in self._added(prefix):
                return f"the attribute '{prefix}{name}' was added"
        return ""

    def _added(self, prefix: str) -> list[str]:
        before = self._before[prefix]
        return [name for name in self._parts[prefix] if name not in before and self._is_watched(prefix, name)]

    def _is_watched(self, prefix: str, name: str) -> bool:
        return name not in self._not_watched and f"{prefix}{name}" not in self._state


def _copied(value: Any) -> Any:
    """Short collections anew, since they may be changed in place. A long one is known by which it is."""
    if type(value) in (list, set) and len(value) <= _MOST_ITEMS:
        return type(value)(map(_copied, value))
    if type(value) is dict and len(value) <= _MOST_ITEMS:
        return {key: _copied(item) for key, item in value.items()}
    return value


def _equal(now: Any, before: Any) -> bool:
    if isinstance(now, Tensor) or isinstance(before, Tensor):
        return now is before
    try:
        return bool(now == before)
    except Exception:  # another class's own ==
        return now is before


def _assigned_by_calls(cls: type) -> Iterator[str]:
    """Names of attributes that ``forward`` assigns, or the methods that it names."""
    open_, seen = ["forward"], {"forward"}
    while open_:
        function = getattr(cls, open_.pop(), None)
        function = getattr(function, "__func__", function)
        # what torch.fx makes is in no module
        if not isinstance(function, types.FunctionType) or (function.__module__ or "").startswith("torch."):
            continue
        for step in dis.get_instructions(function.__code__):
            if step.opname == "STORE_ATTR":
                yield step.argval
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval not in seen:
                seen.add(step.argval)
                open_.append(step.argval)
