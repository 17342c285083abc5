"""The rule ``softmax-before-cross-entropy``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.loaders import assigned
from togi.lint.source.model import Source
from togi.lint.source.references import reaching
from togi.lint.source.syntax import argument
from togi.lint.source.value import ValueKind, excerpt

_LOSSES = ("torch.nn.CrossEntropyLoss", "torch.nn.modules.loss.CrossEntropyLoss")
_FUNCTIONS = {
    f"torch.{package}{name}": name
    for package in ("", "nn.functional.", "special.", "Tensor.")
    for name in ("softmax", "log_softmax")
}
_LAYERS = {"torch.nn.Softmax": "softmax", "torch.nn.Softmax2d": "softmax", "torch.nn.LogSoftmax": "log_softmax"}
_SAME_NUMBERS = frozenset("view reshape float squeeze contiguous flatten transpose permute to cpu cuda clone".split())
_DEPTH = 5
_MESSAGE = {
    "softmax": "is a softmax already, and cross-entropy takes one of its own: the gradients shrink, and the loss of a "
    "perfect answer is far from 0",
    "log_softmax": "is a log_softmax already, and cross-entropy takes one of its own: the second changes nothing and "
    "costs another pass over the logits",
}
_REMEDY = {
    "softmax": "hand over the logits, and take the softmax only where probabilities are read",
    "log_softmax": "hand over the logits, or keep the log-probabilities and use torch.nn.functional.nll_loss "
    "(torch.nn.NLLLoss)",
}


class SoftmaxBeforeCrossEntropy(SourceRule):
    """Cross-entropy of what went through a softmax.

    What it reports: ``nn.CrossEntropyLoss`` and ``F.cross_entropy`` whose input is the result of ``softmax`` or
    ``log_softmax``. It may come from a function, a method or a layer, a name that was given it, an ``nn.Sequential``
    that ends with such a layer, or a model of this file whose ``forward`` returns it in every case.

    Why it costs: cross-entropy takes the ``log_softmax`` of its input itself. A softmax before it squeezes the logits
    into 0 to 1, so that the gradients are small and the loss of a perfect answer over 1,000 classes is still 5.9; the
    model learns slowly or not at all, and nothing is raised. A ``log_softmax`` before it is merely computed twice.

    When it stays silent: only the target is a softmax (distillation), the value comes by several paths, ``NLLLoss``,
    and models that another file defines.

    Example::

        loss = F.cross_entropy(torch.softmax(model(x), dim=1), y)

    Use instead::

        loss = F.cross_entropy(model(x), y)

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    id = "softmax-before-cross-entropy"

    def check(self, source: Source) -> Iterable[Finding]:
        if "oftmax" not in source.text or not ("cross_entropy" in source.text or "CrossEntropyLoss" in source.text):
            return
        for call in source.nodes(ast.Call):
            logits = argument(call, "input", 0)
            if logits is None or not _is_cross_entropy(source, call):
                continue
            kind = _softmax(source, logits, _DEPTH)
            if kind is not None:
                yield source.finding(self.id, call, f"{excerpt(logits, 40)} {_MESSAGE[kind]}", _REMEDY[kind])


def _is_cross_entropy(source: Source, call: ast.Call) -> bool:
    if source.qualified(call.func) == "torch.nn.functional.cross_entropy":
        return True
    callee = source.value(call.func)
    return callee.kind is ValueKind.MODULE and callee.certain and callee.qualified in _LOSSES


def _softmax(source: Source, node: ast.expr, depth: int) -> str | None:
    """``softmax`` or ``log_softmax`` where ``node`` is evidently the result of one; None where it may be another."""
    if depth == 0:
        return None
    if isinstance(node, ast.Name):
        value = reaching(source, node)
        return _softmax(source, value, depth - 1) if value is not None else None
    if not isinstance(node, ast.Call):
        return None
    name = source.qualified(node.func) or ""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    if name in _LAYERS:
        return None  # the layer itself, not its result
    if isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_NUMBERS:
        return _softmax(source, node.func.value, depth - 1)
    return _softmax_of_module(source, node.func, depth)


def _softmax_of_module(source: Source, func: ast.expr, depth: int) -> str | None:
    """With which softmax a module ends."""
    module = source.value(func)
    if module.kind is not ValueKind.MODULE or not module.certain:
        return None
    if isinstance(module.definition, ast.ClassDef):
        forward = source.classes.method(module.definition, "forward")
        returns = source.walk(forward, ast.Return) if forward is not None else []
        values = [node.value for node in returns if source.function(node) is forward]
        return _agreed({_softmax(source, value, depth - 1) if value is not None else None for value in values})
    if module.qualified == "torch.nn.Sequential":
        return _agreed({_last_layer(source, value) for value in assigned(source, func)})
    return _LAYERS.get(module.qualified or "")


def _last_layer(source: Source, sequential: ast.expr) -> str | None:
    """The softmax with which ``nn.Sequential(...)`` ends, behind ``.to(device)`` and the like."""
    match sequential:
        case ast.Call(func=ast.Attribute(value=ast.Call() as moved)):
            return _last_layer(source, moved)
        case ast.Call(func=func, args=[*_, ast.Call(func=layer)]) if source.qualified(func) == "torch.nn.Sequential":
            return _LAYERS.get(source.qualified(layer) or "")
    return None


def _agreed(kinds: set[str | None]) -> str | None:
    return kinds.pop() if len(kinds) == 1 else None
