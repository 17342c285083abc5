"""The rule ``missing-zero-grad``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.call_sites import method_calls
from togi.lint.source.compiled import loop_names
from togi.lint.source.gradients import training_loop
from togi.lint.source.identifiers import is_own
from togi.lint.source.loaders import assigned, is_test
from togi.lint.source.model import Source
from togi.lint.source.surroundings import StatementLoop, class_around
from togi.lint.source.syntax import arguments_of, first_name, last_name
from togi.lint.source.value import ValueKind

_CLEARS = re.compile(r"grad|zero|clear|reset|(^|_)(on|fire|notify|trigger|emit)($|_)|callback|hook|event|closure", re.I)
"""Calls that clear gradients, or may do so unseen: ``on_step_end``, ``clear_gradients``, ``callbacks.run``."""
_HARMLESS = frozenset(
    """GradScaler clip_grad_norm_ clip_grad_norm clip_grad_value_ get_total_norm no_grad enable_grad set_grad_enabled
    requires_grad_ is_grad_enabled grad zeros zeros_like new_zeros zero_ reset_peak_memory_stats nonzero
    count_nonzero""".split()
)
_TAKES_OPTIMIZER = frozenset("step unscale_ state_dict append print len save isinstance".split())
"""Calls that may be given the optimizer and leave the gradients alone (``scaler.step(optimizer)``)."""
_DEPTH = 3


class MissingZeroGrad(SourceRule):
    """A training loop that never clears the gradients.

    What it reports: a loop that calls ``backward()`` and the ``step()`` of an optimizer made outside of it, in a
    function where nothing clears gradients: no ``zero_grad()``, no ``p.grad = None``, no ``p.grad.zero_()``.

    Why it costs: ``backward()`` adds to the gradients that are there, so each step follows the sum over all steps
    before it. The model trains badly or diverges, and nothing is raised.

    When it stays silent: gradients are cleared anywhere in the function or in what it calls in this file; the
    optimizer, or a hook, callback or function named after gradients, is handed to code that the file does not show;
    ``step(closure)``; an optimizer that each pass of the loop makes anew; files of tests.

    Example::

        for images, labels in loader:
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()

    Use instead::

        for images, labels in loader:
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Source: https://docs.pytorch.org/docs/stable/optim.html#taking-an-optimization-step
    """

    id = "missing-zero-grad"

    def check(self, source: Source) -> Iterable[Finding]:
        if ".backward()" not in source.text or is_test(source.path):
            return
        for step, optimizer in _steps(source):
            loop = _training_loop(source, step)
            region = source.function(step) or source.tree
            if loop is None or _is_made_in(source, loop, optimizer) or _may_clear(source, region, optimizer):
                continue
            yield source.finding(
                self.id,
                step,
                f"the loop in line {loop.lineno} never clears the gradients: backward() adds those of each step to "
                "those of all steps before",
                f"call {ast.unparse(optimizer)}.zero_grad() after this line",
                evidence=f"nothing in {getattr(region, 'name', 'this script')} clears gradients, nor what it calls",
            )


def _steps(source: Source) -> Iterator[tuple[ast.Call, ast.expr]]:
    """``optimizer.step()`` and ``scaler.step(optimizer)``, with the optimizer."""
    for call, method in method_calls(source, ("step",)):
        scaled = bool(call.args) and last_name(method.value).lower().endswith("scaler")
        if call.keywords or (call.args and not scaled):
            continue
        optimizer = call.args[-1] if scaled else method.value
        if isinstance(optimizer, ast.Name | ast.Attribute) and source.value(optimizer).kind is ValueKind.OPTIMIZER:
            yield call, optimizer


def _training_loop(source: Source, step: ast.Call) -> StatementLoop | None:
    """The innermost loop around ``step`` with a ``backward()`` in it; None where its first pass is its last."""
    loop, calls = training_loop(source, step) or (None, [])
    if loop is None or all(call.args for call in calls):
        return None
    return None if isinstance(loop.body[-1], ast.Break | ast.Return | ast.Raise) else loop


def _is_made_in(source: Source, loop: StatementLoop, optimizer: ast.expr) -> bool:
    """Whether each pass of the loop starts with another optimizer, or one of several."""
    if first_name(optimizer) in loop_names(source, loop):
        return True
    return any(loop in source.ancestors(value) for value in assigned(source, optimizer))


def _may_clear(source: Source, region: ast.AST, optimizer: ast.expr) -> bool:
    """Whether anything in ``region``, or in functions of the file that it calls, clears gradients or may do so."""
    if any(node.attr == "grad" and not _is_only_read(source, node) for node in source.walk(region, ast.Attribute)):
        return True
    name = ast.unparse(optimizer)
    return any(_call_may_clear(source, call, name, _DEPTH) for call in source.walk(region, ast.Call))


def _is_only_read(source: Source, grad: ast.Attribute) -> bool:
    """``p.grad.norm()``, and not ``p.grad = None`` or ``p.grad.zero_()``."""
    above = source.parent(grad)
    while isinstance(above, ast.Attribute) and above.attr in ("data", "detach_"):
        above = source.parent(above)
    changed = isinstance(above, ast.Attribute) and above.attr.endswith("_")
    return isinstance(grad.ctx, ast.Load) and not changed


def _call_may_clear(source: Source, call: ast.Call, optimizer: str, depth: int) -> bool:
    name = last_name(call.func)
    path = name if isinstance(call.func, ast.Name) else ast.unparse(call.func)
    if name not in _HARMLESS and _CLEARS.search(path):
        return True
    if any(ast.unparse(value) == optimizer for value in arguments_of(call)):
        of_torch = (source.qualified(call.func) or "").startswith("torch.optim.")
        return name not in _TAKES_OPTIMIZER and not of_torch
    callee = source.value(call.func).definition
    if isinstance(callee, ast.FunctionDef) and callee not in source.ancestors(call):
        inner_calls = source.walk(callee, ast.Call)
        return depth == 0 or any(_call_may_clear(source, inner, optimizer, depth - 1) for inner in inner_calls)
    return _is_inherited(source, call)


def _is_inherited(source: Source, call: ast.Call) -> bool:
    """``self.NAME(...)`` of a base that another file defines."""
    owner = class_around(source, call)
    if owner is None or not is_own(call.func) or not source.classes.foreign_bases(owner):
        return False
    return last_name(call.func) not in source.classes.assigned.get(owner, {})
