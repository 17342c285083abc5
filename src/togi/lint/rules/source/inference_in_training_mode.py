"""The rule ``inference-in-training-mode``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.hotness import iterated_by
from togi.lint.source.identifiers import is_own, mentions
from togi.lint.source.inference import (
    INFERENCE_NAMES,
    Use,
    depends_on_mode,
    mode_calls,
    sets_training,
    trains,
    uses_of_models,
)
from togi.lint.source.model import Source
from togi.lint.source.surroundings import function_name, over_batches
from togi.lint.source.syntax import first_name, last_name
from togi.lint.source.value import excerpt

_DELIBERATE = re.compile(r"(dropout|mc_|_mc|bn_stats|update_bn|calibrat|recalib|swa|warm_?up|profile|bench|time|speed)")
_EVALUATED = ("from_pretrained", "PreTrained", "torch.jit.load", "torch.jit.script", "torch.jit.trace", "torch.export")
"""Parts of names of what hands a model over in ``eval`` mode, or in a mode of its own."""


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
            part = not isinstance(use.model, ast.Name) and not is_own(use.model)
            if part or last_name(use.model).endswith("forward"):
                continue  # a part of a model, whose mode is set elsewhere
            region = use.loop or use.function
            if (
                region in reported
                or _DELIBERATE.search(function_name(source, use.call).lower())
                or not _is_inference(source, use)
            ):
                continue
            reason = _why_training(source, use)
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


def _is_inference(source: Source, use: Use) -> bool:
    named = bool(INFERENCE_NAMES.search(function_name(source, use.call)))
    if not source.records_grad(use.call):
        made_here = use.value.evidence.origin is not None and use.value.certain
        return use.loop is not None or made_here or named
    if use.loop is None or named:
        return use.loop is not None
    iterated = iterated_by(use.loop)
    return over_batches(source, use.loop) and iterated is not None and not mentions(source, iterated, ("train",))


def _why_training(source: Source, use: Use) -> str:
    """Why the model is in training mode; empty where it is not, or where nobody can tell."""
    if any(mark in (use.value.qualified or "") for mark in _EVALUATED):
        return ""
    last = _last_mode_call(source, use)
    if last is not None:
        trained = sets_training(last) and trains(source, use.function or source.tree)
        return f"the last call before it is {excerpt(last)} in line {last.lineno}" if trained else ""
    creation = use.value.evidence.origin if isinstance(use.value.evidence.origin, ast.Call) else None
    maker = source.function(creation) if creation is not None else None
    made_in_class = creation is not None and source.index.class_of(maker or creation) is not None
    on_self = isinstance(use.model, ast.Attribute) and first_name(use.model) == "self"
    if _is_evaluated_elsewhere(source, use) or (on_self and not made_in_class):
        return ""
    if creation is None or not depends_on_mode(source, use.value):
        return _trained_in_file(source)
    if maker is not None and maker is not use.function and _calls_eval(source, maker):
        return ""
    return f"it is made in line {creation.lineno}, and no eval() leads from there to here"


def _trained_in_file(source: Source) -> str:
    """Where a function of the file trains a model, and nothing in the file ever calls ``eval``."""
    if _calls_eval(source, source.tree):
        return ""
    for call in mode_calls(source, source.tree):
        function = source.function(call)
        if function is not None and trains(source, function):
            return f"{excerpt(call)} in line {call.lineno}, and no eval() in this file"
    return ""


def _calls_eval(source: Source, region: ast.AST) -> bool:
    """Whether something in ``region`` calls ``eval()`` of a model."""
    return any(not sets_training(call) for call in mode_calls(source, region))


def _last_mode_call(source: Source, use: Use) -> ast.Call | None:
    """The last ``eval()`` or ``train()`` of the model before the call, in its function; else an ``eval()``."""
    calls = mode_calls(source, use.function or source.tree)
    if use.function is None:
        calls = (call for call in calls if source.function(call) is None)
    before = [call for call in calls if call.lineno <= use.call.lineno]
    own = [call for call in before if _receiver(call) == ast.unparse(use.model)]
    if own:
        return max(own, key=lambda call: call.lineno)
    return next((call for call in before if not sets_training(call)), None)


def _receiver(call: ast.Call) -> str:
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _is_evaluated_elsewhere(source: Source, use: Use) -> bool:
    """``eval()`` in a function that calls this one, in another method of the class, where the model was made, or at the
    top of the file."""
    function = use.function
    at_top = (call for call in mode_calls(source, source.tree) if source.function(call) is None)
    if any(not sets_training(call) for call in at_top):
        return True
    if function is None:
        return False
    owner = source.index.class_of(function)
    if owner is not None:
        return _calls_eval(source, owner)
    around = [source.function(function), *(source.function(call) for call in source.callers.sites(function))]
    return any(_calls_eval(source, outer) for outer in around if outer is not None)
