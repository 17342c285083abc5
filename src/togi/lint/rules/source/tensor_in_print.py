"""The rule ``tensor-in-print``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.syntax import last_name
from togi.lint.source.value import Kind, Value, element_of, evidence_of, excerpt, receiver

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_BUILTINS = ("print", "str", "repr", "format")
_LOG_METHODS = ("info", "warning", "warn", "error", "critical", "exception", "log")
_WARNINGS = ("warning", "warn", "error", "critical", "exception")
_LOGGERS = ("log", "logger", "logging", "_logger", "_log", "LOGGER", "LOG")
_PROGRESS = ("set_postfix", "set_description", "set_description_str", "set_postfix_str")
_WRITERS = ("add_scalar", "add_scalars", "add_histogram")


class TensorInPrint(SourceRule):
    """A device tensor becomes text in hot code.

    What it reports: ``print``, f-strings, ``str``, ``repr``, ``format``, ``%``, logging, progress bars and metric
    writers that are given a tensor which may lie on an accelerator, in ``forward``, in a training step, or in a loop
    over batches.

    Why it costs: to write the tensor's numbers, Python waits for the device and copies them. It is easily overlooked,
    because nothing in the line says so.

    When it stays silent: shapes, dtypes, devices, Python numbers, tensors on the CPU, ``logger.debug`` (it formats only
    when enabled), messages of exceptions and failed assertions, warnings under a
    condition, branches that run every so many steps or for debugging.

    Example::

        for step, batch in enumerate(loader):
            loss = train_step(batch)
            print(f"{step}: {loss}")

    Use instead::

        for step, batch in enumerate(loader):
            loss = train_step(batch)
            if step % 100 == 0:
                print(f"{step}: {loss}")

    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
    """

    id = "tensor-in-print"

    def check(self, source: Source) -> Iterable[Finding]:
        reported: set[ast.AST] = set()
        for node, parts, what in _texts(source):
            hot = source.hot(node) if not _warns(source, node) else None
            if hot is None or not reported.isdisjoint(source.ancestors(node)):
                continue
            value, part = next(((v, p) for p in parts if (v := _tensor(source.value(p))) is not None), (None, node))
            if value is None:
                continue
            reported.add(node)
            message = f"{what} waits for the device and copies {excerpt(part, 40)} to write its numbers"
            remedy = f"write it every so many steps only, or collect {receiver(part)}.detach() and write after the loop"
            yield source.finding(self.id, node, message, remedy, evidence=evidence_of(value, hot))


def _warns(source: Source, node: ast.AST) -> bool:
    """Whether the text goes into a warning under a condition, which is for what seldom happens."""
    calls = [one for one in (node, *source.ancestors(node)) if isinstance(one, ast.Call)]
    warning = any(last_name(one.func) in _WARNINGS for one in calls)
    return warning and any(isinstance(above, ast.If) for above in source.ancestors(node))


def _tensor(value: Value) -> Value | None:
    """``value``, or what it holds, if that is a device tensor."""
    if value.kind in (Kind.LIST, Kind.TUPLE, Kind.DICT):
        value = element_of(value)
        return value if value.on_device and value.certain else None
    return value if value.on_device else None


def _texts(source: Source) -> Iterator[tuple[ast.expr, list[ast.expr], str]]:
    """What makes text: the node, what goes into it, and how to call it. Calls first, they hold f-strings."""
    for call in source.nodes(ast.Call):
        what = _writes(source, call)
        if what:
            parts = [*call.args, *(keyword.value for keyword in call.keywords)]
            yield call, [inner for part in parts for inner in _inner(part)], what
    for node in source.nodes(ast.JoinedStr):
        if not isinstance(source.parent(node), ast.FormattedValue):
            yield node, _inner(node), "the f-string"
    for node in source.nodes(ast.BinOp):
        if isinstance(node.op, ast.Mod) and _is_text(node.left):
            right = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            yield node, list(right), "the formatted string"


def _inner(part: ast.expr) -> list[ast.expr]:
    if isinstance(part, ast.JoinedStr):
        return [one.value for one in part.values if isinstance(one, ast.FormattedValue)]
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) and _is_text(part.left):
        return list(part.right.elts) if isinstance(part.right, ast.Tuple) else [part.right]
    if isinstance(part, ast.Dict):
        return [one for one in part.values if one is not None]
    if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and _is_text(part.func.value):
        return [*part.args, *(keyword.value for keyword in part.keywords)]
    return [part]


def _writes(source: Source, call: ast.Call) -> str:
    func = call.func
    if isinstance(func, ast.Name):
        return f"{func.id}()" if func.id in _BUILTINS and source.qualified(func) == func.id else ""
    if not isinstance(func, ast.Attribute):
        return ""
    base = func.value
    name = last_name(base)
    if func.attr in _LOG_METHODS and (name in _LOGGERS or (func.attr == "log" and name == "wandb")):
        level = call.args[:1] if func.attr == "log" else []
        return "" if any("DEBUG" in ast.unparse(one) for one in level) else f"{excerpt(func)}()"
    if func.attr == "format" and _is_text(base):
        return "format()"
    if func.attr in _WRITERS or func.attr in _PROGRESS:
        return f"{excerpt(func)}()"
    if func.attr == "write" and source.qualified(func) == "tqdm.tqdm.write":
        return f"{excerpt(func)}()"
    return ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
