"""Finds what a file compiles with ``torch.compile``, and where it calls it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from togi.lint.source.loaders import assigned
from togi.lint.source.references import uses
from togi.lint.source.value import Kind

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_NAMES = {"torch.compile"}
_WAITING = {"functools.partial"}


def compile_calls(source: Source) -> Iterator[ast.Call]:
    """Calls of ``torch.compile`` that are given something to compile, which decorators are not."""
    for node, _ in uses(source, _NAMES):
        call = source.parent(node)
        if isinstance(call, ast.Call) and call.func is node and call.args:
            yield call


def is_compile(source: Source, node: ast.expr | None) -> bool:
    """Whether an expression is ``torch.compile``, a call of it, or ``functools.partial`` of it."""
    if isinstance(node, ast.Call):
        if source.qualified(node.func) in _WAITING:
            return bool(node.args) and is_compile(source, node.args[0])
        node = node.func
    return node is not None and source.qualified(node) in _NAMES


def compilation(source: Source, callee: ast.expr) -> ast.expr | None:
    """The decorator or the call of ``torch.compile`` that made what ``callee`` names, or None."""
    if isinstance(callee, ast.Name) and (holder := source.names.holder(callee.id, source.scope(callee))):
        for binding in holder.bindings[callee.id]:
            if isinstance(binding, ast.FunctionDef):
                return next((one for one in binding.decorator_list if is_compile(source, one)), None)
    in_place = _compiled_in_place(source, callee)
    if in_place is not None:
        return in_place
    made = assigned(source, callee)
    return next((one for one in made if isinstance(one, ast.Call) and one.args and is_compile(source, one)), None)


def _compiled_in_place(source: Source, callee: ast.expr) -> ast.Call | None:
    """``model.compile()``, which a module has too."""
    if ".compile(" not in source.text or source.value(callee).kind is not Kind.MODULE:
        return None
    name = ast.unparse(callee)
    for call in source.nodes(ast.Call):
        assert isinstance(call, ast.Call)
        func = call.func
        compiles = isinstance(func, ast.Attribute) and func.attr == "compile"
        if compiles and isinstance(func, ast.Attribute) and ast.unparse(func.value) == name:
            return call
    return None


def loop_names(source: Source, loop: ast.AST) -> set[str]:
    """Names that one pass of a loop binds: its target's and those assigned in its body."""
    return {node.id for node in source.walk(loop, ast.Name) if isinstance(node.ctx, ast.Store)}


def names_in(source: Source, node: ast.AST) -> set[str]:
    return {part.id for part in source.walk(node, ast.Name)}
