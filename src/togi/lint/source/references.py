"""Finds uses of imported names, what a name was given last, and code that tests whether a name exists."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from togi.lint.source.syntax import position

if TYPE_CHECKING:
    from togi.lint.source.model import Source


def uses(source: Source, names: Collection[str]) -> Iterator[tuple[ast.Name | ast.Attribute, str]]:
    """Expressions that stand for one of these dotted names, with the name. Import statements are not expressions."""
    last = {name.rpartition(".")[2] for name in names}
    attributes = source.index.attributes
    for node in (node for one in sorted(last) for node in attributes.get(one, ())):
        if (name := source.qualified(node)) in names and name is not None:
            yield node, name
    local = {alias.asname or alias.name for _, alias in imported(source) if alias.name in last}
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


_CAUGHT = {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"}
_WORDS = (
    "version",
    "hasattr",
    "getattr",
    "_available",
    "TYPE_CHECKING",
    "compat",
    "is_torch_",
    "_GREATER",
)


def reaching(source: Source, node: ast.Name) -> ast.expr | None:
    """What was assigned to a name last before it is read here, where that is one assignment on every path."""
    holder = source.names.holder(node.id, source.scope(node))
    bindings = holder.bindings[node.id] if holder is not None else []
    above = set(source.ancestors(node))
    if holder is not source.scope(node) and len(bindings) != 1:
        return None
    before = [one for one in bindings if position(one) < position(node) and source.parent(one) not in above]
    latest = max(before, key=position, default=None)
    statement = source.parent(latest) if latest is not None else None
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return None
    if holder is source.scope(node) and source.parent(statement) not in above:
        return None
    return statement.value


def guarded(source: Source, node: ast.AST) -> bool:
    """Whether ``node`` stands under a ``try`` that catches missing names, or under a test of a version or of a name.

    Both sides count: the fallback in ``except ImportError`` is written for versions that lack the other name.
    """
    child = node
    for above in source.ancestors(node):
        if isinstance(above, ast.Try) and child not in above.finalbody and any(map(_catches, above.handlers)):
            return True
        if isinstance(above, ast.If | ast.IfExp) and child is not above.test and _asks(above.test):
            return True
        if isinstance(above, ast.BoolOp) and any(_asks(value) for value in above.values if value is not child):
            return True
        child = above
    return _after_test(source, node)


def probed(source: Source, name: str) -> bool:
    """Whether the file asks by ``hasattr`` or ``getattr`` for an attribute of this name, or sets it by ``setattr``."""
    return any(
        isinstance(call.func, ast.Name)
        and call.func.id in ("hasattr", "getattr", "setattr")
        and len(call.args) > 1
        and isinstance(call.args[1], ast.Constant)
        and call.args[1].value == name
        for call in source.nodes(ast.Call)
    )


def _asks(test: ast.expr) -> bool:
    text = ast.unparse(test).lower().replace(".is_available()", "")  # of a device, not of a name
    return any(word in text for word in _WORDS)


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types: Iterable[ast.expr] = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in _CAUGHT for kind in types)


def _after_test(source: Source, node: ast.AST) -> bool:
    """Below ``if version < ...: return`` (or raise), or ``assert hasattr(...)``, in a block that holds ``node``."""
    child = node
    for above in source.ancestors(node):
        block = next((block for block in _blocks(above) if child in block), [])
        if any(_ends_here(statement) for statement in _before(block, child)):
            return True
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            return False
        child = above
    return False


def _before(block: list[ast.stmt], child: ast.AST) -> list[ast.stmt]:
    return block[: block.index(child)] if isinstance(child, ast.stmt) and child in block else []


def _blocks(node: ast.AST) -> Iterable[list[ast.stmt]]:
    return (block for name in ("body", "orelse", "finalbody") if isinstance(block := getattr(node, name, None), list))


def _ends_here(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assert):
        return _asks(statement.test)
    if not isinstance(statement, ast.If) or not isinstance(statement.body[-1], ast.Return | ast.Raise):
        return False
    return _asks(statement.test)
