"""One list of calls made of two recordings: each number is what the whole and the piece have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor

from togi.graph.dependence.recording import OperatorCall, RecordedCall, RecordedTensor
from togi.graph.dependence.state import UNLIKE, Depends, Times


@dataclass
class Pairing:
    """A pair of calls, one with ``whole`` rows and one with ``piece`` rows."""

    whole: int
    piece: int

    def __post_init__(self) -> None:
        self._known: dict[RecordedTensor, tuple[RecordedTensor, RecordedTensor]] = {}

    def of(self, whole: RecordedCall, piece: RecordedCall) -> RecordedCall:
        """Raises Depends where they do not hold the same operators."""
        paired = RecordedCall([self._value(a, b) for a, b in zip(whole.inputs, piece.inputs, strict=True)])
        for a, b in zip(whole.calls, piece.calls, strict=False):
            if a.operator != b.operator or len(a.results) != len(b.results):
                raise Depends(
                    f"{a.name} for {self.whole} rows is {b.name} for {self.piece}: it branches by their number"
                )
            arguments = {name: self._both(value, b.arguments[name]) for name, value in a.arguments.items()}
            results = tuple(map(self._value, a.results, b.results))
            paired.calls.append(OperatorCall(a.operator, arguments, results, a.reads))
        if len(whole.calls) != len(piece.calls) or len(whole.results) != len(piece.results):
            raise Depends(
                f"{self.whole} rows take other operators than {self.piece}: it loops or branches by their number"
            )
        if len(whole.kept) != len(piece.kept):
            raise Depends(f"it keeps other things of {self.whole} rows than of {self.piece}")
        paired.results += map(self._value, whole.results, piece.results)
        paired.kept += map(self._value, whole.kept, piece.kept)
        paired.numbers += self._both(whole.numbers, piece.numbers) if whole.numbers else []
        return paired

    def _both(self, one: Any, other: Any) -> Any:
        if isinstance(one, RecordedTensor) and isinstance(other, RecordedTensor):
            return self._value(one, other)
        if type(one) is not type(other):
            return UNLIKE
        if isinstance(one, list | tuple):
            return list(map(self._both, one, other)) if len(one) == len(other) else UNLIKE
        if isinstance(one, dict):
            alike = one.keys() == other.keys()
            return {key: self._both(one[key], other[key]) for key in one} if alike else UNLIKE
        if type(one) is int:
            return self._number(one, other)
        both_nan = one != one and other != other
        return one if one is other or one == other or both_nan else UNLIKE

    def _number(self, one: int, other: int) -> Any:
        if one == other:
            return one
        per_row, rest = divmod(one, self.whole)
        return Times(per_row) if rest == 0 and other == per_row * self.piece else UNLIKE

    def _value(self, one: RecordedTensor, other: RecordedTensor) -> RecordedTensor:
        known = self._known.get(one)
        if known is None:
            known = self._known[one] = other, self._merged(one, other)
        if known[0] is not other:
            raise Depends("the operators for the whole batch and for a piece take other operands")
        return known[1]

    def _merged(self, one: RecordedTensor, other: RecordedTensor) -> RecordedTensor:
        shape, stride = self._sizes(one.shape, other.shape), self._sizes(one.stride, other.stride)
        if one.real is not None and not _equal(one.real, other.real):
            shape = (UNLIKE,)
        return RecordedTensor(shape, one.dtype, stride, self._number(one.offset, other.offset), one.storage, one.real)

    def _sizes(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(map(self._number, one, other)) if len(one) == len(other) else (UNLIKE,)


def _equal(one: Tensor, other: Tensor | None) -> bool:
    if one is other or other is None:
        return one is other
    forms = [(tensor.dtype, tensor.shape, tensor.device) for tensor in (one, other)]
    try:
        return forms[0] == forms[1] and torch.equal(one, other)
    except RuntimeError:  # inside of torch.vmap they are not tensors by themselves
        return False


def for_any_number(recording: RecordedCall, rows: sympy.Symbol) -> RecordedCall:
    """The same list of one recording whose sizes are symbols, ``rows`` among them."""
    known: dict[RecordedTensor, RecordedTensor] = {}

    def number(size: Any) -> Any:
        if isinstance(size, torch.SymFloat | torch.SymBool):
            return UNLIKE if rows in size.node.expr.free_symbols else size.node.expr
        if not isinstance(size, torch.SymInt):
            return size
        expression = size.node.expr
        if rows not in expression.free_symbols:
            return int(expression) if expression.is_number else expression
        per_row = sympy.cancel(expression / rows)
        if rows in per_row.free_symbols or sympy.fraction(per_row)[1] != 1:
            return UNLIKE
        return Times(int(per_row) if per_row.is_number else per_row)

    def value(one: RecordedTensor) -> RecordedTensor:
        if one not in known:
            shape, stride = tuple(map(number, one.shape)), tuple(map(number, one.stride))
            known[one] = RecordedTensor(shape, one.dtype, stride, number(one.offset), one.storage, one.real)
        return known[one]

    def each(argument: Any) -> Any:
        if isinstance(argument, RecordedTensor):
            return value(argument)
        if isinstance(argument, list | tuple):
            return [each(item) for item in argument]
        if isinstance(argument, dict):
            return {key: each(item) for key, item in argument.items()}
        return number(argument)

    return _mapped(recording, value, each)


def _mapped(
    recording: RecordedCall, value: Callable[[RecordedTensor], RecordedTensor], each: Callable[[Any], Any]
) -> RecordedCall:
    calls = [
        OperatorCall(call.operator, each(call.arguments), tuple(map(value, call.results)), call.reads)
        for call in recording.calls
    ]
    results = list(map(value, recording.results))
    kept = list(map(value, recording.kept))
    return RecordedCall(list(map(value, recording.inputs)), calls, results, each(recording.numbers), kept)
