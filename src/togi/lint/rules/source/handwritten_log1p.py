"""The rule ``handwritten-log1p``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import TypeGuard

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.model import Source
from togi.lint.source.surroundings import function_name
from togi.lint.source.syntax import is_constant
from togi.lint.source.value import excerpt

_TABLES = re.compile(r"(^__init__$|table|coord|index|relative|anchor|grid|_rel($|_)|^(make|build|gen)_)")
"""Functions that compute something once: constructors, and what makes a table for one."""


class HandwrittenLog1p(SourceRule):
    """``log(1 + x)`` and ``exp(x) - 1`` written out.

    What it reports: ``torch.log(1 + x)`` and ``torch.exp(x) - 1``.

    Why it costs: two passes over memory and an intermediate in place of one pass; and for small ``x`` the sum rounds to
    1, so that the result is 0.

    When it stays silent: tables that are computed once, ``math`` and NumPy, other constants than 1, and sums of
    numbers without a tensor.

    Example::

        loss = torch.log(1 + x)

    Use instead::

        loss = torch.log1p(x)

    and ``torch.expm1(x)``. The values change in their last digits, so there is no fix.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.log1p.html
    """

    id = "handwritten-log1p"

    def check(self, source: Source) -> Iterable[Finding]:
        for node in source.nodes(ast.BinOp):
            if source.hot(node) is None and _TABLES.search(function_name(source, node)):
                continue
            left, right = node.left, node.right
            if isinstance(node.op, ast.Sub) and _is_one(right) and _is_call(left, source, "torch.exp"):
                yield self._finding(source, node, left.args[0], "exp(x) - 1", "torch.expm1")
            elif isinstance(node.op, ast.Add) and (_is_one(left) or _is_one(right)):
                log = source.parent(node)
                if _is_call(log, source, "torch.log") and node in log.args:
                    operand = right if _is_one(left) else left
                    yield self._finding(source, log, operand, "log(1 + x)", "torch.log1p")

    def _finding(self, source: Source, node: ast.expr, operand: ast.expr, written: str, function: str) -> Finding:
        message = f"{written} takes two passes and an intermediate, and is 0 for small x"
        return source.finding(self.id, node, message, f"write {function}({excerpt(operand, 80)})")


def _is_one(node: ast.expr) -> bool:
    return is_constant(node, 1, 1.0)


def _is_call(node: ast.AST | None, source: Source, name: str) -> TypeGuard[ast.Call]:
    """Of one operand and nothing else: what ``out=`` asks for is not said by ``log1p(x)``."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return False
    return source.dotted(node.func) == name
