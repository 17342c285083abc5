"""Recognises code that is written for several versions of a library: its old branch is right as it stands.

Such code chooses by a test (of a version, of a name, of a flag that was set by either), by catching an exception, or
shows the choice itself: the other branch does the same thing in the new way.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from togi.lint.source.loaders import assigned
from togi.lint.source.syntax import arguments_of, last_name
from togi.lint.source.tree import block_of

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
        name = source.dotted(node)
        return bool(name) and name not in olds

    return new


def gives(keyword: str) -> NewWay:
    """A call that is given ``keyword``."""
    return lambda node: isinstance(node, ast.Call) and any(argument.arg == keyword for argument in node.keywords)


def _chooses(source: Source, above: ast.AST, child: ast.AST, new_way: NewWay | None, asks: Asks) -> bool:
    if isinstance(above, ast.Try):
        parts = [above.body, above.orelse, *(handler.body for handler in above.handlers)]
        return child not in above.finalbody and (
            any(map(_catches, above.handlers)) or (bool(above.handlers) and _elsewhere(source, parts, child, new_way))
        )
    if isinstance(above, ast.FunctionDef | ast.ClassDef):  # skipif(torch.__version__ < ...)
        calls = (decorator for decorator in above.decorator_list if isinstance(decorator, ast.Call))
        return any(_tells_version(source, call) for call in calls)
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
    own = child.body if isinstance(child, ast.ExceptHandler) else [child]  # a handler stands between try and statements
    elsewhere = (statement for side in sides if not any(part in own for part in side) for statement in side)
    return any(new_way(node) for statement in elsewhere for node in source.walk(statement))


def _asks(source: Source, test: ast.AST) -> bool:
    """Whether a test asks for a version or a name, by its words or through a flag."""
    text = ast.unparse(test).lower().replace(".is_available()", "")  # of a device, not of a name
    return any(word in text for word in _WORDS) or _tells_version(source, test)


def _tells_version(source: Source, test: ast.AST, depth: int = _DEPTH) -> bool:
    """Whether a test asks for the version or a name of a library, also through flags and functions of this file."""
    text = ast.unparse(test)
    if any(word in text.lower() for word in _OF_LIBRARIES) or _FLAG.search(text):
        return True
    return depth > 0 and any(_is_flag(source, operand, depth) for operand in _operands(test))


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
    bindings = source.bindings(flag)
    if isinstance(flag, ast.Attribute):
        classes = [scope for node, scope in source.index.scopes.items() if isinstance(node, ast.ClassDef)]
        bindings = [binding for scope in classes for binding in scope.bindings.get(flag.attr, ())]
    for binding in bindings:
        above = source.parent(binding)
        statement = source.parent(above) if isinstance(above, ast.Tuple) else above
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            yield statement.value


def _call_asks(source: Source, call: ast.Call, depth: int) -> bool:
    """``hasattr(torch, ...)``, ``at_least("2.4")``, ``has_new_amp()`` of this file."""
    constants = [argument for argument in arguments_of(call) if isinstance(argument, ast.Constant)]
    if any(_VERSION.match(constant.value) for constant in constants if isinstance(constant.value, str)):
        return True
    func = last_name(call.func) if isinstance(call.func, ast.Name) and call.args else ""
    if func in _PROBES:
        return bool(source.dotted(call.args[0]))
    if func in ("bool", "int"):
        return any(_is_flag(source, operand, depth) for operand in _operands(call.args[0]))
    function = source.value(call.func).definition
    if not isinstance(function, ast.FunctionDef):
        return False
    if any(map(_catches, source.walk(function, ast.ExceptHandler))):
        return True
    returned = [statement.value for statement in source.walk(function, ast.Return) if statement.value is not None]
    return any(_tells_version(source, value, depth - 1) for value in returned)


def _is_foreign_flag(source: Source, name: ast.Name) -> bool:
    """A constant of another file (``TORCH_2_4``), or one that was set while names were tried."""
    bindings = source.bindings(name)
    if any(isinstance(binding, ast.alias) for binding in bindings):
        return name.id.isupper()
    return any(
        isinstance(above, ast.Try) and any(map(_catches, above.handlers))
        for binding in bindings
        for above in _statements_around(source, binding)
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
        block = block_of(above, child)
        before = block[: block.index(child)] if isinstance(child, ast.stmt) and block else ()
        if any(_ends_here(source, statement, new_way, asks) for statement in before):
            return True
        if isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            return False
        child = above
    return False


def _ends_here(source: Source, statement: ast.stmt, new_way: NewWay | None, asks: Asks) -> bool:
    if isinstance(statement, ast.Assert):
        return asks(source, statement.test)
    match statement:
        case ast.Try(body=[*_, ast.Return()]):
            chooses = any(map(_catches, statement.handlers))
        case ast.If(body=[*_, ast.Return() | ast.Raise() | ast.Continue()]):
            chooses = asks(source, statement.test)
        case _:
            return False
    return chooses or _elsewhere(source, [statement.body], statement, new_way)
