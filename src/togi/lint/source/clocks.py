"""Stretches of code that a file measures: from one reading of a clock to the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from togi.lint.source.uses import uses

if TYPE_CHECKING:
    from togi.lint.source.model import Source
    from togi.lint.source.tree import Scope

_CLOCKS = {
    *(f"time.{name}{unit}" for name in ("time", "perf_counter", "monotonic") for unit in ("", "_ns")),
    "timeit.default_timer",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
}
_Position = tuple[int, int]


@dataclass(frozen=True)
class Interval:
    """What runs between two readings in one scope, in the order of the source."""

    start: ast.Assign | ast.Expr
    """``start = time.time()``, or ``start.record()`` of a CUDA event."""
    reading: ast.Call
    """The second reading."""
    difference: ast.expr
    """Where the first is subtracted from the second."""
    calls: tuple[ast.Call, ...]
    """Calls between the two, those in nested functions left out."""


def intervals(source: Source) -> Iterator[Interval]:
    """Every ``clock() - start`` and ``end - start`` with the reading before it, both in the same scope."""
    readings = _readings(source)
    if not readings:
        return
    for node in source.nodes(ast.BinOp):
        if isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Name):
            scope = source.scope(node)
            end = _end(source, node, readings, scope)
            start = _latest(source, readings, node.right.id, scope, before=_position(end)) if end is not None else None
            if end is not None and start is not None:
                yield Interval(start, end, node, _between(source, start, end, scope))


def event_intervals(source: Source) -> Iterator[Interval]:
    """What runs between ``start.record()`` and ``end.record()`` of every ``start.elapsed_time(end)``."""
    for node in source.nodes(ast.Call):
        func = node.func
        if not (isinstance(func, ast.Attribute) and func.attr == "elapsed_time" and len(node.args) == 1):
            continue
        scope = source.scope(node)
        start, end = (_recorded(source, one, scope, _position(node)) for one in (func.value, node.args[0]))
        if start is not None and end is not None and isinstance(end.value, ast.Call):
            yield Interval(start, end.value, node, _between(source, start, end.value, scope))


def _recorded(source: Source, event: ast.expr, scope: Scope, before: _Position) -> ast.Expr | None:
    """The last ``event.record()`` of a scope before a place."""
    found = [
        node
        for node in source.nodes(ast.Expr)
        if isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == f"{ast.unparse(event)}.record"
        and _position(node) < before
        and source.scope(node) is scope
    ]
    return max(found, key=_position, default=None)


def _readings(source: Source) -> dict[ast.Call, ast.Assign | None]:
    """Calls of a clock, with the assignment of which each is the value."""
    found: dict[ast.Call, ast.Assign | None] = {}
    for node, _ in uses(source, _CLOCKS):
        call = source.parent(node)
        if isinstance(call, ast.Call) and call.func is node:
            above = source.parent(call)
            found[call] = above if isinstance(above, ast.Assign) else None
    return found


def _end(source: Source, node: ast.BinOp, readings: dict[ast.Call, ast.Assign | None], scope: Scope) -> ast.Call | None:
    if isinstance(node.left, ast.Call):
        return node.left if node.left in readings else None
    if not isinstance(node.left, ast.Name):
        return None
    statement = _latest(source, readings, node.left.id, scope, before=_position(node))
    return statement.value if statement is not None and isinstance(statement.value, ast.Call) else None


def _latest(
    source: Source, readings: dict[ast.Call, ast.Assign | None], name: str, scope: Scope, *, before: _Position
) -> ast.Assign | None:
    """The last ``name = clock()`` in a scope before a place."""
    found = [
        statement
        for statement in readings.values()
        if statement is not None
        and _position(statement) < before
        and any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
        and source.scope(statement) is scope
    ]
    return max(found, key=_position, default=None)


def _between(source: Source, start: ast.stmt, end: ast.Call, scope: Scope) -> tuple[ast.Call, ...]:
    first = (start.end_lineno or start.lineno, start.end_col_offset or 0)
    found = [
        call
        for call in source.nodes(ast.Call)
        if first <= _position(call) < _position(end) and end not in ast.walk(call) and source.scope(call) is scope
    ]
    return tuple(sorted(found, key=_position))


def _position(node: ast.expr | ast.stmt) -> _Position:
    return node.lineno, node.col_offset
