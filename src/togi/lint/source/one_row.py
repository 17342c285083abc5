"""Functions that a file calls with a single row: what they pair with many rows is no larger than these."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_DEPTH = 3
"""Calls of calls that are followed; also what ends a recursion."""


def takes_one_row(source: Source, function: ast.FunctionDef, depth: int = _DEPTH) -> bool:
    """Whether ``function`` is called in this file, and every call hands over ``x.unsqueeze(0)``, ``x[None]`` or
    ``torch.tensor([[...]])``, or stands in a function of which the same is true."""
    sites = source.callers.sites(function)
    return bool(sites) and all(_hands_one_row(source, site, depth) for site in sites)


def _hands_one_row(source: Source, site: ast.Call, depth: int) -> bool:
    around = source.function(site)
    if any(_is_one_row(one) or _is_bound_to_one_row(one, around) for one in site.args):
        return True
    return isinstance(around, ast.FunctionDef) and depth > 0 and takes_one_row(source, around, depth - 1)


def _is_bound_to_one_row(node: ast.expr, around: ast.AST | None) -> bool:
    if not isinstance(node, ast.Name) or around is None:
        return False
    bound = [
        one.value
        for one in ast.walk(around)
        if isinstance(one, ast.Assign) and any(ast.unparse(target) == node.id for target in one.targets)
    ]
    return bool(bound) and all(_is_one_row(one) for one in bound)


def _is_one_row(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="unsqueeze"), args=[ast.Constant(value=0)]):
            return True
        case ast.Call(func=ast.Attribute(attr="tensor"), args=[ast.List(elts=[ast.List()]), *_]):
            return True
        case ast.Subscript(slice=ast.Constant(value=None) | ast.Tuple(elts=[ast.Constant(value=None), *_])):
            return True
    return False
