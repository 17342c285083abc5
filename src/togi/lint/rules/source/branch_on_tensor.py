"""The rule ``branch-on-tensor``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.call_sites import method_calls
from togi.lint.source.model import Source
from togi.lint.source.syntax import last_name
from togi.lint.source.value import Value, ValueKind, element_of, evidence_of, excerpt

_COMPARISONS = ("torch.equal", "torch.allclose", "torch.is_nonzero")
_METHODS = ("equal", "allclose", "is_nonzero")
_CHOICES = ("any", "all", "max", "min", "sorted")
_STATEMENTS: dict[type[ast.AST], str] = {ast.If: "if", ast.While: "while", ast.IfExp: "if", ast.Assert: "assert"}
_FOR = "for over"


class _Test(NamedTuple):
    """An expression by which Python decides."""

    place: ast.AST
    """What must run often for the test to matter."""
    tested: ast.expr
    how: str
    """The construct that tests: ``if``, ``max()``."""


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
        reported: set[ast.AST] = set()
        for place, tested, how in _tests(source):
            if tested in reported or _is_of_python(tested):
                continue
            hot = source.hot(place)
            if hot is None:
                continue
            value = source.value(tested)
            if _is_device_tensor(value) and reported.isdisjoint(source.ancestors(tested)):
                reported.add(tested)
                message = f"{how} {excerpt(tested, 40)} waits for the device to know which way to go"
                if how == _FOR:
                    message = f"going through {excerpt(tested, 40)} in Python launches kernels for every element"
                yield source.finding(self.id, tested, message, _remedy(how), evidence=evidence_of(value, hot))


def _is_of_python(node: ast.expr) -> bool:
    """A truth value that Python has without asking a tensor: most tests are such ones, and need no interpretation."""
    if isinstance(node, ast.Compare):
        return any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("isinstance", "hasattr", "len", "callable", "issubclass")
    return isinstance(node, ast.Constant | ast.JoinedStr)


def _is_device_tensor(value: Value) -> bool:
    return value.on_device and value.certain


def _tests(source: Source) -> Iterator[_Test]:
    for node in source.nodes(ast.If, ast.While, ast.IfExp, ast.Assert):
        place = node if isinstance(node, ast.If | ast.Assert) else node.test
        yield from (_Test(place, operand, _STATEMENTS[type(node)]) for operand in _operands(node.test))
    for node in source.nodes(ast.comprehension):
        yield from (_Test(operand, operand, "if") for test in node.ifs for operand in _operands(test))
        yield from _iteration(node.iter)
    for node in source.nodes(ast.BoolOp):
        how = "and" if isinstance(node.op, ast.And) else "or"
        yield from (_Test(operand, operand, how) for operand in node.values[:-1])
    for node in source.nodes(ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            yield _Test(node, node.operand, "not")
    for node in source.nodes(ast.For, ast.AsyncFor):
        yield from _iteration(node.iter)
    yield from _memberships(source)
    yield from _choices(source)
    yield from _comparisons(source)


def _operands(test: ast.expr) -> Iterator[ast.expr]:
    """The expressions whose truth decides ``test``."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _operands(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _operands(test.operand)
    else:
        yield test


def _iteration(iterated: ast.expr) -> Iterator[_Test]:
    tested = iterated
    if isinstance(tested, ast.Call) and isinstance(tested.func, ast.Name) and tested.func.id == "enumerate":
        tested = tested.args[0] if tested.args else tested
    per_layer = last_name(tested).endswith("attentions")  # a tuple of one tensor per layer, whatever is annotated
    if not per_layer:
        yield _Test(iterated, tested, _FOR)


def _memberships(source: Source) -> Iterator[_Test]:
    for node in source.nodes(ast.Compare):
        sides = [node.left, *node.comparators]
        for op, member, container in zip(node.ops, sides, sides[1:], strict=False):
            if isinstance(op, ast.In | ast.NotIn):
                yield _Test(node, container, "in")
                if source.value(container).kind in (ValueKind.LIST, ValueKind.TUPLE):
                    yield _Test(node, member, "in")


def _choices(source: Source) -> Iterator[_Test]:
    """``max(tensor)``, ``any(x > 0 for x in tensors)``."""
    for call in source.nodes(ast.Call):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name not in _CHOICES or not call.args or source.qualified(call.func) != name or source.hot(call) is None:
            continue
        candidates = call.args[0]
        value = source.value(candidates)
        if len(call.args) == 1 and value.kind in (ValueKind.LIST, ValueKind.TUPLE):
            if isinstance(candidates, ast.GeneratorExp | ast.ListComp) and _is_device_tensor(element_of(value)):
                yield _Test(call, candidates.elt, f"{name}()")
        elif value.kind is ValueKind.TENSOR:
            yield _Test(call, candidates, f"{name}()")


def _comparisons(source: Source) -> Iterator[_Test]:
    """``torch.equal(a, b)``, ``a.equal(b)``."""
    for call, method in method_calls(source, _METHODS):
        of_torch = source.qualified(method) in _COMPARISONS and bool(call.args)
        yield _Test(call, call.args[0] if of_torch else method.value, method.attr)


def _remedy(how: str) -> str:
    if how == "assert":
        return "use torch._assert_async, or check on the CPU before the data is moved, or only when debugging"
    if how == _FOR:
        return "work on the whole tensor at once (broadcasting, torch.vmap, index operations)"
    if how.endswith("()"):
        return f"use torch.{how.replace('sorted', 'sort')}, torch.maximum or torch.minimum, which stay on the device"
    if how == "while":
        return "run a fixed number of turns, masked with torch.where, and test only every so many turns"
    return "compute both sides and choose with torch.where, or decide by something Python knows (a size, a flag)"
