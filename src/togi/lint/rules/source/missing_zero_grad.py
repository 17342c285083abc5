"""The rule ``missing-zero-grad``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.compiled import loop_names
from togi.lint.source.loaders import assigned, is_test
from togi.lint.source.syntax import first_name, last_name
from togi.lint.source.tree import Loop
from togi.lint.source.value import Kind

if TYPE_CHECKING:
    from togi.lint.source.model import Source

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
            if loop is None or _is_made_in(source, loop, optimizer) or _may_clear(source, region, optimizer, _DEPTH):
                continue
            name = ast.unparse(optimizer)
            yield source.finding(
                self.id,
                step,
                f"the loop in line {loop.lineno} never clears the gradients: backward() adds those of each step to "
                "those of all steps before",
                f"call {name}.zero_grad() after this line",
                evidence=f"nothing in {getattr(region, 'name', 'this script')} clears gradients, nor what it calls",
            )


def _steps(source: Source) -> Iterator[tuple[ast.Call, ast.expr]]:
    """``optimizer.step()`` and ``scaler.step(optimizer)``, with the optimizer."""
    for node in source.index.attributes.get("step", ()):
        call = source.parent(node)
        if isinstance(call, ast.Call) and call.func is node and not call.keywords:
            given = [node.value, *call.args] if not call.args or _is_scaler(node.value) else []
            for one in given[-1:]:
                if source.value(one).kind is Kind.OPTIMIZER and isinstance(one, ast.Name | ast.Attribute):
                    yield call, one


def _is_scaler(node: ast.expr) -> bool:
    return last_name(node).lower().endswith("scaler")


def _training_loop(source: Source, step: ast.Call) -> Loop | None:
    """The innermost loop around ``step`` with a ``backward()`` in it; None where its first pass is its last."""
    for loop in source.loops(step):
        if not isinstance(loop, ast.For | ast.AsyncFor | ast.While):
            continue
        calls = source.walk(loop, ast.Call)
        if any(isinstance(one.func, ast.Attribute) and one.func.attr == "backward" and not one.args for one in calls):
            return None if isinstance(loop.body[-1], ast.Break | ast.Return | ast.Raise) else loop
    return None


def _is_made_in(source: Source, loop: Loop, optimizer: ast.expr) -> bool:
    """Whether each pass of the loop starts with another optimizer, or one of several."""
    made = (one for one in assigned(source, optimizer) if loop in source.ancestors(one))
    return first_name(optimizer) in loop_names(source, loop) or any(True for _ in made)


def _may_clear(source: Source, region: ast.AST, optimizer: ast.expr, depth: int) -> bool:
    """Whether anything in ``region``, or in functions of the file that it calls, clears gradients or may do so."""
    if any(node.attr == "grad" and not _is_read(source, node) for node in source.walk(region, ast.Attribute)):
        return True
    name = ast.unparse(optimizer)
    return any(_call_may_clear(source, call, name, depth) for call in source.walk(region, ast.Call))


def _is_read(source: Source, grad: ast.Attribute) -> bool:
    """``p.grad.norm()``, and not ``p.grad = None`` or ``p.grad.zero_()``."""
    above = source.parent(grad)
    while isinstance(above, ast.Attribute) and above.attr in ("data", "detach_"):
        above = source.parent(above)
    changed = isinstance(above, ast.Attribute) and above.attr.endswith("_")
    return isinstance(grad.ctx, ast.Load) and not changed


def _call_may_clear(source: Source, call: ast.Call, optimizer: str, depth: int) -> bool:
    name = last_name(call.func)
    if name not in _HARMLESS and _CLEARS.search(name if isinstance(call.func, ast.Name) else ast.unparse(call.func)):
        return True
    qualified = source.qualified(call.func) or ""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if any(ast.unparse(one) == optimizer for one in given):
        return name not in _TAKES_OPTIMIZER and not qualified.startswith("torch.optim.")
    callee = source.value(call.func).definition
    if isinstance(callee, ast.FunctionDef) and callee not in source.ancestors(call):
        return depth == 0 or any(
            _call_may_clear(source, one, optimizer, depth - 1) for one in source.walk(callee, ast.Call)
        )
    return _is_inherited(source, call)


def _is_inherited(source: Source, call: ast.Call) -> bool:
    """``self.NAME(...)`` of a base that another file defines."""
    func = call.func
    if not (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"):
        return False
    function = source.function(call)
    owner = source.index.class_of(function) if function is not None else None
    held = owner is not None and func.attr in source.classes.assigned.get(owner, {})
    return owner is not None and bool(source.classes.foreign_bases(owner)) and not held
