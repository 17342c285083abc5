"""Finds what code adds to something that it keeps: sums, lists, tables and meters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from togi.lint.source.compiled import names_in
from togi.lint.source.loaders import assigned
from togi.lint.source.syntax import last_name
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
            yield from (Accumulation(node, node.target, one) for one in _parts(node.value))
    for node in source.nodes(ast.Assign):
        if len(node.targets) == 1:
            yield from _assigned(source, node, node.targets[0])
    for node in source.nodes(ast.Call):
        yield from _given(source, node)


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """What a display holds, one by one; anything else itself."""
    if isinstance(node, ast.Tuple | ast.List):
        for one in node.elts:
            yield from _parts(one)
    elif isinstance(node, ast.Dict):
        for one in node.values:
            yield from _parts(one)
    else:
        yield node


def _assigned(source: Source, node: ast.Assign, target: ast.expr) -> Iterator[Accumulation]:
    value = node.value
    sums = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
    for one in sums:
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Add):
            for term, rest in ((one.left, one.right), (one.right, one.left)):
                if _continues(term, target):
                    yield Accumulation(node, target, rest)
    if isinstance(target, ast.Subscript) and _changes(source, target.slice):
        yield from (Accumulation(node, target.value, one) for one in _parts(value))


def _continues(term: ast.expr, target: ast.expr) -> bool:
    """``total``, ``0.9 * total``, and ``table.get(key, 0)`` for ``table[key]``."""
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult):
        return _continues(term.left, target) or _continues(term.right, target)
    if isinstance(target, ast.Subscript) and isinstance(term, ast.Call):
        func = term.func
        return isinstance(func, ast.Attribute) and func.attr == "get" and _same(func.value, target.value)
    return isinstance(term, ast.Name | ast.Attribute | ast.Subscript) and _same(term, target)


def _same(one: ast.expr, other: ast.expr) -> bool:
    return ast.unparse(one) == ast.unparse(other)


def _changes(source: Source, index: ast.expr) -> bool:
    """Whether an index counts the turns of a loop, so that each turn stores an item of its own."""
    counted = [
        name
        for loop in source.loops(index)
        if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call)
        for name in names_in(source, loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target)
        if isinstance(loop.iter.func, ast.Name) and loop.iter.func.id in ("range", "enumerate")
    ]
    return isinstance(index, ast.Name) and index.id in counted


def _given(source: Source, call: ast.Call) -> Iterator[Accumulation]:
    func = call.func
    if not isinstance(func, ast.Attribute) or not call.args:
        return
    if func.attr in _GROWING and len(call.args) == (2 if func.attr == "insert" else 1) and not call.keywords:
        yield from (Accumulation(call, func.value, one) for one in _parts(call.args[-1]))
    if func.attr in ("update", "add") and _sums_up(source, func):
        yield Accumulation(call, func.value, call.args[0])


def _sums_up(source: Source, func: ast.Attribute) -> bool:
    """Whether the method adds what it is given to an attribute, as far as its class or its name tells."""
    definition = source.value(func.value).definition
    if isinstance(definition, ast.ClassDef):
        method = source.classes.method(definition, func.attr)
        return method is not None and _adds_argument(source, method)
    made = [one.func for one in assigned(source, func.value) if isinstance(one, ast.Call)]
    if made:
        return all(_METERS.search(ast.unparse(one)) for one in made)
    name = last_name(func.value)
    return bool(_NAMED_METER.search(name))


def _adds_argument(source: Source, method: Function) -> bool:
    """Whether a method adds its first argument, as it is, to an attribute or to a list in one."""
    arguments = [one.arg for one in (*method.args.posonlyargs, *method.args.args)]
    if len(arguments) < 2 or _is_bound(source, method, arguments[1]):
        return False
    for node in source.walk(method, ast.AugAssign, ast.Call):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            kept = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            kept = node.args[0] if node.args else node
        else:
            continue
        if _passes_on(kept, arguments[1]):
            return True
    return False


def _is_bound(source: Source, method: Function, name: str) -> bool:
    """``value = value.item()``, first."""
    return any(n.id == name and isinstance(n.ctx, ast.Store) for n in source.walk(method, ast.Name))


def _passes_on(node: ast.expr, name: str) -> bool:
    """``value``, ``value * n``."""
    if isinstance(node, ast.BinOp):
        return _passes_on(node.left, name) or _passes_on(node.right, name)
    return isinstance(node, ast.Name) and node.id == name
