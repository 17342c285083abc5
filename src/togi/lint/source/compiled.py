"""Finds what a file compiles with ``torch.compile``, and where it calls it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from togi.lint.source.loaders import assigned
from togi.lint.source.references import calls_of
from togi.lint.source.value import ValueKind

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_NAMES = {"torch.compile"}
_WAITING = {"functools.partial"}


def compile_calls(source: Source) -> Iterator[ast.Call]:
    """Calls of ``torch.compile`` that are given something to compile, which decorators are not."""
    return (call for call, _ in calls_of(source, _NAMES) if call.args)


def is_compile(source: Source, node: ast.expr | None) -> bool:
    """Whether an expression is ``torch.compile``, a call of it, or ``functools.partial`` of it."""
    if isinstance(node, ast.Call):
        if source.qualified(node.func) in _WAITING:
            return bool(node.args) and is_compile(source, node.args[0])
        node = node.func
    return node is not None and source.qualified(node) in _NAMES


def compilation(source: Source, callee: ast.expr) -> ast.expr | None:
    """The decorator or the call of ``torch.compile`` that made what ``callee`` names, or None."""
    for binding in source.bindings(callee):
        if isinstance(binding, ast.FunctionDef):
            return next((decorator for decorator in binding.decorator_list if is_compile(source, decorator)), None)
    in_place = _compiled_in_place(source, callee)
    if in_place is not None:
        return in_place
    calls = (value for value in assigned(source, callee) if isinstance(value, ast.Call) and value.args)
    return next((call for call in calls if is_compile(source, call)), None)


def _compiled_in_place(source: Source, callee: ast.expr) -> ast.Call | None:
    """``model.compile()``, which a module has too."""
    if ".compile(" not in source.text or source.value(callee).kind is not ValueKind.MODULE:
        return None
    name = ast.unparse(callee)
    for method in source.index.attributes.get("compile", ()):
        call = source.parent(method)
        if isinstance(call, ast.Call) and call.func is method and ast.unparse(method.value) == name:
            return call
    return None


def loop_names(source: Source, loop: ast.AST) -> set[str]:
    """Names that one pass of a loop binds: its target's and those assigned in its body."""
    return {node.id for node in source.walk(loop, ast.Name) if isinstance(node.ctx, ast.Store)}


def names_in(source: Source, node: ast.AST) -> set[str]:
    return {part.id for part in source.walk(node, ast.Name)}
