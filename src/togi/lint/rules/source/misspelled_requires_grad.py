"""The rule ``misspelled-requires-grad``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.fixes import fix, respell
from togi.lint.source.model import Source

_WRONG = ("require_grad", "requires_grads", "require_grads", "requires_gradient", "requiers_grad", "requires_gard")


class MisspelledRequiresGrad(SourceRule):
    """``require_grad`` set in place of ``requires_grad``.

    What it reports: an assignment to an attribute ``require_grad`` (``requires_grads``, ...).

    Why it costs: it makes a new attribute and raises nothing, so layers that were meant to be frozen go on recording
    activations, computing gradients and being trained.

    When it stays silent: classes of this file define an attribute of that name; names that are not attributes; files
    that show no trace of PyTorch.

    Example::

        for p in backbone.parameters():
            p.require_grad = False

    Use instead::

        backbone.requires_grad_(False)

    Fix safety: the fix is not applied without being asked. It changes which parameters are trained.

    Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#setting-requires-grad
    """

    id = "misspelled-requires-grad"

    def check(self, source: Source) -> Iterable[Finding]:
        if not any(word in source.text for word in ("torch", "requires_grad", "parameters()")):
            return
        for node in source.nodes(ast.Attribute):
            if node.attr in _WRONG and isinstance(node.ctx, ast.Store) and not _is_of_own_class(node):
                yield source.finding(
                    self.id,
                    node,
                    f"{ast.unparse(node)} makes a new attribute: autograd asks for requires_grad",
                    f"write {ast.unparse(node.value)}.requires_grad",
                    fix=fix("Spell requires_grad", respell(source, node, "requires_grad"), safe=False),
                )


def _is_of_own_class(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
