"""Walks the operators of a call and knows for each value where its rows lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from togi.graph.dependence import rules  # noqa: F401 - fills the table
from togi.graph.dependence.recording import OperatorCall, RecordedCall, RecordedTensor
from togi.graph.dependence.rules.registry import Found, Operands, entry_of
from togi.graph.dependence.state import SAME, Depends, Mixed, Rows, Same, State, fits, plain
from togi.torch_internals.operators import OpOverload
from togi.torch_internals.tensors import tree_leaves


@dataclass(frozen=True)
class RowsVerdict:
    """The places of the rows of each result, or why they depend on each other."""

    along: tuple[int, ...] = ()
    reason: str = ""
    call: int = -1
    """The operator that is to blame; -1 where none is."""


def judged(recording: RecordedCall, cut: Sequence[int | None]) -> RowsVerdict:
    """Judge a paired recording.

    Args:
        cut: for each input the dimension that holds the rows; None where it is given whole.
    """
    return _RowsWalk(recording, cut).verdict()


@dataclass
class _RowsWalk:
    recording: RecordedCall
    cut: Sequence[int | None]
    states: dict[RecordedTensor, State] = field(default_factory=dict)
    spoilt: dict[int, Mixed] = field(default_factory=dict)
    """Memory into which something was written that its values' states do not tell of."""
    outside: set[int] = field(default_factory=set)
    forms: dict[tuple[Any, ...], State] = field(default_factory=dict)

    def verdict(self) -> RowsVerdict:
        for value, dim in zip(self.recording.inputs, self.cut, strict=True):
            state: Found = SAME if dim is None else Rows(dim)
            self._set(value, state if fits(state, value.shape) else Mixed("an input has another number of rows"))
        for number, call in enumerate(self.recording.calls):
            if reason := self._effect(call):
                return RowsVerdict(reason=reason, call=number)
            self._step(number, call)
        return self._answer()

    def _answer(self) -> RowsVerdict:
        if not all(map(plain, self.recording.numbers)):
            return RowsVerdict(reason="it returns a number that changes with how many rows there are")
        for value in self.recording.kept:
            state = self.state(value)
            if not isinstance(state, Same):
                reason = "it keeps something of its rows, and parts would leave that of the last one"
                return RowsVerdict(reason=reason, call=state.call if isinstance(state, Mixed) else -1)
        along = []
        for value in self.recording.results:
            state = self.state(value)
            if isinstance(state, Mixed):
                return RowsVerdict(reason=state.reason, call=state.call)
            if isinstance(state, Same) or (state.outer, state.inner) != (1, 1) or state.numbers:
                return RowsVerdict(reason="a result does not have one row for each row of the batch")
            along.append(state.dim)
        return RowsVerdict(tuple(along)) if along else RowsVerdict(reason="it returns no tensor")

    def state(self, value: RecordedTensor) -> State:
        """Now: memory that it shares may have been written since it was made."""
        if value.storage in self.spoilt:
            return self.spoilt[value.storage]
        if value not in self.states:
            self._set(value, self._found_outside(value))
        return self.states[value]

    def _found_outside(self, value: RecordedTensor) -> State:
        if value.real is None:  # another tensor of known memory (``x.data``), or one that an earlier call kept
            return self.forms.get(value.form, Mixed("it takes a tensor that no operator made"))
        self.outside.add(value.storage)
        return SAME if fits(SAME, value.shape) else Mixed("it takes another constant for fewer rows")

    def _set(self, value: RecordedTensor, state: State) -> None:
        self.states[value] = self.forms[value.form] = state

    def _effect(self, call: OperatorCall) -> str:
        """The effect besides its results that pieces would have otherwise."""
        operands = [self.state(value) for value in _tensors(call)]
        if call.reads and any(not isinstance(state, Same) for state in operands):
            return f"{call.name} hands values to Python"
        if not isinstance(call.operator, OpOverload) and any(not isinstance(state, Same) for state in operands):
            return f"{call.name} is not known to keep rows apart"  # it may write to what it is given
        if any(value.storage in self.outside for value in call.written):
            return f"{call.name} writes to a tensor that outlives the call"
        return ""

    def _step(self, number: int, call: OperatorCall) -> None:
        states: Sequence[State]
        try:
            states = self._found(call)
        except Depends as error:
            states = [Mixed(str(error), number)] * len(call.results)
        for value in call.written:
            result = states[0] if states else self._written_unseen(number, call)
            before = self.state(value)
            if isinstance(before, Mixed) or result != before:
                reason = result if isinstance(result, Mixed) else Mixed(f"{call.name} writes rows over others", number)
                self.spoilt[value.storage] = before if isinstance(before, Mixed) else reason
        for value, state in zip(call.results, states, strict=True):
            self._set(value, state)

    def _written_unseen(self, number: int, call: OperatorCall) -> State:
        """The tensor that an operator which returns nothing has written."""
        apart = all(isinstance(self.state(value), Same) for value in _tensors(call))
        return SAME if apart else Mixed(f"{call.name} is not known to keep rows apart", number)

    def _found(self, call: OperatorCall) -> Sequence[State]:
        entry = entry_of(call.operator)
        allowed = entry.sizes if entry is not None else frozenset()
        if _draws(call):
            raise Depends(f"{call.name} draws random numbers")
        grows = {name for name, value in call.arguments.items() if not all(map(plain, tree_leaves(value)))}
        if grows - allowed:
            raise Depends(f"{call.name} computes with the number of rows")
        states = {value: self.state(value) for value in _tensors(call)}
        mixed = [state for state in states.values() if isinstance(state, Mixed)]
        by_shape = entry is not None and entry.shape_only
        if mixed and not by_shape:
            return [mixed[0]] * len(call.results)
        if not grows and all(isinstance(state, Same) for state in states.values()):
            return [_checked(SAME, call, value) for value in call.results]
        if entry is None:
            raise Depends(f"{call.name} is not known to keep rows apart")
        counted = any(isinstance(state, Rows) and state.numbers for state in states.values())
        if counted and not (entry.numbers or by_shape):
            raise Depends(f"{call.name} computes with the numbers of the rows")
        known = {value: state for value, state in states.items() if not isinstance(state, Mixed)}
        answer = entry.rule(Operands(call, known))
        answers = list(answer) if isinstance(answer, Sequence) else [answer] * len(call.results)
        return [_checked(state, call, value) for state, value in zip(answers, call.results, strict=True)]


def _checked(state: Found | None, call: OperatorCall, value: RecordedTensor) -> State:
    if state is None or not fits(state, value.shape):
        return Mixed(f"{call.name} gives a result whose size does not follow the rows")
    return state


def _draws(call: OperatorCall) -> bool:
    if not isinstance(call.operator, OpOverload) or torch.Tag.nondeterministic_seeded not in call.operator.tags:
        return False
    return call.arguments.get("train") is not False and call.arguments.get("dropout_p") != 0


def _tensors(call: OperatorCall) -> Iterator[Any]:
    return (leaf for leaf in tree_leaves(call.arguments) if isinstance(leaf, RecordedTensor))
