"""Asks whether the rows of a call are computed apart from each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.core.quantities import first_line
from togi.core.user_code import error_line
from togi.graph.dependence.analysis import Verdict, judged
from togi.graph.dependence.pairing import Pairing
from togi.graph.dependence.recording import Recording, record
from togi.graph.dependence.state import Depends
from togi.torch_internals.tensors import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

_LEAST = 3
"""Rows of a whole of which both one and two are pieces."""

Called = Callable[..., Any]
"""With flat tensors; returns tensors in any nesting."""


def rows_apart(call: Called, tensors: Sequence[Tensor], cut: Sequence[int | None], pieces: Iterable[int]) -> Verdict:
    """Whether a call of some rows gives what these rows give in a call of all, for all values of the tensors.

    Nothing is computed: it takes no memory to speak of, whatever the size of the tensors.

    Args:
        call: run twice or more, on fake tensors. What it keeps in Python objects may be such a tensor afterwards.
        cut: for each tensor the dimension that holds the rows; None where it is given whole.
        pieces: the numbers of rows that a call may have.
    """
    whole = next(tensor.shape[dim] for tensor, dim in zip(tensors, cut, strict=True) if dim is not None)
    asked = _Asked(call, tensors, cut)
    try:
        asked.recorded(max(whole, _LEAST))
    except Exception as error:  # foreign code: it may read values, or leave torch
        return Verdict(reason=f"it cannot be followed without values: {_said(error)}")
    verdict = Verdict(reason="no piece of it was asked for")
    for piece in dict.fromkeys(pieces):
        verdict = asked.of(whole, piece)
        if verdict.reason:
            return asked.placed(verdict, whole)
    return verdict


class _Asked:
    """One call, recorded once for each number of rows."""

    def __init__(self, call: Called, tensors: Sequence[Tensor], cut: Sequence[int | None]) -> None:
        self.call, self.tensors, self.cut = call, tensors, cut
        self._known: dict[int, tuple[Recording, Recording]] = {}

    def recorded(self, rows: int) -> tuple[Recording, Recording]:
        if rows not in self._known:
            self._known[rows] = self._record(rows)
        return self._known[rows]

    def of(self, whole: int, piece: int) -> Verdict:
        if piece == 1 or whole < _LEAST:
            return self._of_one(max(whole, _LEAST))
        try:
            operators = Pairing(whole, piece).of(self.recorded(whole)[0], self.recorded(piece)[0])
        except Depends as error:
            return Verdict(reason=str(error))
        except Exception as error:  # foreign code: it may insist on its sizes
            return Verdict(reason=f"{piece} of its {whole} rows do not run: {_said(error)}")
        return judged(operators, self.cut)

    def _of_one(self, whole: int) -> Verdict:
        """Operators treat a dimension of size 1 otherwise (it has no order in memory), so that those for one row are
        others. Then Python must call the same functions of torch, with the same arguments, as for two and for all."""
        verdict = self.of(whole, 2)
        if verdict.reason:
            return verdict
        try:
            (_, for_all), (_, for_one) = self.recorded(whole), self.recorded(1)
            functions = Pairing(whole, 1).of(for_all, for_one)
        except Depends as error:
            return Verdict(reason=str(error))
        except Exception as error:  # foreign code: it may insist on its sizes
            return Verdict(reason=f"one row alone does not run: {_said(error)}")
        if for_all.elsewhere or not functions.alike:
            return Verdict(reason="what it does with one row is not known to be what it does with more")
        return verdict

    def placed(self, verdict: Verdict, whole: int) -> Verdict:
        """With the line of the user's source: the call again, up to the operator."""
        if verdict.call < 0:
            return verdict
        try:
            self._record(max(whole, _LEAST), stop_at=verdict.call)
        except Exception as error:
            line = error_line(error)
            return Verdict(reason=f"{verdict.reason}{f' at {line}' if line else ''}", call=verdict.call)
        return verdict

    def _record(self, rows: int, stop_at: int = -1) -> tuple[Recording, Recording]:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            given = [_of_rows(mode.from_tensor(t), dim, rows) for t, dim in zip(self.tensors, self.cut, strict=True)]
        return record(self.call, given, mode, stop_at=stop_at)


def _of_rows(tensor: Tensor, dim: int | None, rows: int) -> Tensor:
    if dim is None:
        return tensor
    if rows <= tensor.shape[dim]:
        return tensor.narrow(dim, 0, rows)
    return torch.cat([tensor] * -(-rows // tensor.shape[dim]), dim).narrow(dim, 0, rows)


def _said(error: Exception) -> str:
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        what = f"what it computes depends on values ({error.func})"
    else:
        what = f"{type(error).__name__}: {first_line(error)}"
    line = error_line(error)
    return f"{what} at {line}" if line else what
