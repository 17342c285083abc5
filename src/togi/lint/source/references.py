"""Finds uses of imported names and calls of them, and what a name was given last."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from togi.lint.source.syntax import position

if TYPE_CHECKING:
    from togi.lint.source.model import Source


def uses(source: Source, names: Collection[str]) -> Iterator[tuple[ast.Name | ast.Attribute, str]]:
    """Expressions that stand for one of these dotted names, with the name. Import statements are not expressions."""
    last = {name.rpartition(".")[2] for name in names}
    attributes = source.index.attributes
    candidates: list[ast.Name | ast.Attribute] = [node for attr in sorted(last) for node in attributes.get(attr, ())]
    local = {alias.asname or alias.name for _, alias in imported(source) if alias.name in last}
    if local:
        candidates += (n for n in source.nodes(ast.Name) if n.id in local and isinstance(n.ctx, ast.Load))
    for node in candidates:
        name = source.qualified(node)
        if name is not None and name in names:
            yield node, name


def calls_of(source: Source, names: Collection[str]) -> Iterator[tuple[ast.Call, str]]:
    """Calls of functions with one of these dotted names, with the name."""
    for node, name in uses(source, names):
        call = source.parent(node)
        if isinstance(call, ast.Call) and call.func is node:
            yield call, name


def called(source: Source, node: ast.expr) -> bool:
    """Whether an expression is what a call calls, or a decorator: not merely named, as in a table or a comparison."""
    above = source.parent(node)
    if isinstance(above, ast.Call):
        return above.func is node
    return isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node in above.decorator_list


def imported(source: Source) -> Iterator[tuple[ast.ImportFrom, ast.alias]]:
    """Every name taken by ``from ... import`` without a relative path."""
    for statement in source.nodes(ast.ImportFrom):
        if statement.module and not statement.level:
            for alias in statement.names:
                yield statement, alias


def import_of(source: Source, name: ast.Name, qualified: str) -> tuple[ast.ImportFrom, ast.alias] | None:
    """The one ``from ... import`` that binds this name to ``qualified``; None where there are several or none."""
    imports = [
        (statement, alias)
        for statement, alias in imported(source)
        if (alias.asname or alias.name) == name.id and f"{statement.module}.{alias.name}" == qualified
    ]
    return imports[0] if len(imports) == 1 else None


def reaching(source: Source, node: ast.Name) -> ast.expr | None:
    """What was assigned to a name last before it is read here, where that is one assignment on every path."""
    holder = source.names.holder(node.id, source.scope(node))
    bindings = holder.bindings[node.id] if holder is not None else []
    above = set(source.ancestors(node))
    if holder is not source.scope(node) and len(bindings) != 1:
        return None
    before = [
        binding for binding in bindings if position(binding) < position(node) and source.parent(binding) not in above
    ]
    latest = max(before, key=position, default=None)
    statement = source.parent(latest) if latest is not None else None
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return None
    if holder is source.scope(node) and source.parent(statement) not in above:
        return None
    return statement.value
