"""The rule ``zero-grad-to-zeros``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.call_sites import method_calls
from togi.lint.source.fixes import fix, replace_arguments
from togi.lint.source.model import Source
from togi.lint.source.surroundings import function_name
from togi.lint.source.syntax import argument, arguments_of, is_constant


class ZeroGradToZeros(SourceRule):
    """Gradients that are filled with zeros where they could be let go.

    What it reports: ``zero_grad(set_to_none=False)``, and ``p.grad.zero_()`` in a loop.

    Why it costs: every gradient is written once per step only to be added to, one kernel a parameter, and its memory
    stays taken through the forward pass, when activations need it. Set to None, the first backward writes it.

    When it stays silent: ``zero_grad()`` (None is its default since torch 2.0), ``zero_()`` of something that is not a
    gradient, a gradient that is zeroed in part (``p.grad[mask].zero_()``), one ``zero_()`` outside of a loop, and
    functions that are called ``zero_grad`` themselves.

    Example::

        optimizer.zero_grad(set_to_none=False)

        for p in model.parameters():
            p.grad.zero_()

    Use instead::

        optimizer.zero_grad()

        for p in model.parameters():
            p.grad = None

    Fix safety: the fix is not applied without being asked. An optimizer skips a parameter whose gradient is None, but
    still applies momentum and weight decay to one whose gradient is zero, and ``p.grad`` may be read elsewhere.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    """

    id = "zero-grad-to-zeros"

    def check(self, source: Source) -> Iterable[Finding]:
        for call, method in method_calls(source, ("zero_grad",)):
            if is_constant(argument(call, "set_to_none", 0), False):
                yield source.finding(
                    self.id,
                    call,
                    "gradients are filled with zeros each step, and keep their memory through the forward pass",
                    f"write {ast.unparse(method)}(), which lets them go",
                    fix=_fix(source, call),
                )
        for call, method in method_calls(source, ("zero_",)):
            gradient = _gradient(method.value)
            # A class may offer a zero_grad of its own.
            if gradient is not None and source.loops(call) and "zero_grad" not in function_name(source, call):
                yield source.finding(
                    self.id,
                    call,
                    f"{ast.unparse(gradient)} is filled with zeros in each pass of the loop, one kernel a parameter",
                    f"write {ast.unparse(gradient)} = None, or optimizer.zero_grad()",
                )


def _gradient(node: ast.expr) -> ast.Attribute | None:
    """``p.grad`` of ``p.grad``, ``p.grad.data`` and ``p.grad.detach_()``."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute) and node.attr in ("data", "detach_", "detach"):
        node = node.value
    return node if isinstance(node, ast.Attribute) and node.attr == "grad" else None


def _fix(source: Source, call: ast.Call) -> Fix | None:
    only_argument = len(arguments_of(call)) == 1
    return fix("Set gradients to None", replace_arguments(source, call, "()"), safe=False) if only_argument else None
