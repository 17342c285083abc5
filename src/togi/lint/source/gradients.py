"""Where a file trains: loops that call ``backward()``, and what switches gradients on or off."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from togi.lint.source.call_sites import method_calls
from togi.lint.source.model import Source
from togi.lint.source.surroundings import StatementLoop, statement_loops


def training_loop(source: Source, node: ast.AST) -> tuple[StatementLoop, list[ast.Call]] | None:
    """The innermost loop around ``node`` that calls ``backward()``, with those calls."""
    for loop in statement_loops(source, node):
        calls = [call for call, _ in method_calls(source, ("backward",), within=loop)]
        if calls:
            return loop, calls
    return None


def gradient_switches(source: Source) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """``model.requires_grad_(False)`` and ``p.requires_grad = False``: whose gradients are switched, and to what.

    None where the file does not show it in the same statement.
    """
    for call, method in method_calls(source, ("requires_grad_",)):
        if call.args:
            yield method.value, call.args[0]
    for node in source.index.attributes.get("requires_grad", ()):
        if isinstance(node.ctx, ast.Store):
            statement = source.parent(node)
            yield node.value, statement.value if isinstance(statement, ast.Assign) else None
