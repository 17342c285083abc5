"""Tells whole outputs of a model, as a loop collects them, from what is reduced from them first."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from togi.lint.source.references import reaching
from togi.lint.source.value import Kind

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_SAME_SIZE = frozenset(
    """detach clone float half bfloat16 double contiguous view reshape flatten squeeze unsqueeze permute transpose
    sigmoid softmax log_softmax tanh relu exp clamp cpu cuda to numpy""".split()
)
"""Methods and functions of torch whose result is as large as what they are given."""
_DEPTH = 8


def is_whole_output(source: Source, node: ast.expr, depth: int = _DEPTH) -> bool:
    """Whether ``node`` is what a model returned, perhaps moved, cast or squashed, and nothing smaller."""
    if depth == 0:
        return False
    if isinstance(node, ast.Name):
        made = reaching(source, node)
        return made is not None and is_whole_output(source, made, depth - 1)
    if not isinstance(node, ast.Call):
        return False
    if source.value(node.func).kind is Kind.MODULE:
        name = source.value(node.func).qualified or ""
        return "loss" not in name.lower()
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _SAME_SIZE:
        return False
    of_torch = (source.names.qualified(node.func, source.scope(node)) or "").startswith("torch.")
    inner = (node.args[0] if node.args else None) if of_torch else node.func.value
    return inner is not None and is_whole_output(source, inner, depth - 1)
