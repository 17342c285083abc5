"""Asks whether the rows of a call are computed apart from each other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.core.quantities import first_line
from togi.core.user_code import error_line
from togi.graph.dependence.analysis import RowsVerdict, judged
from togi.graph.dependence.pairing import Pairing
from togi.graph.dependence.recording import RecordedCall, Stopped, record
from togi.graph.dependence.state import Depends
from togi.torch_internals.tensors import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

_LEAST = 3
"""Rows of a whole of which both one and two are pieces."""

Called = Callable[..., Any]
"""With flat tensors; returns tensors in any nesting."""


def rows_apart(
    call: Called, tensors: Sequence[Tensor], cut: Sequence[int | None], pieces: Iterable[int]
) -> RowsVerdict:
    """Decide whether a call of some rows gives what these rows give in a call of all: ``RowProof`` for one question."""
    return RowProof(call, tensors, cut).of(pieces)


class RowProof:
    """Proves that a call of some rows gives what these rows give in a call of all, for all values of the tensors.

    Nothing is computed: it takes no memory to speak of, whatever the size of the tensors. The call is recorded once for
    each number of rows. What it keeps in Python objects may be fake tensors afterwards.

    Args:
        cut: for each tensor the dimension that holds the rows; None where it is given whole.
        kept: asked after each recorded call for the tensors that it left in objects: those of all rows.
    """

    def __init__(
        self,
        call: Called,
        tensors: Sequence[Tensor],
        cut: Sequence[int | None],
        kept: Callable[[], Sequence[Tensor]] = tuple,
    ) -> None:
        self._call, self._tensors, self._cut, self._kept = call, tensors, cut, kept
        self._known: dict[int, tuple[RecordedCall, RecordedCall]] = {}
        self._whole = next(tensor.shape[dim] for tensor, dim in zip(tensors, cut, strict=True) if dim is not None)

    def of(self, pieces: Iterable[int]) -> RowsVerdict:
        """Prove it for pieces of so many rows."""
        try:
            self._recorded(max(self._whole, _LEAST))
        except Exception as error:  # foreign code: it may read values, or leave torch
            return RowsVerdict(reason=f"it cannot be followed without values: {said(error)}")
        verdict = RowsVerdict()
        for piece in dict.fromkeys(pieces):
            alone = piece == 1 or self._whole < _LEAST
            verdict = self._of_one(max(self._whole, _LEAST)) if alone else self._of(self._whole, piece)
            if verdict.reason:
                return placed(verdict, functools.partial(self._record, max(self._whole, _LEAST)))
        return verdict

    def _recorded(self, rows: int) -> tuple[RecordedCall, RecordedCall]:
        if rows not in self._known:
            self._known[rows] = self._record(rows)
        return self._known[rows]

    def _of(self, whole: int, piece: int) -> RowsVerdict:
        try:
            operators = Pairing(whole, piece).of(self._recorded(whole)[0], self._recorded(piece)[0])
        except Depends as error:
            return RowsVerdict(reason=str(error))
        except Exception as error:  # foreign code: it may insist on its sizes
            return RowsVerdict(reason=f"{piece} of its {whole} rows do not run: {said(error)}")
        return judged(operators, self._cut)

    def _of_one(self, whole: int) -> RowsVerdict:
        """Operators treat a dimension of size 1 otherwise (it has no order in memory), so that those for one row are
        others. Then Python must call the same functions of torch, with the same arguments, as for two and for all."""
        verdict = self._of(whole, 2)
        if verdict.reason:
            return verdict
        try:
            (_, for_all), (_, for_one) = self._recorded(whole), self._recorded(1)
            functions = Pairing(whole, 1).of(for_all, for_one)
        except Depends as error:
            return RowsVerdict(reason=str(error))
        except Exception as error:  # foreign code: it may insist on its sizes
            return RowsVerdict(reason=f"one row alone does not run: {said(error)}")
        if for_all.elsewhere or not functions.alike:
            return RowsVerdict(reason="what it does with one row is not known to be what it does with more")
        return verdict

    def _record(self, rows: int, stop_at: int = -1) -> tuple[RecordedCall, RecordedCall]:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            places = [(id(tensor), dim) for tensor, dim in zip(self._tensors, self._cut, strict=True)]
            fakes = {
                place: _of_rows(mode.from_tensor(tensor), place[1], rows)
                for place, tensor in zip(places, self._tensors, strict=True)
            }
            given = [fakes[place] for place in places]  # what is given twice is one tensor
        return record(self._call, given, mode, stop_at=stop_at, kept=self._kept)


def _of_rows(tensor: Tensor, dim: int | None, rows: int) -> Tensor:
    if dim is None:
        return tensor
    if rows > tensor.shape[dim]:
        tensor = torch.cat([tensor] * -(-rows // tensor.shape[dim]), dim)
    return tensor.narrow(dim, 0, rows).clone()  # dense as the whole: other strides take other operators


def placed(verdict: RowsVerdict, again: Callable[..., Any]) -> RowsVerdict:
    """Add the line of the user's source.

    Args:
        again: records the call once more, up to the operator ``stop_at``.
    """
    if verdict.call < 0:
        return verdict
    try:
        again(stop_at=verdict.call)
    except Exception as error:
        line = error_line(error)
        return RowsVerdict(reason=f"{verdict.reason}{f' at {line}' if line else ''}", call=verdict.call)
    return verdict


def said(error: Exception) -> str:
    """Say what kept a call from being followed, and where."""
    if isinstance(error, Stopped):
        return str(error)
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        what = f"what it computes depends on values ({error.func})"
    else:
        what = f"{type(error).__name__}: {first_line(error)}"
    line = error_line(error)
    return f"{what} at {line}" if line else what
