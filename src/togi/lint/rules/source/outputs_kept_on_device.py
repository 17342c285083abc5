"""The rule ``outputs-kept-on-device``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.accumulation import accumulations
from togi.lint.source.call_sites import method_calls
from togi.lint.source.compiled import loop_names
from togi.lint.source.inference import trains
from togi.lint.source.model import Source
from togi.lint.source.surroundings import over_batches
from togi.lint.source.syntax import first_name, last_name
from togi.lint.source.uses_of_tensors import is_whole_output
from togi.lint.source.value import evidence_of, excerpt


class OutputsKeptOnDevice(SourceRule):
    """The outputs of every batch stay on the device until the loop over a data set ends.

    What it reports: ``outputs.append(model(x))`` in a loop over batches without training, of whole outputs of a model
    on a device that is not the CPU, into a list that was made before the loop.

    Why it costs: the device's memory grows with the data set, besides the model, until the last batch. The host has
    more of it, and seldom needs the outputs earlier.

    When it stays silent: outputs that were reduced first (``argmax``, ``mean``, a count), moved to the CPU, or recorded
    by autograd (``inference-records-graph`` reports those); loops that train; lists that start anew in each pass. Also
    batches that the loop moves to no device, or to one that is or may be ``"mps"``, whose memory is the CPU's.

    Example::

        with torch.inference_mode():
            for x in loader:
                outputs.append(model(x.cuda()))

    Use instead::

        with torch.inference_mode():
            for x in loader:
                outputs.append(model(x.cuda()).to("cpu", non_blocking=True))
        torch.cuda.synchronize()

    or reduce each batch on the device, and keep the result alone.

    Source: https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
    """

    id = "outputs-kept-on-device"

    def check(self, source: Source) -> Iterable[Finding]:
        for accumulation in accumulations(source):
            node, target, output = accumulation.node, accumulation.target, accumulation.kept
            appends = isinstance(node, ast.Call) and last_name(node.func) in ("append", "extend")
            if not appends or source.records_grad(node):
                continue
            hot = source.hot(node)
            loop = hot.loop if hot is not None else None
            if loop is None or not over_batches(source, loop) or trains(source, loop):
                continue
            value = source.value(output)
            if not value.on_device or not is_whole_output(source, output):
                continue
            if not _moves_batches(source, loop) or _starts_in(source, loop, first_name(target)):
                continue
            text = excerpt(output, 40)
            yield source.finding(
                self.id,
                node,
                f"{excerpt(target, 40)} keeps {text} of every batch on the device until the loop ends",
                f'append {text}.to("cpu", non_blocking=True) and call torch.cuda.synchronize() after the loop, or '
                "append what is reduced from it",
                evidence=evidence_of(value, hot),
            )


def _moves_batches(source: Source, loop: ast.AST) -> bool:
    """Whether a batch goes to a device that is not known to use the memory of the CPU."""
    for call, method in method_calls(source, ("to", "cuda"), within=loop):
        if source.value(method.value).batch:
            moved = source.value(call)
            if not moved.batch and moved.device not in ("cpu", "mps"):
                return True
    return False


def _starts_in(source: Source, loop: ast.AST, name: str) -> bool:
    """Whether each pass of the loop binds the list anew, or takes out what was put in."""
    if not name or name in loop_names(source, loop):
        return True
    emptied = (node for node in source.walk(loop, ast.Attribute) if node.attr in ("clear", "pop", "popleft"))
    return any(first_name(node) == name for node in emptied)
