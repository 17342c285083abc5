"""What the parts of a live module hold in plain attributes: an engine has them as the constants that they were."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from operator import itemgetter
from typing import Any

from torch import Tensor, nn

from togi.artifact.calls_code import FORWARD, assigned_by_calls
from togi.torch_internals.autograd import version_of

TORCHS_OWN = frozenset(
    (*vars(nn.Module()), *(name for name, member in vars(nn.Module).items() if not callable(member)))
)
"""Attributes that every module has."""
_TORCHS_METHODS = frozenset(name for name, member in vars(nn.Module).items() if callable(member))
_MOST_ITEMS, _DEEPEST = 64, 8


class PlainAttributes:
    """Numbers, texts, functions, tensors and short collections, as the dicts of modules hold them. Objects are known by
    which they are; what is inside of them is not looked at."""

    def __init__(self, parts: Mapping[str, nn.Module], state: Collection[str]) -> None:
        """``state``: attributes that change from call to call. So do those that the calls' own code assigns."""
        self._not_watched = TORCHS_OWN | assigned_by_calls({type(part) for part in parts.values()})
        self._state = frozenset(state)
        self._parts = {f"{name}." if name else "": vars(part) for name, part in parts.items()}
        self._dicts = tuple(self._parts.values())
        self._written: dict[int, tuple[str, Tensor, int]] = {}
        self.look_again()

    def look_again(self) -> None:
        """From now on they are meant to be as they are, but for tensors that were written to since they were first seen
        here."""
        self._before = {
            prefix: {name: _copied(value) for name, value in held.items() if self._is_watched(prefix, name, value)}
            for prefix, held in self._parts.items()
        }
        filled = [(self._parts[prefix], before) for prefix, before in self._before.items() if before]
        self._filled = tuple(held for held, _ in filled)
        self._getters: tuple[Callable[[Any], Any], ...] = tuple(itemgetter(*before) for _, before in filled)
        self._values = [get(before) for get, (_, before) in zip(self._getters, filled, strict=True)]
        self._count = sum(map(len, self._dicts))
        self._look_at_tensors()

    def _look_at_tensors(self) -> None:
        earlier, held = self._written, [(name, tensor) for name, tensor in self.tensors() if not tensor.is_inference()]
        self._written = {id(t): earlier.get(id(t)) or (name, t, version_of(t)) for name, t in held}
        self._tensors = tuple(tensor for _, tensor, _ in self._written.values())
        self._writes = sum(count for _, _, count in self._written.values())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Those that are held by themselves or in lists, tuples and dicts, by name."""
        for prefix, before in self._before.items():
            for name in before:
                yield from _tensors_in(self._parts[prefix][name], f"{prefix}{name}")

    def are_the_same(self) -> bool:
        """Whether all are as they were."""
        try:
            if self._values != [get(held) for get, held in zip(self._getters, self._filled, strict=True)]:
                return False
        except Exception:  # one is gone; another class's own ==
            return False
        if sum(map(len, self._dicts)) != self._count:  # a wrapper put round ``forward`` is no other attribute
            if any(self._added(prefix) for prefix in self._parts):
                return False
            self._count = sum(map(len, self._dicts))
        return True

    def are_unwritten(self) -> bool:
        """Whether none of their tensors was written to."""
        return sum(map(version_of, self._tensors)) == self._writes

    def what_changed(self) -> str:
        """The first that is not as it was, in words; empty where all are."""
        for prefix, before in self._before.items():
            held = self._parts[prefix]
            for name, value in before.items():
                if name not in held:
                    return f"its attribute '{prefix}{name}' is gone"
                if not _equal(value, held[name]):
                    return f"its attribute '{prefix}{name}' was given another value"
            for name in self._added(prefix):
                return f"the attribute '{prefix}{name}' was added"
        for name, tensor, count in self._written.values():
            if version_of(tensor) != count:
                return f"the tensor in its attribute '{name}' was written to"
        return ""

    def _added(self, prefix: str) -> list[str]:
        before = self._before[prefix]
        return [
            name
            for name, value in self._parts[prefix].items()
            if name not in before and self._is_watched(prefix, name, value)
        ]

    def _is_watched(self, prefix: str, name: str, value: Any) -> bool:
        if name in _TORCHS_METHODS and callable(value):
            # what stands for another method (``to``, ``train``) computes nothing; in the module's own forward a switch
            # stands, or another library's wrapper round it
            return name == FORWARD and prefix != ""
        return name not in self._not_watched and f"{prefix}{name}" not in self._state


class _TheTensor:
    """Equal to one tensor alone: others of the same values may be written to."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return other is self.tensor

    __hash__ = None  # type: ignore[assignment]


def _tensors_in(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Those that an attribute holds by itself or in lists, tuples and dicts, with their names."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, list | tuple | dict) and depth < _DEEPEST:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors_in(item, f"{name}[{key!r}]", depth + 1)


def _copied(value: Any) -> Any:
    """Short collections anew, since they may be changed in place. A long one is known by which it is."""
    if isinstance(value, Tensor):
        return _TheTensor(value)
    if type(value) in (list, tuple) and len(value) <= _MOST_ITEMS:
        return type(value)(map(_copied, value))
    if type(value) is set and len(value) <= _MOST_ITEMS:
        return set(value)
    if type(value) is dict and len(value) <= _MOST_ITEMS:
        return {key: _copied(item) for key, item in value.items()}
    return value


def _equal(before: Any, now: Any) -> bool:
    try:
        return bool(before == now)
    except Exception:  # another class's own ==
        return now is before
