"""The rule ``inference-records-graph``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.gradients import gradient_switches
from togi.lint.source.hotness import iterated_by
from togi.lint.source.identifiers import mentions
from togi.lint.source.inference import INFERENCE_NAMES, Use, set_to_eval, trains, uses_of_models
from togi.lint.source.model import Source
from togi.lint.source.surroundings import function_name, over_batches
from togi.lint.source.syntax import is_constant
from togi.lint.source.tree import Loop
from togi.lint.source.value import excerpt


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
        if _freezes_parameters(source):
            return
        reported: set[ast.AST] = set()
        for use in uses_of_models(source):
            loop = use.loop
            if loop is None or loop in reported or not _is_inference(source, use, loop):
                continue
            if source.records_grad(use.call):
                reported.add(loop)
                yield source.finding(
                    self.id,
                    use.call,
                    f"{excerpt(use.call, 40)} records autograd's graph for every batch, and nothing here uses it",
                    f"put the loop in line {loop.lineno} under `with torch.inference_mode():` (torch.no_grad() "
                    "where outputs enter autograd later)",
                    evidence=f"no backward() and no optimizer in the loop in line {loop.lineno}",
                )


def _freezes_parameters(source: Source) -> bool:
    """Whether anything in the file is said to need no gradient."""
    if "requires_grad" not in source.text:
        return False
    keywords = [word.value for word in source.nodes(ast.keyword) if word.arg == "requires_grad"]
    return any(is_constant(value, False) for value in (*keywords, *(value for _, value in gradient_switches(source))))


def _is_inference(source: Source, use: Use, loop: Loop) -> bool:
    iterated = iterated_by(loop)
    if iterated is not None and mentions(source, iterated, ("train",)):
        return False
    if over_batches(source, loop):
        return True
    if mentions(source, loop, ("requires_grad",)):
        return False
    if set_to_eval(source, use):
        return True
    if isinstance(use.model, ast.Attribute):
        return False  # its caller, in another file, may have switched autograd off
    return bool(INFERENCE_NAMES.search(function_name(source, use.call))) or _is_made_and_only_used(source, use)


def _is_made_and_only_used(source: Source, use: Use) -> bool:
    """A model that the same function or script makes, in a file that trains nothing."""
    origin = use.value.evidence.origin
    made_here = use.value.certain and isinstance(origin, ast.Call) and source.function(origin) is use.function
    return made_here and not trains(source, source.tree)
