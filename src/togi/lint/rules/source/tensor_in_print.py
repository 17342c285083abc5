"""The rule ``tensor-in-print``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.identifiers import mentions
from togi.lint.source.model import Source
from togi.lint.source.syntax import arguments_of, is_text, last_name
from togi.lint.source.value import Value, ValueKind, element_of, evidence_of, excerpt, receiver

_BUILTINS = ("print", "str", "repr", "format")
_WARNINGS = ("warning", "warn", "error", "critical", "exception")
_LOG_METHODS = ("info", "log", *_WARNINGS)
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
        for node, parts, writer in _texts(source):
            hot = source.hot(node) if not _warns(source, node) else None
            if hot is None or not reported.isdisjoint(source.ancestors(node)):
                continue
            values = ((_written(source.value(part)), part) for part in parts)
            value, tensor = next(((value, part) for value, part in values if value is not None), (None, node))
            if value is not None:
                reported.add(node)
                yield source.finding(
                    self.id,
                    node,
                    f"{writer} waits for the device and copies {excerpt(tensor, 40)} to write its numbers",
                    f"write it every so many steps only, or collect {receiver(tensor)}.detach() and write after the "
                    "loop",
                    evidence=evidence_of(value, hot),
                )


def _warns(source: Source, node: ast.AST) -> bool:
    """Whether the text goes into a warning under a condition, which is for what seldom happens."""
    around = (node, *source.ancestors(node))
    warning = any(isinstance(above, ast.Call) and last_name(above.func) in _WARNINGS for above in around)
    return warning and any(isinstance(above, ast.If) for above in around)


def _written(value: Value) -> Value | None:
    """``value``, or what it holds, if that is a device tensor."""
    if value.kind in (ValueKind.LIST, ValueKind.TUPLE, ValueKind.DICT):
        element = element_of(value)
        return element if element.on_device and element.certain else None
    return value if value.on_device else None


def _texts(source: Source) -> Iterator[tuple[ast.expr, list[ast.expr], str]]:
    """What makes text: the node, what goes into it, and how to call it. Calls first, they hold f-strings."""
    for call in source.nodes(ast.Call):
        writer = _writer(source, call)
        if writer:
            yield call, [part for argument in arguments_of(call) for part in _parts(argument)], writer
    for node in source.nodes(ast.JoinedStr):
        if not isinstance(source.parent(node), ast.FormattedValue):
            yield node, _parts(node), "the f-string"
    for node in source.nodes(ast.BinOp):
        if isinstance(node.op, ast.Mod) and _is_text(node.left):
            yield node, _parts(node), "the formatted string"


def _parts(expression: ast.expr) -> list[ast.expr]:
    """What is formatted in an expression; itself where nothing is."""
    match expression:
        case ast.JoinedStr(values=pieces):
            return [piece.value for piece in pieces if isinstance(piece, ast.FormattedValue)]
        case ast.BinOp(left=text, op=ast.Mod(), right=right) if _is_text(text):
            return list(right.elts) if isinstance(right, ast.Tuple) else [right]
        case ast.Dict(values=values):
            return values
        case ast.Call(func=ast.Attribute(value=text)) if _is_text(text):
            return arguments_of(expression)
    return [expression]


def _writer(source: Source, call: ast.Call) -> str:
    """How to call what a call writes with; empty where it writes nothing."""
    func = call.func
    if isinstance(func, ast.Name):
        return f"{func.id}()" if func.id in _BUILTINS and source.qualified(func) == func.id else ""
    if not isinstance(func, ast.Attribute):
        return ""
    owner = last_name(func.value)
    if func.attr in _LOG_METHODS and (owner in _LOGGERS or (func.attr == "log" and owner == "wandb")):
        of_debugging = func.attr == "log" and bool(call.args) and mentions(source, call.args[0], ("debug",))
        return "" if of_debugging else f"{excerpt(func)}()"
    if func.attr == "format" and _is_text(func.value):
        return "format()"
    of_tqdm = func.attr == "write" and source.qualified(func) == "tqdm.tqdm.write"
    return f"{excerpt(func)}()" if of_tqdm or func.attr in (*_WRITERS, *_PROGRESS) else ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or is_text(node)
