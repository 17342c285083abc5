"""Sizes and values of a call as seen by the analysis: what the whole batch and a piece of it have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import sympy


class Depends(Exception):
    """An operator mixes rows, or is not known to keep them apart. The text says which."""


@dataclass(frozen=True)
class Times:
    """A size or number that is ``each`` for every row."""

    each: Any


class Unlike:
    """A number that differs between the whole and the piece in another way."""


UNLIKE = Unlike()


def plain(value: Any) -> bool:
    """The number is the same for the whole and the piece."""
    return not isinstance(value, Times | Unlike)


def product(sizes: Iterable[Any]) -> Any:
    return math.prod(sizes)


def quotient(number: Any, by: Any) -> Any:
    """``number / by`` where that leaves no rest, else None."""
    if isinstance(number, int) and isinstance(by, int):
        return number // by if by and number % by == 0 else None
    ratio = sympy.cancel(sympy.sympify(number) / by)
    return ratio if sympy.fraction(ratio)[1] == 1 else None


@dataclass(frozen=True)
class Rows:
    """The piece holds the same values as the whole at the positions of its rows.

    The dimension has ``outer * rows * inner`` positions: a row of the batch stands at every ``(a, row, b)``.
    """

    dim: int
    outer: Any = 1
    inner: Any = 1
    numbers: bool = False
    """The values count the rows (``arange``): they are good for indexing by row, and for nothing else."""

    @property
    def times(self) -> Times:
        return Times(self.outer * self.inner)

    def at(self, dim: int) -> Rows:
        return replace(self, dim=dim)


@dataclass(frozen=True)
class Same:
    """The value does not depend on the batch."""


SAME = Same()


@dataclass(frozen=True)
class Mixed:
    """A value of which nothing is known: why, and which operator did it."""

    reason: str
    call: int = -1


State = Rows | Same | Mixed


def fits(state: Rows | Same, shape: tuple[Any, ...]) -> bool:
    """The shapes of the whole and of the piece are as the state says. Holds each rule to account."""
    if isinstance(state, Same):
        return all(map(plain, shape))
    others = (size for dim, size in enumerate(shape) if dim != state.dim)
    return 0 <= state.dim < len(shape) and shape[state.dim] == state.times and all(map(plain, others))
