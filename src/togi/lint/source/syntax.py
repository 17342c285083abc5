"""Questions that the syntax of an expression answers alone: arguments, names, literals, inserted axes."""

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


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """Everything that a call is given, by position and by name."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def called_method(node: ast.AST) -> str:
    """``c`` of the call ``a.b.c(...)``; empty for anything else."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def unpacks(call: ast.Call) -> bool:
    """Whether ``*args`` or ``**kwargs`` may hold arguments that the source does not show."""
    return any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords)


def last_name(node: ast.expr) -> str:
    """``c`` of ``a.b.c`` and of ``c``; empty where the expression has no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def first_name(node: ast.expr) -> str:
    """``a`` of ``a.b[0].c``; empty where the expression does not start at a name."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def position(node: ast.AST) -> tuple[int, int]:
    """Line and column of a node, to compare places in a file; (0, 0) for what has none."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def is_constant(node: ast.expr | None, *values: object) -> bool:
    """Whether an expression is one of these literals. ``True`` is not 1, and ``0`` is not ``False``."""
    return isinstance(node, ast.Constant) and any(
        type(node.value) is type(value) and node.value == value for value in values
    )


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_pairwise(left: ast.expr, right: ast.expr) -> bool:
    """Whether ``left`` and ``right`` were indexed so that broadcasting pairs every row of one with every row of the
    other: ``x[:, None] - y[None, :]``, ``boxes1[:, None, :2]`` with ``boxes2[:, :2]``,
    ``a.unsqueeze(1) * b.unsqueeze(0)``."""
    left_axes, right_axes = _new_axes(left), _new_axes(right)
    if left_axes and right_axes:
        return left_axes.isdisjoint(right_axes)
    return _inserted_before(left, right) if left_axes else _inserted_before(right, left)


def inserts_axis(node: ast.expr) -> bool:
    """``x[:, None]``, ``x.unsqueeze(1)``."""
    return bool(_new_axes(node))


def _new_axes(node: ast.expr) -> frozenset[int]:
    """Where ``node`` inserts axes of length one, as far as can be seen."""
    match node:
        case ast.Subscript(slice=ast.Tuple(elts=indices)):
            return frozenset(at for at, index in enumerate(indices) if is_constant(index, None))
        case ast.Subscript(slice=ast.Constant(value=None)):
            return frozenset((0,))
        case ast.Call(func=ast.Attribute(attr="unsqueeze"), args=[ast.Constant(value=int(axis)), *_]):
            return frozenset((axis,))
    return frozenset()


def _inserted_before(wide: ast.expr, narrow: ast.expr) -> bool:
    """``boxes1[:, None, :2]`` with ``boxes2[:, :2]``: one axis more on one side."""
    match wide, narrow:
        case (
            ast.Subscript(slice=ast.Tuple(elts=[ast.Slice(), ast.Constant(value=None), *after])),
            ast.Subscript(slice=ast.Tuple(elts=[ast.Slice(), *others])),
        ):
            return len(after) == len(others)
    return False
