"""The rules by operator, and what a rule is given.

A rule is asked where an operand holds rows, or where a number of the call grows with the rows. It returns the state of
each result, or one for all, and raises Depends where rows would mix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from togi.graph.dependence.recording import OperatorCall, RecordedTensor
from togi.graph.dependence.state import SAME, Depends, Rows, Same
from togi.torch_internals.operators import OpOverload, schema_of
from togi.torch_internals.tensors import tree_leaves

Found = Rows | Same
Answer = Found | Sequence[Found | None]
"""None for a result that nobody may use."""


@dataclass(frozen=True)
class Operands:
    """A call whose tensors are all the same or have rows."""

    call: OperatorCall
    states: dict[RecordedTensor, Found]

    def __getitem__(self, name: str) -> Any:
        return self.call.arguments.get(name)

    @property
    def result(self) -> RecordedTensor:
        return self.call.results[0]

    @property
    def rank(self) -> int:
        return len(self.result.shape)

    def state(self, name: str) -> Found:
        """The state of one argument; ``SAME`` where it is not given."""
        value = self[name]
        return self.states[value] if isinstance(value, RecordedTensor) else SAME

    def rows(self, name: str) -> Rows:
        """The rows of one argument, where no other may have rows."""
        state = self.state(name)
        others = [v for v in self.tensors() if v is not self[name] and isinstance(self.states[v], Rows)]
        if isinstance(state, Same) or others:
            raise Depends(f"{self.call.name} takes rows where it is not known to keep them apart")
        return state

    def tensors(self) -> Iterator[RecordedTensor]:
        return (leaf for leaf in tree_leaves(self.call.arguments) if isinstance(leaf, RecordedTensor))

    def kept(self, name: str, mixed: Sequence[int]) -> Rows:
        """The rows of an argument, none of whose dimensions in ``mixed`` holds them."""
        state, rank = self.rows(name), len(self[name].shape)
        if state.dim in [dim % max(rank, 1) for dim in mixed]:
            raise Depends(f"{self.call.name} works across the rows")
        return state


Rule = Callable[[Operands], Answer]


@dataclass(frozen=True)
class Entry:
    rule: Rule
    sizes: frozenset[str]
    """Arguments that may grow with the rows: the rule looks at them, or the shape of the result tells."""
    numbers: bool
    """It takes row numbers, too."""
    shape_only: bool
    """It reads no values of its tensors."""


RULES: dict[str, Entry] = {}


def rule(names: str, *, sizes: str = "", numbers: bool = False, shape_only: bool = False) -> Callable[[Rule], Rule]:
    """Register for operators, by name without namespace where that is ``aten``, and without ``_`` of in-place forms."""

    def register(function: Rule) -> Rule:
        for name in names.split():
            RULES[name] = Entry(function, frozenset(sizes.split()), numbers, shape_only)
        return function

    return register


def mixing(names: str, dims: Callable[[Operands], Sequence[int]], argument: str = "self") -> None:
    """Register operators that mix the positions of these dimensions of one argument, and of no others."""
    rule(names)(lambda given: given.kept(argument, dims(given)))


def entry_of(operator: Any) -> Entry | None:
    """The entry of an operator; None where nothing is known of it."""
    if not isinstance(operator, OpOverload):
        return None
    schema = schema_of(operator)
    name = schema.name.removeprefix("aten::")
    if schema.is_mutable and name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return RULES.get(name) or (RULES["pointwise"] if _is_pointwise(name) else None)


@functools.cache
def _is_pointwise(name: str) -> bool:
    """True by torch's own mark, which stands at the functional form."""
    packet = getattr(torch.ops.aten, name, None) if "::" not in name else None
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


def aligned(state: Found, rank: int, of: int) -> Found:
    """The state of an operand of a broadcast, in a result of ``of`` dimensions."""
    return state if isinstance(state, Same) else state.at(state.dim + of - rank)


def agreed(call: OperatorCall, states: Sequence[Found]) -> Found:
    """The one way in which all that have rows hold them."""
    rows = list(dict.fromkeys(state for state in states if isinstance(state, Rows)))
    if len(rows) > 1:
        raise Depends(f"{call.name} meets rows along different dimensions")
    return rows[0] if rows else SAME
