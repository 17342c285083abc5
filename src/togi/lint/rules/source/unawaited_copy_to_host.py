"""The rule ``unawaited-copy-to-host``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.syntax import argument, is_constant, last_name, position, unpacks
from togi.lint.source.value import Kind, excerpt

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_WAITS = frozenset("synchronize wait item tolist cpu elapsed_time query join barrier".split())
"""Calls that wait for the device, or for something that may."""
_READS = frozenset("numpy item tolist".split())
_FUNCTIONS = frozenset("print float int bool str repr list format".split())


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
        for call in source.nodes(ast.Call):
            if not _copies_to_host(source, call):
                continue
            read = _read_at_once(source, call) or _read_later(source, call)
            if read is not None:
                yield source.finding(
                    self.id,
                    call,
                    f"{excerpt(call, 50)} returns before the copy is done, and line {read.lineno} reads it: what it "
                    "reads may not have arrived",
                    "call torch.cuda.synchronize() before it is read, or leave non_blocking out",
                    evidence=f"nothing between waits for the device before {excerpt(read, 40)}",
                )


def _copies_to_host(source: Source, call: ast.Call) -> bool:
    func = call.func
    if not isinstance(func, ast.Attribute) or unpacks(call) or func.attr not in ("to", "copy_"):
        return False
    flag = argument(call, "non_blocking", 1 if func.attr == "copy_" else None)
    if not is_constant(flag, True):
        return False
    if func.attr == "copy_":
        into, given = source.value(func.value), argument(call, "src", 0)
        return into.device == "cpu" and given is not None and source.value(given).on_device
    target = argument(call, "device", 0)
    to_cpu = target is not None and (is_constant(target, "cpu") or _is_cpu_device(source, target))
    return to_cpu and source.value(func.value).device != "cpu"


def _is_cpu_device(source: Source, node: ast.expr) -> bool:
    """``torch.device("cpu")``, by name too."""
    value = source.value(node)
    return value.kind is Kind.DEVICE and value.device == "cpu"


def _read_at_once(source: Source, call: ast.Call) -> ast.expr | None:
    """``x.to("cpu", non_blocking=True).numpy()``."""
    node: ast.AST = call
    while isinstance(above := source.parent(node), ast.Attribute | ast.Call | ast.Subscript):
        if isinstance(above, ast.Attribute) and above.attr in _READS:
            return above
        if isinstance(above, ast.Call) and above.func is not node:
            return above if last_name(above.func) in _FUNCTIONS and isinstance(above.func, ast.Name) else None
        node = above
    return None


def _read_later(source: Source, call: ast.Call) -> ast.expr | None:
    """The first read of the name that holds the copy, in the statements of its block, before anything may wait."""
    statement = source.index.statement(call)
    above = source.parent(statement) if statement is not None else None
    name = _name_of(statement, call)
    blocks = (getattr(above, part, None) for part in ("body", "orelse", "finalbody"))
    block = next((one for one in blocks if isinstance(one, list) and statement in one), None)
    if block is None or not name:
        return None
    for later in block[block.index(statement) + 1 :]:
        for node in _in_order(source, later):
            if _reads(source, node, name):
                return node
            if isinstance(node, ast.Call) and _may_wait(source, node):
                return None
            if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
                return None
    return None


def _name_of(statement: ast.stmt | None, call: ast.Call) -> str:
    """``y`` of ``y = x.to(...)`` and of ``y.copy_(...)``."""
    if isinstance(statement, ast.Assign) and statement.value is call and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    func = call.func
    copies = isinstance(func, ast.Attribute) and func.attr == "copy_" and isinstance(func.value, ast.Name)
    return func.value.id if copies and isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) else ""


def _in_order(source: Source, statement: ast.stmt) -> Iterator[ast.expr]:
    nodes = source.walk(statement, ast.Name, ast.Call, ast.If)
    yield from sorted(nodes, key=lambda node: (position(node), not isinstance(node, ast.Call)))


def _reads(source: Source, node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == name
    if not isinstance(node, ast.Call):
        return False
    func = node.func
    if isinstance(func, ast.Attribute) and func.attr in _READS:
        return any(one.id == name for one in source.walk(func.value, ast.Name))
    if isinstance(func, ast.Name) and func.id in _FUNCTIONS and source.qualified(func) == func.id:
        return any(isinstance(one, ast.Name) and one.id == name for one in node.args)
    return False


def _may_wait(source: Source, call: ast.Call) -> bool:
    """A call that waits, or one of code that the file does not show, which may."""
    if last_name(call.func) in _WAITS:
        return True
    name = source.qualified(call.func) or ""
    known = name.startswith(("torch.", "math.", "time.")) or name in ("len", "range", "print", "isinstance", "list")
    owner = source.value(call.func.value).kind if isinstance(call.func, ast.Attribute) else Kind.UNKNOWN
    return (
        not known
        and owner not in (Kind.TENSOR, Kind.LIST, Kind.OPTIMIZER, Kind.NDARRAY)
        and (source.value(call.func).kind is not Kind.MODULE)
    )
