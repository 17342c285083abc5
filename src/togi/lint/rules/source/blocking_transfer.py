"""The rule ``blocking-transfer``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Edit, Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.value import Kind, Value, evidence_of, excerpt

if TYPE_CHECKING:
    from togi.lint.source.model import Source


class BlockingTransfer(SourceRule):
    """A batch is moved to the device while Python waits.

    What it reports: ``.to(device)`` or ``.cuda()`` of what a DataLoader gave, without ``non_blocking=True``; with it,
    where the DataLoader is seen to be made without ``pin_memory=True``.

    Why it costs: a copy from pageable memory goes through a staging buffer and Python waits for it. From pinned memory,
    with ``non_blocking=True``, it overlaps with what the device still computes. One without the other brings nothing.

    The fix is offered only where the target is seen to be a GPU: ``.cuda()``, or a device that is ``"cuda"``.

    When it stays silent: moves to the CPU, changes of dtype, tensors that did not come from a DataLoader, batches that
    something else has moved already.

    Example::

        for images, labels in DataLoader(data, batch_size=64):
            loss = criterion(model(images.to(device)), labels.to(device))

    Use instead::

        for images, labels in DataLoader(data, batch_size=64, pin_memory=True):
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = criterion(model(images), labels)

    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    """

    id = "blocking-transfer"

    def check(self, source: Source) -> Iterable[Finding]:
        for call in source.nodes(ast.Call):
            func = call.func
            if not isinstance(func, ast.Attribute) or func.attr not in ("to", "cuda", "xpu"):
                continue
            before = source.value(func.value)
            if before.kind is not Kind.TENSOR or not before.batch:
                continue
            after = source.value(call)
            if after.batch or after.device == "cpu":
                continue
            asynchronous = _asynchronous(call)
            if asynchronous is False:
                yield self._blocking(source, call, func, before, to_gpu=after.device == "cuda")
            elif asynchronous and before.pinned is False:
                message = f"{excerpt(call, 40)} blocks all the same: the DataLoader's batches are not in pinned memory"
                remedy = f"pass pin_memory=True to the DataLoader that {excerpt(func.value, 30)} comes from"
                yield source.finding(self.id, call, message, remedy, evidence=evidence_of(before, source.hot(call)))

    def _blocking(self, source: Source, call: ast.Call, func: ast.Attribute, before: Value, *, to_gpu: bool) -> Finding:
        message = f"{excerpt(call, 40)} waits for the copy of a batch that could overlap with computation"
        remedy = f"pass non_blocking=True to {func.attr}(), and pin_memory=True to the DataLoader"
        if before.pinned:
            remedy = f"pass non_blocking=True to {func.attr}() (the DataLoader pins its batches already)"
        if not to_gpu:
            remedy += "; only where this goes to the GPU: a copy to the CPU that nobody waits for is read half done"
        evidence = evidence_of(before, source.hot(call))
        return source.finding(
            self.id, call, message, remedy, evidence=evidence, fix=_fix(source, call) if to_gpu else None
        )


def _asynchronous(call: ast.Call) -> bool | None:
    """None where it is decided at run time."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "non_blocking"]
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    if not given:
        positional = 1 if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" else 2
        return None if len(call.args) > positional else False
    return bool(given[0].value) if isinstance(given[0], ast.Constant) else None


def _fix(source: Source, call: ast.Call) -> Fix | None:
    """For copies to a GPU alone: they keep their order with the kernels that read them, so this changes no result.

    The CPU does not wait for a copy to its own memory, and would read what has not arrived yet.
    """
    if any(keyword.arg == "non_blocking" for keyword in call.keywords) or call.end_lineno is None:
        return None
    place = source.place(call)
    if place.end_line is None or place.end_column is None:
        return None
    given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    last = max(given, key=_end, default=None)
    if last is None:
        line, column, text = place.end_line, place.end_column - 1, "non_blocking=True"
    else:
        end = source.place(last)
        line, column, text = end.end_line or 0, end.end_column or 0, ", non_blocking=True"
    edit = Edit(line=line, column=column, end_line=line, end_column=column, text=text)
    return Fix(title="Copy with non_blocking=True", edits=(edit,))


def _end(node: ast.expr | ast.keyword) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0
