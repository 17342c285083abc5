"""The rule ``unawaited-copy-to-host``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.call_sites import method_calls
from togi.lint.source.compiled import names_in
from togi.lint.source.model import Source
from togi.lint.source.surroundings import neighbours
from togi.lint.source.syntax import argument, is_constant, last_name, position, unpacks
from togi.lint.source.value import ValueKind, excerpt

_WAITS = frozenset("synchronize wait item tolist cpu elapsed_time query join barrier".split())
"""Calls that wait for the device, or for something that may."""
_READS = frozenset("numpy item tolist".split())
_FUNCTIONS = frozenset("print float int bool str repr list format".split())
_KNOWN = ("len", "range", "print", "isinstance", "list")


class UnawaitedCopyToHost(SourceRule):
    """A tensor is read on the CPU before its copy from the device has arrived.

    What it reports: ``x.to("cpu", non_blocking=True)`` (or ``host.copy_(x, non_blocking=True)`` into a tensor on the
    CPU) whose result is read by ``numpy()``, ``item()``, ``tolist()``, ``print``, ``float()`` or ``if`` in the same
    block, with nothing between that could wait.

    Why it costs: the call returns before the copy is done, and the CPU does not wait for its own memory. What is read
    is whatever lay there, now and then, without an error. PyTorch waits only for copies to the device, in the order of
    its stream.

    When it stays silent: anything between that synchronizes or may (``synchronize()``, ``wait()``, ``item()`` of
    another tensor, a call of code that the file does not show). A ``non_blocking`` that is set from something, tensors
    that lie on the CPU already, and a copy that is handed on unread.

    Example::

        scores = model(x).to("cpu", non_blocking=True)
        print(scores.numpy())

    Use instead::

        scores = model(x).to("cpu", non_blocking=True)
        torch.cuda.synchronize()
        print(scores.numpy())

    or ``scores = model(x).cpu()``, which waits.

    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    """

    id = "unawaited-copy-to-host"

    def check(self, source: Source) -> Iterable[Finding]:
        if "non_blocking" not in source.text:
            return
        for call, method in method_calls(source, ("to", "copy_")):
            if not _copies_to_host(source, call, method):
                continue
            read = _read_at_once(source, call) or _read_later(source, call, method)
            if read is not None:
                yield source.finding(
                    self.id,
                    call,
                    f"{excerpt(call, 50)} returns before the copy is done, and line {read.lineno} reads it: what it "
                    "reads may not have arrived",
                    "call torch.cuda.synchronize() before it is read, or leave non_blocking out",
                    evidence=f"nothing between waits for the device before {excerpt(read, 40)}",
                )


def _copies_to_host(source: Source, call: ast.Call, method: ast.Attribute) -> bool:
    """Whether it copies from the device to the CPU without waiting."""
    into = method.attr == "copy_"
    if unpacks(call) or not is_constant(argument(call, "non_blocking", 1 if into else None), True):
        return False
    if into:
        copied = argument(call, "src", 0)
        return source.value(method.value).device == "cpu" and copied is not None and source.value(copied).on_device
    target = argument(call, "device", 0)
    return target is not None and _is_cpu(source, target) and source.value(method.value).device != "cpu"


def _is_cpu(source: Source, node: ast.expr) -> bool:
    """``"cpu"`` and ``torch.device("cpu")``, the second by name too."""
    if is_constant(node, "cpu"):
        return True
    value = source.value(node)
    return value.kind is ValueKind.DEVICE and value.device == "cpu"


def _read_at_once(source: Source, call: ast.Call) -> ast.expr | None:
    """``x.to("cpu", non_blocking=True).numpy()``."""
    node: ast.AST = call
    while isinstance(above := source.parent(node), ast.Attribute | ast.Call | ast.Subscript):
        if isinstance(above, ast.Attribute) and above.attr in _READS:
            return above
        if isinstance(above, ast.Call) and above.func is not node:
            return above if isinstance(above.func, ast.Name) and above.func.id in _FUNCTIONS else None
        node = above
    return None


def _read_later(source: Source, call: ast.Call, method: ast.Attribute) -> ast.expr | None:
    """The first read of the name that holds the copy, in the statements of its block, before anything may wait."""
    name = _name_of_copy(source, call, method)
    _, after = neighbours(source, call)
    for node in (node for statement in after for node in _in_order(source, statement)):
        if _reads(source, node, name):
            return node
        if isinstance(node, ast.Call) and _may_wait(source, node):
            return None
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            return None
    return None


def _name_of_copy(source: Source, call: ast.Call, method: ast.Attribute) -> str:
    """``y`` of ``y = x.to(...)`` and of ``y.copy_(...)``; empty where nothing is named."""
    statement = source.index.statement(call)
    holder: ast.expr = method.value if method.attr == "copy_" else call
    if isinstance(statement, ast.Assign) and statement.value is call and isinstance(statement.targets[0], ast.Name):
        holder = statement.targets[0]
    return holder.id if isinstance(holder, ast.Name) else ""


def _in_order(source: Source, statement: ast.stmt) -> Iterator[ast.expr]:
    nodes = source.walk(statement, ast.Name, ast.Call, ast.If)
    yield from sorted(nodes, key=lambda node: (position(node), not isinstance(node, ast.Call)))


def _reads(source: Source, node: ast.AST, name: str) -> bool:
    """Whether ``node`` reads what ``name`` holds: ``if y:``, ``y.numpy()``, ``print(y)``."""
    match node:
        case ast.If(test=ast.Name(id=tested)):
            return tested == name
        case ast.Call(func=ast.Attribute(value=owner, attr=attribute)) if attribute in _READS:
            return name in names_in(source, owner)
        case ast.Call(func=ast.Name(id=function) as func, args=values) if function in _FUNCTIONS:
            named = any(isinstance(value, ast.Name) and value.id == name for value in values)
            return named and source.qualified(func) == function
    return False


def _may_wait(source: Source, call: ast.Call) -> bool:
    """A call that waits, or one of code that the file does not show, which may."""
    if last_name(call.func) in _WAITS:
        return True
    name = source.qualified(call.func) or ""
    if name.startswith(("torch.", "math.", "time.")) or name in _KNOWN:
        return False
    owner = source.value(call.func.value).kind if isinstance(call.func, ast.Attribute) else ValueKind.UNKNOWN
    of_known = owner in (ValueKind.TENSOR, ValueKind.LIST, ValueKind.OPTIMIZER, ValueKind.NDARRAY)
    return not of_known and source.value(call.func).kind is not ValueKind.MODULE
