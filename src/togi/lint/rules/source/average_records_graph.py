"""The rule ``average-records-graph``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.call_sites import method_calls
from togi.lint.source.compiled import names_in
from togi.lint.source.gradients import gradient_switches
from togi.lint.source.inference import backward_calls
from togi.lint.source.model import Source
from togi.lint.source.surroundings import class_around, climb
from togi.lint.source.syntax import arguments_of, first_name, last_name
from togi.lint.source.value import excerpt

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
        for loop, parameters in _loops_over_parameters(source):
            if _may_be_frozen(source, loop):
                continue
            for node, average in _averages(source, loop, parameters):
                if not source.records_grad(node) or _is_decided_elsewhere(source, node):
                    continue
                yield source.finding(
                    self.id,
                    node,
                    f"{excerpt(average, 40)} gets a graph through all updates before: parameters require gradients",
                    "put the loop under `with torch.no_grad():`",
                    evidence=f"line {loop.lineno} goes through parameters, and autograd records there",
                )
                break


def _loops_over_parameters(source: Source) -> Iterator[tuple[ast.For, set[str]]]:
    """Loops over parameters, with the names that stand for parameters: all of those that are bound in step."""
    for loop in source.nodes(ast.For):
        in_step = _is_call_of(loop.iter, "zip")
        iterated = loop.iter.args if in_step else [loop.iter]
        targets = loop.target.elts if in_step and isinstance(loop.target, ast.Tuple) else [loop.target]
        if len(iterated) == len(targets):
            pairs = zip(iterated, targets, strict=True)
            parameters = {name for sequence, target in pairs for name in _parameter_names(sequence, target)}
            if parameters:
                yield loop, parameters


def _parameter_names(iterated: ast.expr, target: ast.expr) -> Iterator[str]:
    if _is_call_of(iterated, "named_parameters") and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    if _is_call_of(iterated, "parameters", "named_parameters") and isinstance(target, ast.Name):
        yield target.id


def _may_be_frozen(source: Source, loop: ast.For) -> bool:
    """Whether the file switches gradients off for some other model than the average, which comes first in the loop."""
    average = _model_of(loop.iter.args[0]) if isinstance(loop.iter, ast.Call) and _is_call_of(loop.iter, "zip") else ""
    return any(_owner(source, frozen) != average for frozen, _ in gradient_switches(source))


def _owner(source: Source, node: ast.expr) -> str:
    """``model`` of ``model`` and of ``p`` in a loop over ``model.parameters()``."""
    for loop in source.loops(node):
        if isinstance(loop, ast.For) and isinstance(node, ast.Name) and node.id in names_in(source, loop.target):
            return _model_of(loop.iter)
    return ast.unparse(node)


def _model_of(iterated: ast.expr) -> str:
    """``model`` of ``model.parameters()``, as it is written; anything else as a whole."""
    match iterated:
        case ast.Call(func=ast.Attribute(value=model, attr="parameters" | "named_parameters")):
            return ast.unparse(model)
    return ast.unparse(iterated)


def _is_call_of(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in names


def _averages(source: Source, loop: ast.For, parameters: set[str]) -> Iterator[tuple[ast.AST, ast.expr]]:
    """What takes a parameter in, and the average that keeps it."""
    for call, method in method_calls(source, _IN_PLACE, within=loop):
        average = _root(method.value)
        if any(attribute.attr in _OFF_GRAPH for attribute in source.walk(method.value, ast.Attribute)):
            continue
        other_parameters = parameters - {first_name(average)}
        if any(_carries(source, operand, other_parameters) for operand in arguments_of(call)):
            yield call, average
    for assign in source.walk(loop, ast.Assign):
        average = assign.targets[0]
        continued = isinstance(average, ast.Subscript) and _continues(source, assign.value, average)
        if continued and _carries(source, assign.value, parameters):
            yield assign, average


def _root(node: ast.expr) -> ast.expr:
    """``average`` of ``average.mul_(decay)``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _continues(source: Source, node: ast.expr, average: ast.Subscript) -> bool:
    """Whether ``node`` continues what ``average`` holds, with its graph."""
    text = ast.unparse(average)
    return any(
        ast.unparse(read) == text and not isinstance(source.parent(read), ast.Attribute)
        for read in source.walk(node, ast.Subscript)
    )


def _carries(source: Source, node: ast.expr, parameters: set[str]) -> bool:
    """Whether a parameter goes into ``node`` with its graph."""
    names = source.walk(node, ast.Name)
    return any(name.id in parameters and not _is_cut(source, name, node) for name in names)


def _is_cut(source: Source, name: ast.Name, within: ast.expr) -> bool:
    """``p.data``, ``(a * p).detach()``, ``p.shape``."""
    for above, child in climb(source, name):
        if isinstance(above, ast.Attribute) and above.attr in _OFF_GRAPH:
            return True
        if isinstance(above, ast.Call) and child in above.args and not isinstance(above.func, ast.Attribute):
            return True  # what a function of this or another file returns
        if child is within:
            return False
    return False


def _is_decided_elsewhere(source: Source, node: ast.AST) -> bool:
    owner = class_around(source, node)
    if owner is not None and (source.classes.is_module(owner) or source.classes.foreign_bases(owner)):
        return True
    function = source.function(node)
    return function is not None and any(backward_calls(source, function))
