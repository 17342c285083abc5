"""Sizes of traced tensors as expressions, and their values in one call."""

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


def size_expressions(tensor: Tensor) -> list[sympy.Expr]:
    return [size_expression(size) for size in tensor.shape]


def element_count(tensor: Tensor) -> sympy.Expr:
    return sympy.Mul(*size_expressions(tensor))


@dataclass(frozen=True)
class SymbolSources:
    """The place where each symbol is read: ``{symbol: (tensor, dimension)}``."""

    places: Mapping[sympy.Symbol, tuple[int, int]]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> SymbolSources:
        places: dict[sympy.Symbol, tuple[int, int]] = {}
        for index, tensor in enumerate(tensors):
            for dim, expression in enumerate(size_expressions(tensor)):
                if isinstance(expression, sympy.Symbol):
                    places.setdefault(expression, (index, dim))
        return cls(places)

    def values(self, tensors: Sequence[Tensor]) -> dict[sympy.Symbol, int]:
        return {symbol: tensors[index].shape[dim] for symbol, (index, dim) in self.places.items()}


def evaluate(expression: sympy.Expr, values: Mapping[sympy.Symbol, int]) -> int:
    """``expression`` with the sizes of one call put in. An int."""
    return int(expression.xreplace(dict(values)))
