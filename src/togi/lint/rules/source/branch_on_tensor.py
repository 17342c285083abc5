"""The rule ``branch-on-tensor``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.value import Kind, Value, element_of, evidence_of, excerpt

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_COMPARISONS = ("torch.equal", "torch.allclose", "torch.is_nonzero")
_METHODS = ("equal", "allclose", "is_nonzero")
_CHOICES = ("any", "all", "max", "min", "sorted")


class BranchOnTensor(SourceRule):
    """Python decides by a device tensor in hot code.

    What it reports: ``if``, ``while``, ``assert``, ``and``, ``or``, ``not``, the conditional expression, ``in``,
    ``torch.equal``, ``torch.allclose`` and Python's ``any``, ``all``, ``max``, ``min`` on a tensor that may lie on an
    accelerator. Also a ``for`` that goes through one element by element. Both in ``forward``, in a training step, or in
    a loop over batches.

    Why it costs: to know which way to go, Python waits for the device and reads one bit. Going through a tensor in
    Python launches kernels for every element. ``torch.compile`` breaks the graph here, ``torch.export`` fails.

    When it stays silent: tests of shapes, sizes, dtypes, devices, ``is None``, ``isinstance`` and Python numbers,
    tensors on the CPU, code that only runs while a model is scripted or exported, and what is not certainly a tensor.

    Example::

        def forward(self, x):
            if x.max() > 1:
                x = x / 255
            return self.layers(x)

    Use instead::

        def forward(self, x):
            x = torch.where(x.max() > 1, x / 255, x)
            return self.layers(x)

    Source: https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/torch.compiler_faq.html
    """

    id = "branch-on-tensor"

    def check(self, source: Source) -> Iterable[Finding]:
        reported: set[int] = set()
        for node, tested, what in _tests(source):
            if id(tested) in reported or _is_of_python(tested):
                continue
            hot = source.hot(node)
            if hot is None:
                continue
            value = _device_tensor(source.value(tested))
            if value is not None and not _within(source, tested, reported):
                reported.add(id(tested))
                message = f"{what} {excerpt(tested, 40)} waits for the device to know which way to go"
                if what == "for over":
                    message = f"going through {excerpt(tested, 40)} in Python launches kernels for every element"
                yield source.finding(self.id, tested, message, _remedy(what), evidence=evidence_of(value, hot))


def _is_of_python(node: ast.expr) -> bool:
    """A truth value that Python has without asking a tensor: most tests are such ones, and need no interpretation."""
    if isinstance(node, ast.Compare):
        return any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("isinstance", "hasattr", "len", "callable", "issubclass")
    return isinstance(node, ast.Constant | ast.JoinedStr)


def _device_tensor(value: Value) -> Value | None:
    return value if value.on_device and value.certain else None


def _within(source: Source, node: ast.AST, reported: set[int]) -> bool:
    return any(id(above) in reported for above in source.ancestors(node))


def _tests(source: Source) -> Iterator[tuple[ast.AST, ast.expr, str]]:
    """What is tested: the node whose heat counts, the tested expression, and how to call the test."""
    for node in source.nodes(ast.If, ast.While, ast.IfExp, ast.Assert):
        for one in _operands(node.test):
            yield node if isinstance(node, ast.If | ast.Assert) else node.test, one, _WHAT[type(node)]
    for node in source.nodes(ast.comprehension):
        for test in node.ifs:
            for one in _operands(test):
                yield one, one, "if"
        if not _is_per_layer(node.iter):
            yield node.iter, _iterated(node.iter), "for over"
    for node in source.nodes(ast.BoolOp):
        for one in node.values[:-1]:
            yield one, one, "and" if isinstance(node.op, ast.And) else "or"
    for node in source.nodes(ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            yield node, node.operand, "not"
    for node in source.nodes(ast.For, ast.AsyncFor):
        if not _is_per_layer(node.iter):
            yield node.iter, _iterated(node.iter), "for over"
    yield from _memberships(source)
    yield from _calls(source)


_WHAT: dict[type[ast.AST], str] = {ast.If: "if", ast.While: "while", ast.IfExp: "if", ast.Assert: "assert"}


def _operands(test: ast.expr) -> Iterator[ast.expr]:
    """The expressions whose truth decides ``test``."""
    if isinstance(test, ast.BoolOp):
        for one in test.values:
            yield from _operands(one)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _operands(test.operand)
    else:
        yield test


def _is_per_layer(node: ast.expr) -> bool:
    """``cross_attentions``: a tuple with one tensor per layer, whatever its annotation says."""
    node = _iterated(node)
    return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).endswith("attentions")


def _iterated(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "enumerate" and node.args:
        return node.args[0]
    return node


def _memberships(source: Source) -> Iterator[tuple[ast.AST, ast.expr, str]]:
    for node in source.nodes(ast.Compare):
        sides = [node.left, *node.comparators]
        for op, one, other in zip(node.ops, sides, sides[1:], strict=False):
            if isinstance(op, ast.In | ast.NotIn):
                yield node, other, "in"
                if source.value(other).kind in (Kind.LIST, Kind.TUPLE):
                    yield node, one, "in"


def _calls(source: Source) -> Iterator[tuple[ast.AST, ast.expr, str]]:
    for call in source.nodes(ast.Call):
        func = call.func
        if isinstance(func, ast.Name) and func.id in _CHOICES and call.args and source.qualified(func) == func.id:
            yield from _choice(source, call, func.id)
        elif isinstance(func, ast.Attribute) and func.attr in _METHODS:
            if source.qualified(func) in _COMPARISONS and call.args:
                yield call, call.args[0], func.attr
            else:
                yield call, func.value, func.attr


def _choice(source: Source, call: ast.Call, name: str) -> Iterator[tuple[ast.AST, ast.expr, str]]:
    if source.hot(call) is None:
        return
    first = source.value(call.args[0])
    if len(call.args) == 1 and first.kind in (Kind.LIST, Kind.TUPLE):
        if _device_tensor(element_of(first)) and isinstance(call.args[0], ast.GeneratorExp | ast.ListComp):
            yield call, call.args[0].elt, f"{name}()"
    elif first.kind is Kind.TENSOR:
        yield call, call.args[0], f"{name}()"


def _remedy(what: str) -> str:
    if what == "assert":
        return "use torch._assert_async, or check on the CPU before the data is moved, or only when debugging"
    if what == "for over":
        return "work on the whole tensor at once (broadcasting, torch.vmap, index operations)"
    if what in ("max()", "min()", "sorted()", "any()", "all()"):
        return f"use torch.{what.replace('sorted', 'sort')}, torch.maximum or torch.minimum, which stay on the device"
    if what == "while":
        return "run a fixed number of turns, masked with torch.where, and test only every so many turns"
    return "compute both sides and choose with torch.where, or decide by something Python knows (a size, a flag)"
