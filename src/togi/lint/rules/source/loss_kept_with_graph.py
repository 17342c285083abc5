"""The rule ``loss-kept-with-graph``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.accumulation import accumulations
from togi.lint.source.fixes import append, fix
from togi.lint.source.hotness import STEPS
from togi.lint.source.identifiers import mentions, target_names
from togi.lint.source.inference import INFERENCE_NAMES, backward_calls
from togi.lint.source.model import Source
from togi.lint.source.surroundings import class_around, climb, function_name, over_batches
from togi.lint.source.syntax import first_name
from togi.lint.source.value import Hot, Value, ValueKind, evidence_of, excerpt, receiver

_WITHOUT_TRAINING = ("val", "test", "pred", "eval")


class LossKeptWithGraph(SourceRule):
    """A loss is kept across steps together with its graph.

    What it reports: ``total += loss``, ``total = 0.9 * total + loss``, ``losses.append(loss)``, ``losses[step] =
    loss``, ``meter.update(loss)`` of a meter that adds up what it is given, in a training loop, an evaluation loop or a
    training step. Autograd's graph hangs on the loss, and what it is added to lives longer than the step.

    Why it costs: every step's graph stays reachable from the sum, so memory grows with each step until it is full. What
    ``backward`` frees are the saved tensors; the nodes, the inputs' gradients and everything not yet backwarded remain.

    When it stays silent: ``loss.item()``, ``loss.detach()``, ``float(loss)``, sums on which ``backward`` is called,
    sums that start anew in each step, code under ``no_grad``, ``forward``.

    Example::

        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            total += loss

    Use instead::

        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            total += loss.detach()

    Fix safety: the fix is not applied without being asked. If something calls ``backward`` on the sum out of sight, it
    needs the graph.

    Source: https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
    """

    id = "loss-kept-with-graph"

    def check(self, source: Source) -> Iterable[Finding]:
        reported: set[ast.AST] = set()
        for accumulation in accumulations(source):
            node, target, loss = accumulation.node, accumulation.target, accumulation.kept
            hot = source.hot(node) if node not in reported else None
            if hot is None:
                continue
            value = source.value(loss)
            if value.kind is not ValueKind.TENSOR or value.graph is not True or value.dtype == "int64":
                continue
            kept_for_long = source.records_grad(node) and _outlives_step(source, node, target, hot)
            if kept_for_long and _is_of_a_step(source, value, loss, hot):
                reported.add(node)
                yield source.finding(
                    self.id,
                    node,
                    f"{excerpt(target, 40)} keeps the graph of {excerpt(loss, 40)} of every step alive",
                    f"keep {receiver(loss)}.detach()",
                    evidence=evidence_of(value, hot),
                    fix=_fix(source, loss),
                )


def _fix(source: Source, loss: ast.expr) -> Fix | None:
    if not isinstance(loss, ast.Name | ast.Attribute):
        return None
    return fix("Keep it without its graph", append(source, loss, ".detach()"), safe=False)


def _is_of_a_step(source: Source, value: Value, loss: ast.expr, hot: Hot) -> bool:
    """A loss, or any output where each turn is a step: not the partial sums of one computation."""
    return value.scalar or mentions(source, loss, ("loss",)) or over_batches(source, hot.loop)


def _outlives_step(source: Source, node: ast.AST, target: ast.expr, hot: Hot) -> bool:
    """Whether ``target`` lives longer than one step, and is not what gradients are computed of."""
    region = source.function(node) or source.tree
    if _is_differentiated(source, region, target):
        return False
    trains = any(backward_calls(source, region))
    owner, name = class_around(source, node), function_name(source, node)
    if owner is not None and name not in STEPS and _is_called_by_others(source, owner, trains):
        return False
    if hot.loop is None:
        on_self = isinstance(target, ast.Attribute) and first_name(target) == "self"
        return on_self and name in STEPS and name != "compute_loss" and not name.startswith(_WITHOUT_TRAINING)
    if _starts_anew(source, hot.loop, target):
        return False
    return any(backward_calls(source, hot.loop)) or (not trains and bool(INFERENCE_NAMES.search(name)))


def _is_called_by_others(source: Source, owner: ast.ClassDef, trains: bool) -> bool:
    """Whether the callers of its methods, which the file need not show, decide what lives how long."""
    return source.classes.is_module(owner) or (bool(source.classes.foreign_bases(owner)) and not trains)


def _is_differentiated(source: Source, region: ast.AST, target: ast.expr) -> bool:
    """``backward`` on the target itself, or on what is computed from it."""
    text = ast.unparse(target)
    reached = {text, first_name(target)} if not isinstance(target, ast.Attribute) else {text}
    for assign in source.walk(region, ast.Assign):
        if len(assign.targets) == 1 and _reads(source, assign.value, text):
            reached.add(ast.unparse(assign.targets[0]))
    return any(names & reached for _, names in backward_calls(source, region))


def _starts_anew(source: Source, loop: ast.AST, target: ast.expr) -> bool:
    """Whether ``target`` is bound anew in each turn of ``loop``."""
    root, text = first_name(target), ast.unparse(target)
    return any(
        _binds(source, node, root, text) and not _only_begins(source, loop, node, {root, text})
        for node in source.walk(loop, ast.Assign, ast.For, ast.Call)
    )


def _binds(source: Source, node: ast.AST, root: str, text: str) -> bool:
    match node:
        case ast.Assign(targets=targets, value=value):
            bound = any(ast.unparse(target) in (root, text) for target in targets)
            return bound and not (_reads(source, value, text) or _reads(source, value, root))
        case ast.For():
            return root in target_names(source, node)
        case ast.Call(func=ast.Attribute(value=owner, attr="clear" | "zero_")):
            return ast.unparse(owner) == text
    return False


def _reads(source: Source, node: ast.AST, text: str) -> bool:
    return any(ast.unparse(name) == text for name in source.walk(node, ast.Name, ast.Attribute))


def _only_begins(source: Source, loop: ast.AST, node: ast.AST, names: set[str]) -> bool:
    """Whether ``node`` only runs while the target holds nothing: ``if total is None: total = loss``.

    Also in the first turn of the loop (``if step == 0``), and where reading the target failed.
    """
    for above, child in climb(source, node):
        if above is loop:
            return False
        if isinstance(above, ast.ExceptHandler):
            return True
        if isinstance(above, ast.If) and child is not above.test and _asks_for(source, loop, above.test, names):
            return True
    return False


def _asks_for(source: Source, loop: ast.AST, test: ast.expr, names: set[str]) -> bool:
    """``total is None``, ``not totals``, ``len(totals) == 0``, ``key in totals``, ``step > 0``."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return _asks_for(source, loop, inner, names)
        case ast.BoolOp(values=values):
            return any(_asks_for(source, loop, value, names) for value in values)
        case (
            ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[container])
            | ast.Compare(left=ast.Call(func=ast.Name(id="len"), args=[container]))
            | ast.Compare(left=container, ops=[ast.Is() | ast.IsNot()])
        ):
            return ast.unparse(container) in names
        case ast.Compare(left=ast.Name(id=name), comparators=[ast.Constant()]):
            return name in target_names(source, loop)
        case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(name))]):
            return f"{ast.unparse(owner)}.{name}" in names
    return ast.unparse(test) in names
