"""Tells code that is written for several versions of a library: its old branch is right as it stands.

Such code chooses by a test (of a version, of a name, of a flag that was set by either), by catching an exception, or
shows the choice itself: the other branch does the same thing in the new way.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from togi.lint.source.loaders import assigned
from togi.lint.source.syntax import last_name, position

if TYPE_CHECKING:
    from togi.lint.source.model import Source

NewWay = Callable[[ast.AST], bool]
"""Whether a node does in the new way what the code in question does in the old one."""
_CAUGHT = {"ImportError", "ModuleNotFoundError", "AttributeError", "NameError", "Exception", "BaseException"}
_WORDS = ("version", "_available", "type_checking", "compat", "is_torch_", "_greater", "find_spec")
_PROBES = ("hasattr", "getattr")
_VERSION = re.compile(r"^[<>=!~ ]*\d+(\.\d+)+")
_DEPTH = 4
"""Flags of flags, and callers of callers, that are followed."""


def guarded(source: Source, node: ast.AST, new_way: NewWay | None = None, depth: int = _DEPTH) -> bool:
    """Whether ``node`` is one side of a choice between versions, or stands in a function that is only called there.

    Both sides count: the fallback in ``except ImportError`` is written for versions that lack the other name.
    """
    child = node
    for above in source.ancestors(node):
        if _chooses(source, above, child, new_way):
            return True
        child = above
    if _after_test(source, node, new_way):
        return True
    function = source.function(node)
    sites = source.callers.sites(function) if function is not None and depth else []
    return bool(sites) and all(guarded(source, site, new_way, depth - 1) for site in sites)


def probed(source: Source, name: str) -> bool:
    """Whether the file asks by ``hasattr`` or ``getattr`` for an attribute of this name, or sets it by ``setattr``."""
    return any(
        isinstance(call.func, ast.Name)
        and call.func.id in (*_PROBES, "setattr")
        and len(call.args) > 1
        and isinstance(call.args[1], ast.Constant)
        and call.args[1].value == name
        for call in source.nodes(ast.Call)
    )


def names_new(source: Source, old: Iterable[str], last: Iterable[str]) -> NewWay:
    """A name that ends in one of ``last`` and is none of the ``old`` dotted names."""
    olds, ends = frozenset(old), frozenset(last)

    def new(node: ast.AST) -> bool:
        named = isinstance(node, ast.Name | ast.Attribute) and last_name(node) in ends
        return named and source.qualified(node) not in olds

    return new


def gives(keyword: str) -> NewWay:
    """A call that is given ``keyword``."""
    return lambda node: isinstance(node, ast.Call) and any(one.arg == keyword for one in node.keywords)


def _chooses(source: Source, above: ast.AST, child: ast.AST, new_way: NewWay | None) -> bool:
    if isinstance(above, ast.Try):
        parts = [above.body, above.orelse, *(handler.body for handler in above.handlers)]
        return child not in above.finalbody and (
            any(map(_catches, above.handlers)) or (bool(above.handlers) and _elsewhere(source, parts, child, new_way))
        )
    if isinstance(above, ast.With):
        return child in above.body and any(_suppresses(source, item.context_expr) for item in above.items)
    if isinstance(above, ast.If | ast.IfExp):
        sides = [part if isinstance(part, list) else [part] for part in (above.body, above.orelse)]
        return child is not above.test and (_asks(source, above.test) or _elsewhere(source, sides, child, new_way))
    if isinstance(above, ast.BoolOp):
        return any(_asks(source, value) for value in above.values if value is not child)
    return isinstance(above, ast.Match) and child is not above.subject and _asks(source, above.subject)


def _elsewhere(source: Source, sides: Iterable[list[ast.AST]], child: ast.AST, new_way: NewWay | None) -> bool:
    """Whether a side without ``child`` does the same in the new way."""
    if new_way is None:
        return False
    inside = _holds(child)
    others = (one for side in sides if not any(inside(part) for part in side) for one in side)
    return any(new_way(node) for one in others for node in source.walk(one))


def _holds(child: ast.AST) -> Callable[[ast.AST], bool]:
    """A handler stands between a ``try`` and its statements."""
    parts = child.body if isinstance(child, ast.ExceptHandler) else [child]
    return lambda node: node in parts


def _asks(source: Source, test: ast.AST, depth: int = _DEPTH) -> bool:
    """Whether a test asks for a version or a name, also through a flag or a function of this file."""
    text = ast.unparse(test).lower().replace(".is_available()", "")  # of a device, not of a name
    if any(word in text for word in (*_WORDS, *(_PROBES if depth == _DEPTH else ()))):
        return True
    return any(_is_flag(source, one, depth) for one in source.walk(test, ast.Name, ast.Attribute, ast.Call))


def _is_flag(source: Source, node: ast.expr, depth: int) -> bool:
    if isinstance(node, ast.Call):
        return _call_asks(source, node, depth)
    if not isinstance(node.ctx, ast.Load) or (isinstance(node, ast.Name) and _is_foreign_flag(source, node)):  # type: ignore[attr-defined]
        return isinstance(node.ctx, ast.Load)  # type: ignore[attr-defined]
    return depth > 0 and any(_asks(source, value, depth - 1) for value in assigned(source, node))


def _call_asks(source: Source, call: ast.Call, depth: int) -> bool:
    """``hasattr(torch, ...)``, ``at_least("2.4")``, ``has_new_amp()`` of this file."""
    given = [one for one in source.walk(call, ast.Constant) if isinstance(one.value, str)]
    if any(_VERSION.match(one.value) for one in given):
        return True
    if isinstance(call.func, ast.Name) and call.func.id in _PROBES and call.args:
        return source.names.qualified(call.args[0], source.scope(call)) is not None
    function = source.value(call.func).definition if depth > 0 else None
    if not isinstance(function, ast.FunctionDef):
        return False
    if any(any(map(_catches, one.handlers)) for one in source.walk(function, ast.Try)):
        return True
    returned = [one.value for one in source.walk(function, ast.Return) if one.value is not None]
    return any(_asks(source, one, depth - 1) for one in returned)


def _is_foreign_flag(source: Source, name: ast.Name) -> bool:
    """A constant of another file (``TORCH_2_4``), or one that was set while names were tried."""
    holder = source.names.holder(name.id, source.scope(name))
    bindings = holder.bindings[name.id] if holder is not None else []
    if any(isinstance(one, ast.alias) for one in bindings):
        return name.id.isupper()
    return any(
        isinstance(above, ast.Try) and any(_catches(handler) for handler in above.handlers)
        for one in bindings
        for above in _statements_around(source, one)
    )


def _statements_around(source: Source, node: ast.AST) -> Iterator[ast.AST]:
    """What surrounds a binding within its scope."""
    for above in source.ancestors(node):
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            return
        yield above


def _catches(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or _are_of_missing_names(handler.type)


def _are_of_missing_names(types: ast.expr) -> bool:
    return any(last_name(kind) in _CAUGHT for kind in (types.elts if isinstance(types, ast.Tuple) else [types]))


def _suppresses(source: Source, node: ast.expr) -> bool:
    """``contextlib.suppress(ImportError)``."""
    if not isinstance(node, ast.Call) or source.qualified(node.func) != "contextlib.suppress":
        return False
    return any(map(_are_of_missing_names, node.args))


def _after_test(source: Source, node: ast.AST, new_way: NewWay | None) -> bool:
    """Below ``if version < ...: return`` (or raise), or ``assert hasattr(...)``, in a block that holds ``node``."""
    child = node
    for above in source.ancestors(node):
        block = next((block for block in _blocks(above) if child in block), [])
        if any(_ends_here(source, statement, new_way) for statement in _before(block, child)):
            return True
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            return False
        child = above
    return False


def _before(block: list[ast.stmt], child: ast.AST) -> list[ast.stmt]:
    return [one for one in block if position(one) < position(child)] if child in block else []


def _blocks(node: ast.AST) -> Iterable[list[ast.stmt]]:
    return (block for name in ("body", "orelse", "finalbody") if isinstance(block := getattr(node, name, None), list))


def _ends_here(source: Source, statement: ast.stmt, new_way: NewWay | None) -> bool:
    if isinstance(statement, ast.Assert):
        return _asks(source, statement.test)
    if isinstance(statement, ast.Try):
        leaves = isinstance(statement.body[-1], ast.Return)
        return leaves and (
            any(map(_catches, statement.handlers)) or _elsewhere(source, [statement.body], statement, new_way)
        )
    if not isinstance(statement, ast.If) or not isinstance(statement.body[-1], ast.Return | ast.Raise | ast.Continue):
        return False
    return _asks(source, statement.test) or _elsewhere(source, [statement.body], statement, new_way)
