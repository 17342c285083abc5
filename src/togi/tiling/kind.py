"""Knowledge of one kind of call: its graphs, and which calls are refused.

A refusal holds for the calls that it is true of. Where tracing fails, these are the sizes that take the same way
through the function (the guards of the trace); what does not fit into the budget is refused for its sizes; a program
that was proven wrong is used for none. What the user's function raises is not a refusal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from togi.tiling.capture import Captured, NotLean, capture
from togi.tiling.decompositions import decompositions
from togi.tiling.plan import PlannedFunction

_GRAPHS = 8
"""Graphs for one kind of call, which differ in what the sizes decide inside the function."""
_REFUSALS = 64
"""Ways through the function that cannot be traced; the oldest is forgotten, and traced again."""
Admits = Callable[[Sequence[Tensor]], bool]


class TypedCalls:
    """Calls of equal types, ranks and plain arguments. Used under the caller's lock."""

    def __init__(self, budget_bytes: int, compiling: bool | None) -> None:
        self._budget_bytes, self._compiling = budget_bytes, compiling
        self.ways: list[_Way] = []
        self._refused: deque[tuple[Admits, str]] = deque(maxlen=_REFUSALS)

    def planned(self, plain: Callable[..., Any], tensors: Sequence[Tensor]) -> PlannedFunction:
        """The plan with a program for these tensors.

        Raises:
            NotLean: there is none.
        """
        for admits, reason in self._refused:
            if admits(tensors):
                raise NotLean(reason)
        for way in self.ways:
            if way.admits(tensors):
                return way.planned(tensors)
        if len(self.ways) >= _GRAPHS:
            raise NotLean(f"what it does depends on its sizes in more than {_GRAPHS} ways")
        try:
            way = _Way(plain, tensors, self._budget_bytes, self._compiling)
        except NotLean as refusal:
            shapes = [tensor.shape for tensor in tensors]
            admits = refusal.admits or (lambda others: [tensor.shape for tensor in others] == shapes)
            refusal.remember = partial(self._refused.append, (admits, str(refusal)))
            raise
        self.ways.append(way)
        return way.planned(tensors)


class _Way:
    """One way through the function: traced as it is, and in parts once that cannot be streamed."""

    def __init__(
        self, plain: Callable[..., Any], tensors: Sequence[Tensor], budget_bytes: int, compiling: bool | None
    ) -> None:
        self._plain = plain
        self._plan: Callable[[Captured], PlannedFunction] = partial(
            PlannedFunction, plain=plain, budget_bytes=budget_bytes, compiling=compiling
        )
        whole = _captured(plain, tensors, multi_pass=False)
        self.admits = whole.admits
        self.whole = self._plan(whole)
        self._in_parts: PlannedFunction | None = None

    def planned(self, tensors: Sequence[Tensor]) -> PlannedFunction:
        try:
            return _fitting(self.whole, tensors)
        except NotLean as refusal:
            first = refusal
        try:
            if self._in_parts is None or not self._in_parts.captured.admits(tensors):
                self._in_parts = self._plan(_captured(self._plain, tensors, multi_pass=True))
            return _fitting(self._in_parts, tensors)
        except NotLean:
            raise first from None


def _fitting(planned: PlannedFunction, tensors: Sequence[Tensor]) -> PlannedFunction:
    planned.fit(tensors, wants_gradient(planned, tensors))
    return planned


def _captured(plain: Callable[..., Any], tensors: Sequence[Tensor], *, multi_pass: bool) -> Captured:
    """The graph of ``plain``; traced again where only a tensor that it holds wants gradients."""
    gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    captured = capture(plain, tensors, decompositions(multi_pass=multi_pass, gradient=gradient))
    if not gradient and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in captured.constants):
        return capture(plain, tensors, decompositions(multi_pass=multi_pass, gradient=True))
    return captured


def wants_gradient(planned: PlannedFunction, tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *planned.captured.constants))
