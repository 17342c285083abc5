"""Finds stretches of code that a file times, the work they give an accelerator, and calls that may wait for it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from togi.lint.source.placement import cuda_names, mentions_cuda
from togi.lint.source.references import calls_of
from togi.lint.source.syntax import arguments_of, called_method, is_constant, last_name, position
from togi.lint.source.value import ACCELERATORS, ValueKind

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
S = TypeVar("S", bound=ast.stmt)


@dataclass(frozen=True)
class TimedStretch:
    """The code between two readings of a clock in one scope."""

    start: ast.Assign | ast.Expr
    """``start = time.time()``, or ``start.record()`` of a CUDA event."""
    reading: ast.Call
    """The second reading."""
    difference: ast.expr
    """Where the first is subtracted from the second."""
    calls: tuple[ast.Call, ...]
    """Calls between the two, those in nested functions left out."""


def intervals(source: Source) -> Iterator[TimedStretch]:
    """Every ``clock() - start`` and ``end - start`` with the reading before it, both in the same scope."""
    readings = _readings(source)
    if not readings:
        return
    for node in source.nodes(ast.BinOp):
        if isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Name):
            scope = source.scope(node)
            end = _end(source, node, readings, scope)
            start = _latest(source, readings, node.right.id, scope, before=position(end)) if end is not None else None
            if end is not None and start is not None:
                yield TimedStretch(start, end, node, _between(source, start, end, scope))


def event_intervals(source: Source) -> Iterator[TimedStretch]:
    """What runs between ``start.record()`` and ``end.record()`` of every ``start.elapsed_time(end)``."""
    for node in source.nodes(ast.Call):
        if called_method(node) != "elapsed_time" or len(node.args) != 1:
            continue
        scope = source.scope(node)
        events = (node.func.value, node.args[0])
        start, end = (_recorded(source, event, scope, position(node)) for event in events)
        if start is not None and end is not None and isinstance(end.value, ast.Call):
            yield TimedStretch(start, end.value, node, _between(source, start, end.value, scope))


def _recorded(source: Source, event: ast.expr, scope: Scope, before: _Position) -> ast.Expr | None:
    """The last ``event.record()`` of a scope before a place."""
    name = ast.unparse(event)
    calls = (node for node in source.nodes(ast.Expr) if called_method(node.value) == "record")
    return _last(source, (node for node in calls if ast.unparse(node.value.func.value) == name), scope, before)


def _readings(source: Source) -> dict[ast.Call, ast.Assign | None]:
    """Calls of a clock, with the assignment of which each is the value."""
    above = {call: source.parent(call) for call, _ in calls_of(source, _CLOCKS)}
    return {call: node if isinstance(node, ast.Assign) else None for call, node in above.items()}


def _end(source: Source, node: ast.BinOp, readings: dict[ast.Call, ast.Assign | None], scope: Scope) -> ast.Call | None:
    if isinstance(node.left, ast.Call):
        return node.left if node.left in readings else None
    if not isinstance(node.left, ast.Name):
        return None
    statement = _latest(source, readings, node.left.id, scope, before=position(node))
    return statement.value if statement is not None and isinstance(statement.value, ast.Call) else None


def _latest(
    source: Source, readings: dict[ast.Call, ast.Assign | None], name: str, scope: Scope, *, before: _Position
) -> ast.Assign | None:
    """The last ``name = clock()`` in a scope before a place."""
    statements = filter(None, readings.values())
    named = (s for s in statements if any(isinstance(target, ast.Name) and target.id == name for target in s.targets))
    return _last(source, named, scope, before)


def _last(source: Source, statements: Iterable[S], scope: Scope, before: _Position) -> S | None:
    earlier = (s for s in statements if position(s) < before and source.scope(s) is scope)
    return max(earlier, key=position, default=None)


def _between(source: Source, start: ast.stmt, end: ast.Call, scope: Scope) -> tuple[ast.Call, ...]:
    first = (start.end_lineno or start.lineno, start.end_col_offset or 0)
    calls = (
        call
        for call in source.nodes(ast.Call)
        if first <= position(call) < position(end)
        and end not in source.walk(call, ast.Call)
        and source.scope(call) is scope
    )
    return tuple(sorted(calls, key=position))


_HARMLESS_BUILTINS = frozenset("range enumerate len zip list tuple dict iter next isinstance min max".split())
_HARMLESS_METHODS = frozenset(
    """append extend step zero_grad backward train eval parameters items keys values get scale unscale_ requires_grad_
    range_push range_pop record""".split()
)
_WAITS = {"synchronize", "item", "cpu", "numpy", "tolist", "elapsed_time", "wait", "barrier", "mark_step", "query"}
_LOSSES = {"criterion", "loss_fn", "loss_func", "loss_function"}


def may_wait(source: Source, call: ast.Call) -> bool:
    """Whether a call waits for the device, or may do so because the file does not show what it does."""
    name = last_name(call.func)
    to_host = called_method(call) == "to" and any(is_constant(arg, "cpu") for arg in call.args)
    if name in _WAITS or to_host:
        return True
    qualified = source.qualified(call.func) or ""
    if qualified in ("print", "float", "int", "bool", "str", "sum"):
        return any(source.value(arg).kind in (ValueKind.TENSOR, ValueKind.UNKNOWN) for arg in _parts(source, call))
    return not _harmless(source, call, name, qualified)


def _harmless(source: Source, call: ast.Call, name: str, qualified: str) -> bool:
    if qualified in _HARMLESS_BUILTINS or name in _HARMLESS_METHODS or name in _LOSSES:
        return True
    if qualified.startswith(("torch.", "time.", "tqdm", "math.")):
        return not qualified.startswith("torch.utils.benchmark")
    kind = source.value(call.func).kind
    owner = source.value(call.func.value).kind if isinstance(call.func, ast.Attribute) else ValueKind.UNKNOWN
    return kind is ValueKind.MODULE or owner in (ValueKind.TENSOR, ValueKind.OPTIMIZER)


def device_work(source: Source, interval: TimedStretch) -> ast.expr | None:
    """The first call of a module, of ``backward`` or of an operation of tensors between two readings."""
    for call in interval.calls:
        is_pass = source.value(call.func).kind is ValueKind.MODULE or called_method(call) == "backward"
        if is_pass or _gives_cuda_tensor(source, call):
            return call
    span = range(interval.start.lineno, interval.reading.lineno + 1)
    product: ast.BinOp
    for product in source.nodes(ast.BinOp):
        if product.lineno in span and isinstance(product.op, ast.MatMult) and _gives_cuda_tensor(source, product):
            return product
    return None


def _gives_cuda_tensor(source: Source, node: ast.expr) -> bool:
    value = source.value(node)
    return value.kind is ValueKind.TENSOR and value.device in ACCELERATORS


def on_cuda(source: Source, work: ast.expr, interval: TimedStretch) -> bool:
    """Whether the work is evidently on a GPU: its value says so, or the function puts things there."""
    involved = [work, *([work.func, *work.args] if isinstance(work, ast.Call) else [])]
    devices = {source.value(node).device for node in involved}
    if "cpu" in devices:
        return False
    return not devices.isdisjoint(ACCELERATORS) or _scope_moves_to_cuda(source, interval)


def _scope_moves_to_cuda(source: Source, interval: TimedStretch) -> bool:
    """Whether the function (or the module's top level) moves something to a CUDA device."""
    scope, names = source.scope(interval.start), cuda_names(source)
    for call in source.nodes(ast.Call):
        method = called_method(call)
        if method not in ("to", "cuda") or source.scope(call) is not scope:
            continue
        arguments = _parts(source, call)
        if method == "cuda" or any(mentions_cuda(source, arg) or last_name(arg) in names for arg in arguments):
            return True
    return False


def _parts(source: Source, call: ast.Call) -> list[ast.expr]:
    """Arguments, and what stands in braces in those that are f-strings."""
    arguments = arguments_of(call)
    return [*arguments, *(part.value for arg in arguments for part in source.walk(arg, ast.FormattedValue))]
