"""Symbolic sizes: what a traced size is in terms of the sizes of the inputs, and its value on a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor


def size_expression(size: Any) -> sympy.Expr:
    """A traced size (``int`` or ``SymInt``) as an expression. Compares without adding a guard."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def element_count(shape: Sequence[Any]) -> sympy.Expr:
    count: sympy.Expr = sympy.Integer(1)
    for size in shape:
        count = count * size_expression(size)
    return count


@dataclass(frozen=True)
class Sizes:
    """Where each symbol is read: ``{symbol: (tensor, dimension)}``."""

    places: Mapping[sympy.Symbol, tuple[int, int]]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Sizes:
        places: dict[sympy.Symbol, tuple[int, int]] = {}
        for index, tensor in enumerate(tensors):
            for dim, size in enumerate(tensor.shape):
                expression = size_expression(size)
                if isinstance(expression, sympy.Symbol):
                    places.setdefault(expression, (index, dim))
        return cls(places)

    def values(self, tensors: Sequence[Tensor]) -> dict[sympy.Symbol, int]:
        return {symbol: tensors[index].shape[dim] for symbol, (index, dim) in self.places.items()}


def evaluate(expression: sympy.Expr, values: Mapping[sympy.Symbol, int]) -> int:
    """``expression`` with the sizes of one call put in. An int."""
    return int(expression.xreplace(dict(values)))
