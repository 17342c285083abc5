"""The rule ``inference-records-graph``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.hotness import iterated_by
from togi.lint.source.inference import INFERENCE_NAMES, Use, set_to_eval, trains, uses_of_models
from togi.lint.source.value import excerpt, gives_batches

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_FROZEN = ("requires_grad_(False)", "requires_grad = False", "requires_grad=False")


class InferenceRecordsGraph(SourceRule):
    """A loop of inference records autograd's graph.

    What it reports: a model called in a loop over batches that computes no gradients, without ``torch.no_grad()`` or
    ``torch.inference_mode()``. Neither is around the call, on its function, or around every call of its function in the
    file. The function is named after inference, or the model was put into ``eval`` mode, or it is made there and
    trained nowhere.

    Why it costs: every activation that a backward pass would need stays alive until the output dies, which multiplies
    peak memory, and each operation does bookkeeping. What is kept across batches keeps its whole graph.

    When it stays silent: loops that call ``backward`` or step an optimizer, loops whose outputs are trained on
    afterwards, methods of modules and steps of trainers (whose caller decides), files that freeze the parameters,
    ``generate`` and other methods that switch it off themselves.

    Example::

        def evaluate(model, loader):
            model.eval()
            for images, labels in loader:
                correct += (model(images).argmax(1) == labels).sum()

    Use instead::

        @torch.inference_mode()
        def evaluate(model, loader):
            model.eval()
            for images, labels in loader:
                correct += (model(images).argmax(1) == labels).sum()

    Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation
    """

    id = "inference-records-graph"
    technique = "inference_mode"

    def check(self, source: Source) -> Iterable[Finding]:
        if any(mark in source.text for mark in _FROZEN):
            return
        reported: set[ast.AST] = set()
        for use in uses_of_models(source):
            if use.loop is None or use.loop in reported or not _is_inference(source, use):
                continue
            if source.records_grad(use.call):
                reported.add(use.loop)
                yield source.finding(
                    self.id,
                    use.call,
                    f"{excerpt(use.call, 40)} records autograd's graph for every batch, and nothing here uses it",
                    f"put the loop in line {use.loop.lineno} under `with torch.inference_mode():` (torch.no_grad() "
                    "where outputs enter autograd later)",
                    evidence=f"no backward() and no optimizer in the loop in line {use.loop.lineno}",
                )


def _is_inference(source: Source, use: Use) -> bool:
    loop = use.loop
    assert loop is not None
    iterated = iterated_by(loop)
    if iterated is not None and "train" in ast.unparse(iterated).lower():
        return False
    if iterated is not None and gives_batches(source.value(iterated)):
        return True
    if "requires_grad" in ast.unparse(loop):
        return False
    if set_to_eval(source, use):
        return True
    if isinstance(use.model, ast.Attribute):
        return False  # its caller, in another file, may have switched autograd off
    return bool(INFERENCE_NAMES.search(getattr(use.function, "name", ""))) or _made_and_only_used(source, use)


def _made_and_only_used(source: Source, use: Use) -> bool:
    """A model that the same function or script makes, in a file that trains nothing."""
    origin = use.value.evidence.origin
    made = use.value.certain and isinstance(origin, ast.Call) and source.function(origin) is use.function
    return made and not trains(source, source.tree)
