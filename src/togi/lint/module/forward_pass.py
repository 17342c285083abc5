"""The record of one forward pass: operations with shapes, arguments and values that flow between them. No tensor in it.

Values are numbered: an operation that takes number 7 reads what the operation that made number 7 wrote. Writing in
place makes a new number, so that "who uses this?" has one answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Value:
    """A tensor, without its contents."""

    number: int
    shape: tuple[int, ...]
    dtype: str
    """``float32``."""
    itemsize: int
    elements: int
    """Elements in memory: of an expanded tensor fewer than its shape says."""
    floating: bool
    constant: bool = False
    """A parameter, a buffer, or a view of one."""

    @property
    def bytes(self) -> int:
        return self.elements * self.itemsize


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of Python code."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One ATen operation."""

    index: int
    """Position in the pass."""
    op: str
    """``convolution.default``."""
    layer: str
    """Qualified name of the innermost module that was running; empty for the module itself."""
    given: Mapping[str, Any]
    """Arguments by schema name: values, lists of values, numbers, None."""
    outputs: tuple[Value, ...]
    view: bool
    """It only makes a new view of its argument."""
    written: frozenset[str] = frozenset()
    """Names of the arguments that it writes in place."""
    flops: int | None = None
    """Of matrix products, convolutions and attention (a multiplication and an addition count as two); None: other."""
    line: Line | None = None
    """The innermost line of code outside torch."""

    @property
    def name(self) -> str:
        """``convolution``."""
        return self.op.partition(".")[0]

    @property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(_values(self.given.values()))

    def value(self, argument: str) -> Value | None:
        found = self.given.get(argument)
        return found if isinstance(found, Value) else None


def _values(items: Any) -> Iterator[Value]:
    for item in items:
        if isinstance(item, Value):
            yield item
        elif isinstance(item, list | tuple):
            yield from _values(item)


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """One call of a torch function by Python code, above the level of operations."""

    name: str
    layer: str
    numbers: Mapping[str, Any]
    """Arguments that are no tensors, by parameter name."""
    line: Line | None


@dataclass(frozen=True, kw_only=True)
class ForwardPass:
    """Everything that one forward pass did."""

    calls: tuple[Call, ...] = ()
    functions: tuple[FunctionCall, ...] = ()
    """Dropout and attention functions only."""
    runs: Mapping[str, int] = field(default_factory=dict)
    """How often each named module ran."""
    outputs: frozenset[int] = frozenset()
    """Numbers of the values that the module returned."""
    seconds: tuple[float, ...] = ()
    """Of each call, where they were timed."""
    error: str = ""
    """Why it could not be watched; then there are no calls."""
