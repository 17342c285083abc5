"""Conditions on the sizes of a call: what a captured graph holds for, as text that a file may hold.

A condition is a comparison of numbers and of ``size(input, dimension)``, in Python's own form, with nothing else in it
than arithmetic, the functions below, ``and``, ``or`` and ``not``.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

_MOST_CHARACTERS = 20_000
_LARGEST_EXPONENT = 256
_LARGEST = 2**_LARGEST_EXPONENT
"""Of what is computed with: a stranger's file may ask for powers of powers."""
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, exponent: base ** _bounded(exponent, _LARGEST_EXPONENT),
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "float": float,
    "max": max,
    "min": min,
    "round": round,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.log2": math.log2,
    "math.sqrt": math.sqrt,
    "math.trunc": math.trunc,
}

Holds = Callable[[Sequence[Any]], bool]
"""Of the flat tensors of a call."""
_Value = Callable[[Sequence[Any]], Any]


def condition(text: str) -> Holds:
    """A function that returns whether a call meets the condition. Sizes for which it cannot be computed (a division by
    zero) do not.

    Raises ValueError where the text is not a condition.
    """
    try:
        value = _comparison(_parsed(text))
    except (SyntaxError, RecursionError, MemoryError, _NotAllowed):
        raise ValueError(f"{text[:80]!r} is not a condition on sizes") from None

    def holds(tensors: Sequence[Any]) -> bool:
        try:
            return bool(value(tensors))
        except (ArithmeticError, TypeError, ValueError):
            return False

    return holds


def size_of(i: int, dim: int) -> str:
    """The name of a size in a condition."""
    return f"size({i}, {dim})"


def at_least(least: int, i: int, dim: int) -> str:
    """The condition that a size is not smaller."""
    return f"{size_of(i, dim)} >= {least}"


def sizes_in(text: str) -> list[tuple[int, int]]:
    """``(input, dimension)`` of every size that a condition speaks of."""
    return [size for node in ast.walk(_parsed(text)) if (size := _size(node)) is not None]


def in_words(text: str, names: Sequence[str]) -> str:
    """A condition with the names of inputs: ``x.shape[1] <= 100``."""

    class Named(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            size = _size(node)
            if size is None:
                return self.generic_visit(node)
            return ast.Subscript(ast.Attribute(ast.Name(names[size[0]]), "shape"), ast.Constant(size[1]))

    return ast.unparse(ast.fix_missing_locations(Named().visit(_parsed(text))))


class _NotAllowed(Exception):
    pass


def _parsed(text: str) -> ast.expr:
    if len(text) > _MOST_CHARACTERS:
        raise _NotAllowed
    return ast.parse(text, mode="eval").body


def _comparison(node: ast.expr) -> _Value:
    match node:
        case ast.BoolOp(values=parts):
            comparisons = [_comparison(part) for part in parts]
            every = all if isinstance(node.op, ast.And) else any
            return lambda tensors: every(part(tensors) for part in comparisons)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            inner = _comparison(part)
            return lambda tensors: not inner(tensors)
        case ast.Compare(left=left, ops=[how], comparators=[right]) if type(how) in _OPERATORS:
            compare, first, second = _OPERATORS[type(how)], _number(left), _number(right)
            return lambda tensors: compare(first(tensors), second(tensors))
    raise _NotAllowed


def _number(node: ast.expr) -> _Value:
    if (size := _size(node)) is not None:
        i, dim = size
        return lambda tensors: tensors[i].shape[dim]
    match node:
        case ast.Constant(value=int() | float() as number):
            return lambda _: number
        case ast.UnaryOp(op=ast.USub(), operand=part):
            inner = _number(part)
            return lambda tensors: -inner(tensors)
        case ast.BinOp(left=left, op=how, right=right) if type(how) in _OPERATORS:
            combine, first, second = _OPERATORS[type(how)], _number(left), _number(right)
            return lambda tensors: combine(_bounded(first(tensors)), _bounded(second(tensors)))
        case ast.Call(func=function, args=[_, *_] as parts, keywords=[]) if ast.unparse(function) in _FUNCTIONS:
            compute, operands = _FUNCTIONS[ast.unparse(function)], [_number(part) for part in parts]
            return lambda tensors: compute(*(part(tensors) for part in operands))
    raise _NotAllowed


def _bounded(number: Any, most: int = _LARGEST) -> Any:
    if abs(number) > most:
        raise OverflowError
    return number


def _size(node: ast.AST) -> tuple[int, int] | None:
    match node:
        case ast.Call(
            func=ast.Name(id="size"), args=[ast.Constant(value=int(i)), ast.Constant(value=int(dim))], keywords=[]
        ):
            return i, dim
    return None
