"""The rule ``inference-in-training-mode``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.hotness import iterated_by
from togi.lint.source.inference import (
    INFERENCE_NAMES,
    Use,
    depends_on_mode,
    mode_calls,
    sets_training,
    trains,
    uses_of_models,
)
from togi.lint.source.value import excerpt, gives_batches

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_DELIBERATE = re.compile(r"(dropout|mc_|_mc|bn_stats|update_bn|calibrat|recalib|swa|warm_?up|profile|bench|time|speed)")
_EVALUATED = ("from_pretrained", "torch.jit.load", "torch.jit.script", "torch.jit.trace", "torch.export")


class InferenceInTrainingMode(SourceRule):
    """A model is used for inference without ``eval()``.

    What it reports: a model called in a loop over batches that computes no gradients, or under ``no_grad`` or
    ``inference_mode``, without an ``eval()`` before it. Either the file makes the model, and it has dropout or batch
    norm. Or the file trains a model with ``train()`` and calls ``eval()`` nowhere. Or ``train()`` was the last call in
    a function that trains and evaluates.

    Why it costs: dropout draws random masks, batch norms compute statistics of the batch and overwrite their running
    averages, and neither can be folded or fused away. The results are wrong besides: they depend on the rest of the
    batch.

    When it stays silent: models that come from elsewhere (a parameter of the function), and models without dropout and
    batch norm. Functions that only run a model in training mode (to renew batch norms' statistics). Models from
    ``from_pretrained`` (handed over in ``eval`` mode), TorchScript files, methods of modules and steps of trainers,
    functions named after dropout sampling or batch norm statistics, and measurements.

    Example::

        @torch.no_grad()
        def evaluate(model, loader):
            return [model(images).argmax(1) for images in loader]

    Use instead::

        @torch.no_grad()
        def evaluate(model, loader):
            model.eval()
            return [model(images).argmax(1) for images in loader]

    Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval
    """

    id = "inference-in-training-mode"

    def check(self, source: Source) -> Iterable[Finding]:
        reported: set[ast.AST | None] = set()
        for use in uses_of_models(source):
            part = not isinstance(use.model, ast.Name) and not _is_own(use.model)
            if part or excerpt(use.model).endswith("forward"):
                continue  # a part of a model, whose mode is set elsewhere
            region = use.loop or use.function
            if region in reported or _DELIBERATE.search(_name(use).lower()) or not _is_inference(source, use):
                continue
            reason = _training(source, use)
            if reason:
                reported.add(region)
                model = excerpt(use.model, 30)
                yield source.finding(
                    self.id,
                    use.call,
                    f"{excerpt(use.call, 40)} runs for inference in training mode",
                    f"call {model}.eval() before it (and {model}.train() before training goes on)",
                    evidence=reason,
                )


def _is_own(model: ast.expr) -> bool:
    """``self.model``."""
    return isinstance(model, ast.Attribute) and isinstance(model.value, ast.Name) and model.value.id == "self"


def _name(use: Use) -> str:
    return getattr(use.function, "name", "")


def _is_inference(source: Source, use: Use) -> bool:
    if not source.records_grad(use.call):
        known = use.value.evidence.origin is not None and use.value.certain
        return use.loop is not None or known or bool(INFERENCE_NAMES.search(_name(use)))
    if use.loop is None or INFERENCE_NAMES.search(_name(use)):
        return use.loop is not None
    iterated = iterated_by(use.loop)
    return (
        iterated is not None and "train" not in ast.unparse(iterated).lower() and gives_batches(source.value(iterated))
    )


def _training(source: Source, use: Use) -> str:
    """Why the model is in training mode; empty where it is not, or where nobody can tell."""
    if any(mark in (use.value.qualified or "") for mark in _EVALUATED) or "PreTrained" in (use.value.qualified or ""):
        return ""
    last = _last_mode(source, use)
    if last is not None:
        trained = sets_training(last) and trains(source, use.function or source.tree)
        return f"the last call before it is {excerpt(last)} in line {last.lineno}" if trained else ""
    origin = use.value.evidence.origin
    own = isinstance(origin, ast.Call) and source.index.class_of(source.function(origin) or origin) is not None
    if _evaluated_elsewhere(source, use) or (not own and ast.unparse(use.model).startswith("self.")):
        return ""
    if isinstance(origin, ast.Call) and depends_on_mode(source, use.value):
        made = source.function(origin)
        if (
            made is not None
            and made is not use.function
            and any(not sets_training(one) for one in mode_calls(source, made))
        ):
            return ""
        return f"it is made in line {origin.lineno}, and no eval() leads from there to here"
    return _trained_in_file(source)


def _trained_in_file(source: Source) -> str:
    """Where a function of the file trains a model, and nothing in the file ever calls ``eval``."""
    modes = list(mode_calls(source, source.tree))
    if any(not sets_training(call) for call in modes):
        return ""
    for call in modes:
        function = source.function(call)
        if function is not None and trains(source, function):
            return f"{excerpt(call)} in line {call.lineno}, and no eval() in this file"
    return ""


def _last_mode(source: Source, use: Use) -> ast.Call | None:
    """The last ``eval()`` or ``train()`` of anything before the call, in its function."""
    region = use.function or source.tree
    before = [
        call
        for call in mode_calls(source, region)
        if call.lineno <= use.call.lineno and (use.function is not None or source.function(call) is None)
    ]
    own = [call for call in before if _receiver(call) == ast.unparse(use.model)]
    if own:
        return max(own, key=lambda call: call.lineno)
    return next((call for call in before if not sets_training(call)), None)


def _receiver(call: ast.Call) -> str:
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _evaluated_elsewhere(source: Source, use: Use) -> bool:
    """``eval()`` in a function that calls this one, in another method of the class, where the model was made, or at the
    top of the file."""
    function = use.function
    if any(not sets_training(call) for call in mode_calls(source, source.tree) if source.function(call) is None):
        return True
    if function is None:
        return False
    owner = source.index.class_of(function)
    if owner is not None:
        return any(not sets_training(call) for call in mode_calls(source, owner))
    outer = source.function(function)
    callers = [source.function(call) for call in source.callers.sites(function)]
    around = [one for one in (outer, *callers) if one is not None]
    return any(not sets_training(call) for one in around for call in mode_calls(source, one))
