"""The rule ``loss-kept-with-graph``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Edit, Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.accumulation import accumulations
from togi.lint.source.hotness import STEPS, iterated_by
from togi.lint.source.inference import INFERENCE_NAMES, backward_calls
from togi.lint.source.syntax import first_name
from togi.lint.source.tree import LOOPS
from togi.lint.source.value import Hot, Kind, Value, evidence_of, excerpt, gives_batches, receiver

if TYPE_CHECKING:
    from togi.lint.source.model import Source


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

    Source: https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
    """

    id = "loss-kept-with-graph"

    def check(self, source: Source) -> Iterable[Finding]:
        reported: set[ast.AST] = set()
        for one in accumulations(source):
            node, target, kept = one.node, one.target, one.kept
            hot = source.hot(node) if node not in reported else None
            if hot is None:
                continue
            value = source.value(kept)
            if value.kind is not Kind.TENSOR or value.graph is not True or value.dtype == "int64":
                continue
            if (
                source.records_grad(node)
                and _outlives(source, node, target, hot)
                and _of_a_step(source, value, kept, hot)
            ):
                text = excerpt(kept, 40)
                message = f"{excerpt(target, 40)} keeps the graph of {text} of every step alive"
                fix = _fix(source, kept)
                reported.add(node)
                yield source.finding(
                    self.id, node, message, f"keep {receiver(kept)}.detach()", evidence=evidence_of(value, hot), fix=fix
                )


def _of_a_step(source: Source, value: Value, kept: ast.expr, hot: Hot) -> bool:
    """A loss, or any output where each turn is a step: not the partial sums of one computation."""
    if value.scalar or "loss" in ast.unparse(kept).lower():
        return True
    iterated = iterated_by(hot.loop) if isinstance(hot.loop, LOOPS) else None
    return iterated is not None and gives_batches(source.value(iterated))


def _outlives(source: Source, node: ast.AST, target: ast.expr, hot: Hot) -> bool:
    """Whether ``target`` lives longer than one step, and is not what gradients are computed of."""
    function = source.function(node)
    region = function or source.tree
    if _is_differentiated(source, region, target):
        return False
    owner = source.index.class_of(function) if function is not None else None
    name = getattr(function, "name", "")
    if owner is not None and name not in STEPS:
        module = source.classes.is_module(owner)
        if module or (source.classes.foreign_bases(owner) and not any(backward_calls(source, region))):
            return False
    if hot.loop is None:
        held = isinstance(target, ast.Attribute) and first_name(target) == "self"
        return (
            held and name in STEPS and name != "compute_loss" and not name.startswith(("val", "test", "pred", "eval"))
        )
    if _starts_anew(source, hot.loop, target):
        return False
    if any(backward_calls(source, hot.loop)):
        return True
    return not any(backward_calls(source, region)) and bool(INFERENCE_NAMES.search(name))


def _is_differentiated(source: Source, region: ast.AST, target: ast.expr) -> bool:
    """``backward`` on the target itself, or on what is computed from it."""
    text = ast.unparse(target)
    reached = {text, first_name(target)} if not isinstance(target, ast.Attribute) else {text}
    for statement in source.walk(region, ast.Assign):
        if len(statement.targets) == 1 and _mentions(source, statement.value, text):
            reached.add(ast.unparse(statement.targets[0]))
    return any(names & reached for _, names in backward_calls(source, region))


def _starts_anew(source: Source, loop: ast.AST, target: ast.expr) -> bool:
    """Whether ``target`` is bound anew in each turn of ``loop``."""
    root = first_name(target)
    text = ast.unparse(target)
    return any(
        _binds(source, node, root, text) and not _begins(source, loop, node, {root, text})
        for node in source.walk(loop, ast.Assign, ast.For, ast.Call)
    )


def _begins(source: Source, loop: ast.AST, node: ast.AST, names: set[str]) -> bool:
    """Whether ``node`` only runs while the target holds nothing: ``if total is None: total = loss``.

    Also in the first turn of the loop (``if step == 0``), and where reading the target failed.
    """
    child = node
    for above in source.ancestors(node):
        if above is loop:
            return False
        if isinstance(above, ast.ExceptHandler):
            return True
        if isinstance(above, ast.If) and child is not above.test and _asks_for(source, loop, above.test, names):
            return True
        child = above
    return False


def _asks_for(source: Source, loop: ast.AST, test: ast.expr, names: set[str]) -> bool:
    """``total is None``, ``not totals``, ``len(totals) == 0``, ``key in totals``, ``step > 0``."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return _asks_for(source, loop, inner, names)
        case ast.BoolOp(values=values):
            return any(_asks_for(source, loop, one, names) for one in values)
        case ast.Compare(left=_, ops=[ast.In() | ast.NotIn()], comparators=[where]):
            return ast.unparse(where) in names
        case ast.Compare(left=ast.Call(func=ast.Name(id="len"), args=[held])):
            return ast.unparse(held) in names
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()]):
            return ast.unparse(left) in names
        case ast.Compare(left=ast.Name(id=name), comparators=[ast.Constant()]):
            counted = source.walk(loop.target, ast.Name) if isinstance(loop, ast.For | ast.AsyncFor) else []
            return name in {one.id for one in counted}
        case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(name))]):
            return f"{ast.unparse(owner)}.{name}" in names
    return ast.unparse(test) in names


def _binds(source: Source, node: ast.AST, root: str, text: str) -> bool:
    if isinstance(node, ast.Assign):
        bound = any(ast.unparse(one) in (root, text) for one in node.targets)
        return bound and not (_mentions(source, node.value, text) or _mentions(source, node.value, root))
    if isinstance(node, ast.For):
        return any(one.id == root for one in source.walk(node.target, ast.Name))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("clear", "zero_") and ast.unparse(node.func.value) == text
    return False


def _mentions(source: Source, node: ast.AST, text: str) -> bool:
    return any(ast.unparse(one) == text for one in source.walk(node, ast.Name, ast.Attribute))


def _fix(source: Source, kept: ast.expr) -> Fix | None:
    if not isinstance(kept, ast.Name | ast.Attribute):
        return None
    place = source.place(kept)
    line, column = place.end_line or place.line, place.end_column or place.column
    edit = Edit(line=line, column=column, end_line=line, end_column=column, text=".detach()")
    return Fix(title="Keep it without its graph", edits=(edit,), safe=False)
