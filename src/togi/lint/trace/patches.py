"""Replaces attributes of classes and modules for a while."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from typing_extensions import Self

_ABSENT = object()


class Patches:
    """A context manager. What a class only inherited is removed again, not copied down."""

    def __init__(self) -> None:
        self._wanted: list[tuple[Any, str, Any]] = []
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace ``owner.name`` on entry. A name that this version of torch does not have is added all the same."""
        self._wanted.append((owner, name, value))

    def __enter__(self) -> Self:
        for owner, name, value in self._wanted:
            self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, value)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
