"""The rule ``outputs-kept-on-device``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.accumulation import accumulations
from togi.lint.source.hotness import iterated_by
from togi.lint.source.inference import trains
from togi.lint.source.syntax import first_name, last_name
from togi.lint.source.tree import LOOPS
from togi.lint.source.uses_of_tensors import is_whole_output
from togi.lint.source.value import Kind, evidence_of, excerpt, gives_batches

if TYPE_CHECKING:
    from togi.lint.source.model import Source


class OutputsKeptOnDevice(SourceRule):
    """The outputs of every batch stay on the device until the loop over a data set ends.

    What it reports: ``outputs.append(model(x))`` in a loop over batches without training, of whole outputs of a model
    on a device that is not the CPU, into a list that was made before the loop.

    Why it costs: the device's memory grows with the data set, besides the model, until the last batch. The host has
    more of it, and seldom needs the outputs earlier.

    When it stays silent: outputs that were reduced first (``argmax``, ``mean``, a count), moved to the CPU, or recorded
    by autograd (``inference-records-graph`` reports those); loops that train; lists that start anew in each pass;
    batches that the loop does not move to a device.

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
        for one in accumulations(source):
            appends = isinstance(one.node, ast.Call) and last_name(one.node.func) in ("append", "extend")
            if not appends or source.records_grad(one.node):
                continue
            hot = source.hot(one.node)
            loop = hot.loop if hot is not None and isinstance(hot.loop, LOOPS) else None
            iterated = iterated_by(loop) if loop is not None else None
            if loop is None or iterated is None or not gives_batches(source.value(iterated)) or trains(source, loop):
                continue
            value = source.value(one.kept)
            if value.kind is not Kind.TENSOR or value.device == "cpu" or not is_whole_output(source, one.kept):
                continue
            if not _moves_batches(source, loop) or _starts_in(source, loop, first_name(one.target)):
                continue
            text = excerpt(one.kept, 40)
            yield source.finding(
                self.id,
                one.node,
                f"{excerpt(one.target, 40)} keeps {text} of every batch on the device until the loop ends",
                f'append {text}.to("cpu", non_blocking=True) and call torch.cuda.synchronize() after the loop, or '
                "append what is reduced from it",
                evidence=evidence_of(value, hot),
            )


def _moves_batches(source: Source, loop: ast.AST) -> bool:
    """Whether a batch goes to a device that is not known to be the CPU."""
    for call in source.walk(loop, ast.Call):
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in ("to", "cuda") and source.value(func.value).batch:
            moved = source.value(call)
            if not moved.batch and moved.device != "cpu":
                return True
    return False


def _starts_in(source: Source, loop: ast.AST, name: str) -> bool:
    """Whether each pass of the loop binds the list anew, or takes out what was put in."""
    bound = any(one.id == name and not isinstance(one.ctx, ast.Load) for one in source.walk(loop, ast.Name))
    emptied = (one for one in source.walk(loop, ast.Attribute) if one.attr in ("clear", "pop", "popleft"))
    return not name or bound or any(first_name(one) == name for one in emptied)
