"""Where a file uses names that it imported."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from togi.lint.source.model import Source


def uses(source: Source, names: Collection[str]) -> Iterator[tuple[ast.Name | ast.Attribute, str]]:
    """Expressions that stand for one of these dotted names, with the name. Import statements are not expressions."""
    last = {name.rpartition(".")[2] for name in names}
    for node in source.nodes(ast.Attribute):
        if node.attr in last and (name := source.qualified(node)) in names and name is not None:
            yield node, name
    local = {binding for _, alias in imported(source) if alias.name in last for binding in [alias.asname or alias.name]}
    if not local:
        return
    for node in source.nodes(ast.Name):
        if node.id in local and isinstance(node.ctx, ast.Load):
            name = source.qualified(node)
            if name is not None and name in names:
                yield node, name


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
    found = [
        (statement, alias)
        for statement, alias in imported(source)
        if (alias.asname or alias.name) == name.id and f"{statement.module}.{alias.name}" == qualified
    ]
    return found[0] if len(found) == 1 else None
