"""Broadcasts over pairs: N x M results out of N and M."""

from __future__ import annotations

import ast


def is_pairwise(left: ast.expr, right: ast.expr) -> bool:
    """Whether ``left`` and ``right`` were indexed so that broadcasting pairs every row of one with every row of the
    other: ``x[:, None] - y[None, :]``, ``boxes1[:, None, :2]`` with ``boxes2[:, :2]``,
    ``a.unsqueeze(1) * b.unsqueeze(0)``."""
    one, other = _new_axes(left), _new_axes(right)
    if one is not None and other is not None:
        return one != other and bool(one) and bool(other) and not (one & other)
    shape, rest = (left, right) if one else (right, left)
    return _inserted_before(shape, rest)


def inserts_axis(node: ast.expr) -> bool:
    """``x[:, None]``, ``x.unsqueeze(1)``."""
    return bool(_new_axes(node))


def _new_axes(node: ast.expr) -> frozenset[int] | None:
    """Where ``node`` inserts axes of length one; None where it inserts none that can be seen."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        axes = [at for at, one in enumerate(node.slice.elts) if isinstance(one, ast.Constant) and one.value is None]
        return frozenset(axes) if axes else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value is None:
        return frozenset((0,))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "unsqueeze":
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, int):
            return frozenset((first.value,))
    return None


def _inserted_before(shape: ast.expr, rest: ast.expr) -> bool:
    """``boxes1[:, None, :2]`` with ``boxes2[:, :2]``: one axis more on one side."""
    if not (isinstance(shape, ast.Subscript) and isinstance(rest, ast.Subscript)):
        return False
    if not (isinstance(shape.slice, ast.Tuple) and isinstance(rest.slice, ast.Tuple)):
        return False
    wide, narrow = shape.slice.elts, rest.slice.elts
    if len(wide) != len(narrow) + 1 or not isinstance(narrow[0], ast.Slice) or not isinstance(wide[0], ast.Slice):
        return False
    return isinstance(wide[1], ast.Constant) and wide[1].value is None
