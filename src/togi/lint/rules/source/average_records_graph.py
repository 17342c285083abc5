"""The rule ``average-records-graph``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.inference import backward_calls
from togi.lint.source.syntax import first_name
from togi.lint.source.value import excerpt

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_PARAMETERS = ("parameters", "named_parameters")
_IN_PLACE = frozenset("mul_ add_ sub_ lerp_ copy_ addcmul_ addcdiv_ div_".split())
_OFF_GRAPH = frozenset("data detach grad item clone_ numpy shape device dtype".split())


class AverageRecordsGraph(SourceRule):
    """A moving average of parameters (EMA, target network) is computed while autograd records.

    What it reports: a loop over the parameters of a model that adds them, as they are, to an average:
    ``average.mul_(decay).add_(p, alpha=1 - decay)``, ``shadow[name] = decay * shadow[name] + (1 - decay) * p``.

    Why it costs: parameters require gradients, so the average gets a graph that reaches back through all updates before
    it. Memory grows with every step, and the next backward pass through the average, if there is one, goes through all
    of it. Written into a parameter in place it raises.

    When it stays silent: under ``torch.no_grad()`` (around it, on the function, or around every call of it in the
    file), under decorators that the file does not show, ``p.data`` and ``p.detach()``. Methods of modules, and of
    classes whose base is in another file: the caller decides. Functions that call ``backward``. ``state_dict()``, whose
    tensors are detached. Files that switch gradients off for another model than the average.

    Example::

        for average, p in zip(ema.parameters(), model.parameters()):
            average.mul_(0.999).add_(p, alpha=0.001)

    Use instead::

        with torch.no_grad():
            for average, p in zip(ema.parameters(), model.parameters()):
                average.lerp_(p, 0.001)

    Source: https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html
    """

    id = "average-records-graph"

    def check(self, source: Source) -> Iterable[Finding]:
        if "parameters()" not in source.text:
            return
        for loop, names in _over_parameters(source):
            if _may_be_frozen(source, loop):
                continue
            for node, target in _averages(source, loop, names):
                if not source.records_grad(node) or _decided_elsewhere(source, node):
                    continue
                yield source.finding(
                    self.id,
                    node,
                    f"{excerpt(target, 40)} gets a graph through all updates before: parameters require gradients",
                    "put the loop under `with torch.no_grad():`",
                    evidence=f"line {loop.lineno} goes through parameters, and autograd records there",
                )
                break


def _over_parameters(source: Source) -> Iterator[tuple[ast.For, set[str]]]:
    """Loops over parameters, with the names that stand for parameters: all of those that are bound in step."""
    for loop in source.nodes(ast.For):
        iterated = loop.iter.args if _is_call_of(loop.iter, ("zip",)) else [loop.iter]
        targets = (
            loop.target.elts
            if _is_call_of(loop.iter, ("zip",)) and isinstance(loop.target, ast.Tuple)
            else [loop.target]
        )
        if len(iterated) == len(targets):
            found = {
                name for one, target in zip(iterated, targets, strict=True) for name in _parameters_of(one, target)
            }
            if found:
                yield loop, found


def _may_be_frozen(source: Source, loop: ast.For) -> bool:
    """Whether the file switches gradients off for some other model than the average, which comes first in the loop."""
    iterated = loop.iter.args if isinstance(loop.iter, ast.Call) and _is_call_of(loop.iter, ("zip",)) else []
    average = ast.unparse(iterated[0]).partition(".parameters")[0].partition(".named_parameters")[0] if iterated else ""
    return any(average != frozen for frozen in _frozen(source))


def _frozen(source: Source) -> Iterator[str]:
    """Whose gradients the file switches off: ``model.requires_grad_(False)``, ``p.requires_grad = False`` in a loop."""
    for call in source.nodes(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_" and call.args:
            yield _owner(source, call.func.value)
    for node in source.nodes(ast.Attribute):
        if node.attr == "requires_grad" and isinstance(node.ctx, ast.Store):
            yield _owner(source, node.value)


def _owner(source: Source, node: ast.expr) -> str:
    """``model`` of ``model`` and of ``p`` in a loop over ``model.parameters()``."""
    for loop in source.loops(node):
        if isinstance(loop, ast.For) and any(one.id == ast.unparse(node) for one in source.walk(loop.target, ast.Name)):
            return ast.unparse(loop.iter).partition(".parameters")[0].partition(".named_parameters")[0]
    return ast.unparse(node)


def _parameters_of(iterated: ast.expr, target: ast.expr) -> Iterator[str]:
    if _is_call_of(iterated, _PARAMETERS):
        pair = isinstance(target, ast.Tuple) and len(target.elts) == 2
        named = iterated.func.attr == "named_parameters"  # type: ignore[attr-defined]
        tensor = target.elts[1] if named and pair and isinstance(target, ast.Tuple) else target
        if isinstance(tensor, ast.Name):
            yield tensor.id


def _is_call_of(node: ast.expr, names: tuple[str, ...]) -> bool:
    func = node.func if isinstance(node, ast.Call) else None
    return (isinstance(func, ast.Attribute) and func.attr in names) or (isinstance(func, ast.Name) and func.id in names)


def _averages(source: Source, loop: ast.For, names: set[str]) -> Iterator[tuple[ast.AST, ast.expr]]:
    """What takes a parameter in, and the target that keeps it."""
    for call in source.walk(loop, ast.Call):
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in _IN_PLACE and not _off_graph(source, func.value):
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(_carries(source, one, names - {first_name(_root(func.value))}) for one in given):
                yield call, _root(func.value)
    for assign in source.walk(loop, ast.Assign):
        target = assign.targets[0]
        again = isinstance(target, ast.Subscript) and _reads(source, assign.value, ast.unparse(target))
        if again and _carries(source, assign.value, names):
            yield assign, target


def _root(node: ast.expr) -> ast.expr:
    """``average`` of ``average.mul_(decay)``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _off_graph(source: Source, node: ast.expr) -> bool:
    return any(one.attr in _OFF_GRAPH for one in source.walk(node, ast.Attribute))


def _reads(source: Source, node: ast.expr, text: str) -> bool:
    """Whether ``node`` continues what ``text`` holds, with its graph."""
    return any(
        ast.unparse(one) == text and not isinstance(source.parent(one), ast.Attribute)
        for one in source.walk(node, ast.Subscript)
    )


def _carries(source: Source, node: ast.expr, names: set[str]) -> bool:
    """Whether a parameter goes into ``node`` with its graph."""
    return any(one.id in names and not _is_cut(source, one, node) for one in source.walk(node, ast.Name))


def _is_cut(source: Source, name: ast.Name, within: ast.expr) -> bool:
    """``p.data``, ``(a * p).detach()``, ``p.shape``."""
    child: ast.AST = name
    for above in source.ancestors(name):
        if isinstance(above, ast.Attribute) and above.attr in _OFF_GRAPH:
            return True
        if isinstance(above, ast.Call) and child in above.args and not isinstance(above.func, ast.Attribute):
            return True  # what a function of this or another file returns
        if child is within:
            return False
        child = above
    return False


def _decided_elsewhere(source: Source, node: ast.AST) -> bool:
    function = source.function(node)
    if function is None:
        return False
    owner = source.index.class_of(function)
    if owner is not None and (source.classes.is_module(owner) or source.classes.foreign_bases(owner)):
        return True
    return any(True for _ in backward_calls(source, function))
