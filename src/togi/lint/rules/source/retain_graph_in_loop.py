"""The rule ``retain-graph-in-loop``."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.call_sites import method_calls
from togi.lint.source.compiled import loop_names, names_in
from togi.lint.source.identifiers import target_names
from togi.lint.source.loaders import assigned, is_test
from togi.lint.source.model import Source
from togi.lint.source.surroundings import StatementLoop, statement_loops
from togi.lint.source.syntax import argument, arguments_of, called_method, first_name, is_constant, last_name, unpacks
from togi.lint.source.value import ValueKind

_DIFFERENTIATE = frozenset(["backward", "manual_backward", "grad", "jacobian", "hessian", "vjp", "scale_loss"])
_DEPTH = 2


class RetainGraphInLoop(SourceRule):
    """A graph that is retained in each step though nothing goes through it again.

    What it reports: ``loss.backward(retain_graph=True)`` in a loop that computes the loss anew in each pass and holds
    no other backward pass.

    Why it costs: the activations of the step stay until the loss is overwritten, which is after the next forward pass:
    two steps' worth of memory at the peak. Where it was added against "Trying to backward through the graph a second
    time", a state is carried over from step to step, and each backward pass goes through all steps before it.

    When it stays silent: another ``backward`` or ``torch.autograd.grad`` in the loop, or in a function of the file that
    it calls; a loss that was computed outside of the loop, or from something that was (one row of ``logits`` after the
    other); ``retain_graph`` that is set from something; files of tests.

    Example::

        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward(retain_graph=True)
            optimizer.step()

    Use instead::

        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()

    and ``state = state.detach()`` for a state that the next step starts from.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html
    """

    id = "retain-graph-in-loop"

    def check(self, source: Source) -> Iterable[Finding]:
        if ".backward(" not in source.text or is_test(source.path):
            return
        for call, method in method_calls(source, ("backward",)):
            loop = next(statement_loops(source, call), None) if _retains(call) else None
            if loop is None or not _is_computed_in(source, loop, method.value) or _is_repeated(source, loop, call):
                continue
            if _goes_out_of(source, loop, method.value):
                continue
            yield source.finding(
                self.id,
                call,
                f"the activations of {ast.unparse(method.value)} are kept for another backward pass, and the loop "
                "holds no other",
                "leave retain_graph out; if PyTorch then says that a graph is gone through a second time, detach the "
                "state that is carried over from the step before",
                evidence=f"the loop in line {loop.lineno} holds one backward pass",
            )


def _retains(call: ast.Call) -> bool:
    return not unpacks(call) and is_constant(argument(call, "retain_graph", 1), True)


def _is_computed_in(source: Source, loop: StatementLoop, loss: ast.expr) -> bool:
    """Whether each pass of the loop computes the loss: ``loss``, ``loss.mean()``, ``scaler.scale(loss)``."""
    root = first_name(loss)
    names = {root} if root else names_in(source, loss)
    targets = target_names(source, loop)
    return bool(names & (loop_names(source, loop) - targets)) and not names & targets


def _goes_out_of(source: Source, loop: StatementLoop, loss: ast.expr) -> bool:
    """Whether the backward pass goes on into a graph that was built before the loop, which each pass needs again."""
    bound: dict[str, list[ast.Name]] = defaultdict(list)
    for name in source.walk(loop, ast.Name):
        if isinstance(name.ctx, ast.Store):
            bound[name.id].append(name)
    waiting: list[ast.AST] = [loss]
    followed: set[str] = set()
    while waiting:
        for read in source.walk(waiting.pop(), ast.Name):
            if read.id not in bound and _has_graph(source, read):
                return True
            if read.id not in followed:
                followed.add(read.id)
                waiting += filter(None, (_origin(source, name) for name in bound.get(read.id, ())))
    return False


def _origin(source: Source, name: ast.Name) -> ast.AST | None:
    """What a name is bound to, or what holds that."""
    statement = source.index.statement(name)
    if isinstance(statement, ast.For | ast.AsyncFor):
        return statement.iter
    return statement if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign) else None


def _has_graph(source: Source, read: ast.Name) -> bool:
    """Whether a tensor was computed of others that are differentiated; leaves are differentiated without a graph."""
    value = source.value(read)
    if value.kind is not ValueKind.TENSOR or not value.graph:
        return False
    made = next((step for step in value.history() if not isinstance(step.evidence.origin, ast.Name)), value)
    return made.call is None and made.evidence.origin is not None and not _is_made_leaf(source, read)


def _is_made_leaf(source: Source, read: ast.Name) -> bool:
    """``x.requires_grad_()``, ``x = images.to(device).requires_grad_()``."""
    switched = (ast.unparse(method.value) for _, method in method_calls(source, ("requires_grad_",)))
    return read.id in switched or any(called_method(made) == "requires_grad_" for made in assigned(source, read))


def _is_repeated(source: Source, loop: StatementLoop, retaining: ast.Call) -> bool:
    """Whether something else in the loop goes through the graph."""
    return any(_differentiates(source, call, _DEPTH) for call in source.walk(loop, ast.Call) if call is not retaining)


def _differentiates(source: Source, call: ast.Call, depth: int) -> bool:
    if last_name(call.func) in _DIFFERENTIATE or _is_given_closure(source, call):
        return True
    callee = source.value(call.func).definition
    if not isinstance(callee, ast.FunctionDef) or callee in source.ancestors(call):
        return False
    return depth == 0 or any(_differentiates(source, inner, depth - 1) for inner in source.walk(callee, ast.Call))


def _is_given_closure(source: Source, call: ast.Call) -> bool:
    """``optimizer.step(closure)``; not ``scaler.step(optimizer)``."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "step" else None
    return owner is not None and bool(arguments_of(call)) and source.value(owner).kind is ValueKind.OPTIMIZER
