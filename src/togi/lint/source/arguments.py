"""The arguments of a call, as they stand in the source."""

from __future__ import annotations

import ast


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """The expression given for a parameter by keyword, or by position (counted from 0), or None."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is None or position >= len(call.args):
        return None
    before = call.args[: position + 1]
    return None if any(isinstance(arg, ast.Starred) for arg in before) else before[-1]


def unpacks(call: ast.Call) -> bool:
    """Whether ``*args`` or ``**kwargs`` may hold arguments that the source does not show."""
    return any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords)


def is_constant(node: ast.expr | None, *values: object) -> bool:
    """Whether an expression is one of these literals. ``True`` is not 1, and ``0`` is not ``False``."""
    return isinstance(node, ast.Constant) and any(
        type(node.value) is type(value) and node.value == value for value in values
    )
