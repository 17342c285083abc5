"""Finds what code adds to something that it keeps: sums, lists, tables and meters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from togi.lint.source.compiled import loop_names, names_in
from togi.lint.source.loaders import assigned
from togi.lint.source.syntax import called_method, last_name
from togi.lint.source.tree import Function

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_GROWING = frozenset(["append", "appendleft", "extend", "insert", "add", "put"])
_METERS = re.compile(r"(^|\.)(Average\w*|Avg\w*|RunningAverage|RunningMean|\w*Averager)$")
"""Classes that, as they are usually written, add what they are given to a sum: ``AverageMeter``."""
_NAMED_METER = re.compile(r"(meter|average)s?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Accumulation:
    """``kept`` is added to ``target`` at ``node``."""

    node: ast.AST
    target: ast.expr
    kept: ast.expr


def accumulations(source: Source) -> Iterator[Accumulation]:
    """``total += x``, ``total = total + x``, ``xs.append(x)``, ``table[step] = x``, ``meter.update(x)``."""
    for node in source.nodes(ast.AugAssign):
        if isinstance(node.op, ast.Add):
            yield from (Accumulation(node, node.target, part) for part in _parts(node.value))
    for node in source.nodes(ast.Assign):
        if len(node.targets) == 1:
            yield from _assigned(source, node, node.targets[0])
    for node in source.nodes(ast.Call):
        yield from _given(source, node)


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """What a display holds, one by one; anything else itself."""
    if isinstance(node, ast.Tuple | ast.List | ast.Dict):
        for part in node.values if isinstance(node, ast.Dict) else node.elts:
            yield from _parts(part)
    else:
        yield node


def _assigned(source: Source, node: ast.Assign, target: ast.expr) -> Iterator[Accumulation]:
    value = node.value
    for total in [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]:
        if isinstance(total, ast.BinOp) and isinstance(total.op, ast.Add):
            for term, added in ((total.left, total.right), (total.right, total.left)):
                if _continues(term, target):
                    yield Accumulation(node, target, added)
    if isinstance(target, ast.Subscript) and _changes(source, target.slice):
        yield from (Accumulation(node, target.value, part) for part in _parts(value))


def _continues(term: ast.expr, target: ast.expr) -> bool:
    """``total``, ``0.9 * total``, and ``table.get(key, 0)`` for ``table[key]``."""
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult):
        return _continues(term.left, target) or _continues(term.right, target)
    if isinstance(target, ast.Subscript) and isinstance(term, ast.Call):
        return ast.unparse(term.func) == f"{ast.unparse(target.value)}.get"
    return isinstance(term, ast.Name | ast.Attribute | ast.Subscript) and ast.unparse(term) == ast.unparse(target)


def _changes(source: Source, index: ast.expr) -> bool:
    """Whether an index counts the turns of a loop, so that each turn stores an item of its own."""
    return isinstance(index, ast.Name) and any(
        isinstance(loop, ast.For)
        and isinstance(loop.iter, ast.Call)
        and ast.unparse(loop.iter.func) in ("range", "enumerate")
        and index.id in names_in(source, loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target)
        for loop in source.loops(index)
    )


def _given(source: Source, call: ast.Call) -> Iterator[Accumulation]:
    func = call.func
    if not isinstance(func, ast.Attribute) or not call.args:
        return
    if func.attr in _GROWING and len(call.args) == (2 if func.attr == "insert" else 1) and not call.keywords:
        yield from (Accumulation(call, func.value, part) for part in _parts(call.args[-1]))
    if func.attr in ("update", "add") and _sums_up(source, func):
        yield Accumulation(call, func.value, call.args[0])


def _sums_up(source: Source, func: ast.Attribute) -> bool:
    """Whether the method adds what it is given to an attribute, as far as its class or its name tells."""
    definition = source.value(func.value).definition
    if isinstance(definition, ast.ClassDef):
        method = source.classes.method(definition, func.attr)
        return method is not None and _adds_argument(source, method)
    makers = [ast.unparse(call.func) for call in assigned(source, func.value) if isinstance(call, ast.Call)]
    if makers:
        return all(map(_METERS.search, makers))
    return bool(_NAMED_METER.search(last_name(func.value)))


def _adds_argument(source: Source, method: Function) -> bool:
    """Whether a method adds its first argument, as it is, to an attribute or to a list in one."""
    parameters = [arg.arg for arg in (*method.args.posonlyargs, *method.args.args)]
    if len(parameters) < 2 or parameters[1] in loop_names(source, method):  # value = value.item(), first
        return False
    sums = source.walk(method, ast.AugAssign)
    added = [node.value for node in sums if isinstance(node.target, ast.Attribute)]
    added += [node.args[0] for node in source.walk(method, ast.Call) if called_method(node) == "append" and node.args]
    return any(_passes_on(value, parameters[1]) for value in added)


def _passes_on(node: ast.expr, name: str) -> bool:
    """``value``, ``value * n``."""
    if isinstance(node, ast.BinOp):
        return _passes_on(node.left, name) or _passes_on(node.right, name)
    return isinstance(node, ast.Name) and node.id == name
