"""Tells code that is written for several versions of a library: its old branch is right as it stands.

Such code chooses by a test (of a version, of a name, of a flag that was set by either), by catching an exception, or
shows the choice itself: the other branch does the same thing in the new way.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from togi.lint.source.loaders import assigned
from togi.lint.source.syntax import last_name, position

if TYPE_CHECKING:
    from togi.lint.source.model import Source

NewWay = Callable[[ast.AST], bool]
"""Whether a node does in the new way what the code in question does in the old one."""
Asks = Callable[["Source", ast.AST], bool]
_CAUGHT = {"ImportError", "ModuleNotFoundError", "AttributeError", "NameError", "Exception", "BaseException"}
_WORDS = ("version", "_available", "type_checking", "compat", "is_torch_", "_greater", "hasattr", "getattr")
"""Parts of a test next to the code that it guards."""
_OF_LIBRARIES = ("__version__", "version_info", "version.parse", "find_spec", "torch_version", "is_torch_")
"""Parts that tell of a library's version wherever they stand."""
_FLAG = re.compile(
    r"(?<![a-z])((torch|pt)_?v?_?\d|torch_?(ge|gt|le|lt|greater|less|newer|older|before|since)(?![a-z]))", re.IGNORECASE
)
"""Names of flags that tell of a version: ``TORCH_2_4``, ``is_torch2``, ``TORCH_GE_24``."""
_PROBES = ("hasattr", "getattr")
_VERSION = re.compile(r"^[<>=!~ ]*\d+(\.\d+)+")
_DEPTH = 4
"""Flags of flags, and callers of callers, that are followed."""


def guarded(source: Source, node: ast.AST, new_way: NewWay | None = None) -> bool:
    """Whether ``node`` is one side of a choice between versions, or stands in a function that is only called there.

    Both sides count: the fallback in ``except ImportError`` is written for versions that lack the other name.
    """
    if _surrounded(source, node, new_way, _asks) or _after_test(source, node, new_way, _asks):
        return True
    return _only_called_where_chosen(source, node, new_way, _DEPTH)


def _only_called_where_chosen(source: Source, node: ast.AST, new_way: NewWay | None, depth: int) -> bool:
    function = source.function(node)
    sites = source.callers.sites(function) if function is not None and depth else []
    return bool(sites) and all(
        _surrounded(source, site, new_way, _tells_version)
        or _only_called_where_chosen(source, site, new_way, depth - 1)
        for site in sites
    )


def _surrounded(source: Source, node: ast.AST, new_way: NewWay | None, asks: Asks) -> bool:
    child = node
    for above in source.ancestors(node):
        if _chooses(source, above, child, new_way, asks):
            return True
        child = above
    return False


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
        if not isinstance(node, ast.Name | ast.Attribute) or last_name(node) not in ends:
            return False
        name = source.names.qualified(node, source.scope(node))
        return name is not None and name not in olds

    return new


def gives(keyword: str) -> NewWay:
    """A call that is given ``keyword``."""
    return lambda node: isinstance(node, ast.Call) and any(one.arg == keyword for one in node.keywords)


def _chooses(source: Source, above: ast.AST, child: ast.AST, new_way: NewWay | None, asks: Asks) -> bool:
    if isinstance(above, ast.Try):
        parts = [above.body, above.orelse, *(handler.body for handler in above.handlers)]
        return child not in above.finalbody and (
            any(map(_catches, above.handlers)) or (bool(above.handlers) and _elsewhere(source, parts, child, new_way))
        )
    if isinstance(above, ast.FunctionDef | ast.ClassDef):  # skipif(torch.__version__ < ...)
        return any(_tells_version(source, one) for one in above.decorator_list if isinstance(one, ast.Call))
    if isinstance(above, ast.With):
        return child in above.body and any(_suppresses(source, item.context_expr) for item in above.items)
    if isinstance(above, ast.If | ast.IfExp):
        sides = [part if isinstance(part, list) else [part] for part in (above.body, above.orelse)]
        return child is not above.test and (asks(source, above.test) or _elsewhere(source, sides, child, new_way))
    if isinstance(above, ast.BoolOp):
        return any(asks(source, value) for value in above.values if value is not child)
    return isinstance(above, ast.Match) and child is not above.subject and asks(source, above.subject)


def _elsewhere(source: Source, sides: Iterable[Sequence[ast.AST]], child: ast.AST, new_way: NewWay | None) -> bool:
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


def _asks(source: Source, test: ast.AST) -> bool:
    """Whether a test asks for a version or a name, by its words or through a flag."""
    text = ast.unparse(test).lower().replace(".is_available()", "")  # of a device, not of a name
    return any(word in text for word in _WORDS) or _tells_version(source, test)


def _tells_version(source: Source, test: ast.AST, depth: int = _DEPTH) -> bool:
    """Whether a test asks for the version or a name of a library, also through flags and functions of this file."""
    text = ast.unparse(test)
    if any(word in text.lower() for word in _OF_LIBRARIES) or _FLAG.search(text):
        return True
    return depth > 0 and any(_is_flag(source, one, depth) for one in _operands(test))


def _operands(test: ast.AST) -> Iterator[ast.expr]:
    """What decides a test: names and calls, alone, negated, in ``and`` and ``or``, or compared with a literal."""
    match test:
        case ast.Name() | ast.Attribute() | ast.Call():
            yield test
        case ast.UnaryOp(operand=operand):
            yield from _operands(operand)
        case ast.BoolOp(values=values):
            for value in values:
                yield from _operands(value)
        case ast.Compare(left=ast.Tuple(elts=[first, *_])):  # (major, minor) >= (2, 4)
            yield from _operands(first)
        case ast.Compare(left=left, comparators=[ast.Constant() | ast.Tuple() | ast.List()]):
            yield from _operands(left)
        case ast.Compare(left=ast.Constant() | ast.Tuple(), comparators=[right]):
            yield from _operands(right)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _operands(body)
            yield from _operands(orelse)


def _is_flag(source: Source, node: ast.expr, depth: int) -> bool:
    if isinstance(node, ast.Call):
        return _call_asks(source, node, depth)
    if isinstance(node, ast.Name) and _is_foreign_flag(source, node):
        return True
    return any(_tells_version(source, value, depth - 1) for value in _given_to(source, node))


def _given_to(source: Source, flag: ast.expr) -> Iterator[ast.expr]:
    """What was assigned to a name or an attribute, also of a class, also with others: ``major, minor = ...``."""
    yield from assigned(source, flag)
    scopes = [source.names.holder(flag.id, source.scope(flag))] if isinstance(flag, ast.Name) else []
    if isinstance(flag, ast.Attribute):
        scopes = [scope for node, scope in source.index.scopes.items() if isinstance(node, ast.ClassDef)]
    for scope in scopes:
        for binding in scope.bindings.get(last_name(flag), ()) if scope is not None else ():
            above = source.parent(binding)
            statement = source.parent(above) if isinstance(above, ast.Tuple) else above
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                yield statement.value


def _call_asks(source: Source, call: ast.Call, depth: int) -> bool:
    """``hasattr(torch, ...)``, ``at_least("2.4")``, ``has_new_amp()`` of this file."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if any(isinstance(one, ast.Constant) and _VERSION.match(str(one.value)) for one in given if _is_text(one)):
        return True
    if isinstance(call.func, ast.Name) and call.func.id in (*_PROBES, "bool", "int") and call.args:
        of_library = source.names.qualified(call.args[0], source.scope(call)) is not None
        return (
            of_library if call.func.id in _PROBES else any(_is_flag(source, one, depth) for one in _operands(given[0]))
        )
    function = source.value(call.func).definition
    if not isinstance(function, ast.FunctionDef):
        return False
    if any(any(map(_catches, one.handlers)) for one in source.walk(function, ast.Try)):
        return True
    returned = [one.value for one in source.walk(function, ast.Return) if one.value is not None]
    return any(_tells_version(source, one, depth - 1) for one in returned)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


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


def _after_test(source: Source, node: ast.AST, new_way: NewWay | None, asks: Asks) -> bool:
    """Below ``if version < ...: return`` (or raise), or ``assert hasattr(...)``, in a block that holds ``node``."""
    child = node
    for above in source.ancestors(node):
        block = next((block for block in _blocks(above) if child in block), [])
        if any(_ends_here(source, statement, new_way, asks) for statement in _before(block, child)):
            return True
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            return False
        child = above
    return False


def _before(block: list[ast.stmt], child: ast.AST) -> list[ast.stmt]:
    return [one for one in block if position(one) < position(child)] if child in block else []


def _blocks(node: ast.AST) -> Iterable[list[ast.stmt]]:
    return (block for name in ("body", "orelse", "finalbody") if isinstance(block := getattr(node, name, None), list))


def _ends_here(source: Source, statement: ast.stmt, new_way: NewWay | None, asks: Asks) -> bool:
    if isinstance(statement, ast.Assert):
        return asks(source, statement.test)
    if isinstance(statement, ast.Try):
        leaves = isinstance(statement.body[-1], ast.Return)
        return leaves and (
            any(map(_catches, statement.handlers)) or _elsewhere(source, [statement.body], statement, new_way)
        )
    if not isinstance(statement, ast.If) or not isinstance(statement.body[-1], ast.Return | ast.Raise | ast.Continue):
        return False
    return asks(source, statement.test) or _elsewhere(source, [statement.body], statement, new_way)
