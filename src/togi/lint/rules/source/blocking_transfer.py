"""The rule ``blocking-transfer``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.edits import add_argument
from togi.lint.source.loaders import LOADER, collates_tensors
from togi.lint.source.syntax import argument, first_name, is_constant, unpacks
from togi.lint.source.value import Kind, Value, evidence_of, excerpt

if TYPE_CHECKING:
    from togi.lint.source.model import Source


class BlockingTransfer(SourceRule):
    """A batch is moved to the device while Python waits.

    What it reports: ``.to(device)`` or ``.cuda()`` of what a DataLoader gave, without ``non_blocking=True``; with it,
    where the DataLoader is seen to be made without ``pin_memory=True``.

    Why it costs: a copy from pageable memory goes through a staging buffer and Python waits for it. From pinned memory,
    with ``non_blocking=True``, it overlaps with what the device still computes. One without the other brings nothing.

    The fix is offered only where the target is seen to be a GPU: ``.cuda()``, or a device that is ``"cuda"``. It is
    safe where the file shows a DataLoader that gives tensors; other objects need not take ``non_blocking``.

    When it stays silent: moves to the CPU, changes of dtype, tensors that did not come from a DataLoader, batches that
    something else has moved already or may have. An example is a loader that was handed to code which the file does not
    show, or came from there (``accelerator.prepare(loader)``).

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
            if after.batch or after.device == "cpu" or _driven(source, call, before):
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
            self.id, call, message, remedy, evidence=evidence, fix=_fix(source, call, before) if to_gpu else None
        )


def _asynchronous(call: ast.Call) -> bool | None:
    """None where it is decided at run time."""
    if unpacks(call):
        return None
    given = argument(call, "non_blocking", 1 if isinstance(call.func, ast.Attribute) and call.func.attr != "to" else 2)
    flags = [arg for arg in call.args[1:] if is_constant(arg, True, False)]  # to(other, True)
    given = given if given is not None or not flags else flags[0]
    if given is None:
        return False
    return bool(given.value) if isinstance(given, ast.Constant) else None


def _driven(source: Source, call: ast.Call, before: Value) -> bool:
    """Whether the batch goes to the device of an object that does more in this file than hold settings.

    Such an object (an Accelerator) may have wrapped the loader before it was handed over, and moved the batch already.
    """
    device = argument(call, "device", 0)
    if before.loader is not None or not (isinstance(device, ast.Attribute) and isinstance(device.value, ast.Name)):
        return False
    driver = device.value.id
    known = driver == "self" or source.value(device.value).kind is not Kind.UNKNOWN
    return not known and any(
        isinstance(one.func, ast.Attribute) and isinstance(one.func.value, ast.Name) and one.func.value.id == driver
        for one in source.nodes(ast.Call)
    )


def _fix(source: Source, call: ast.Call, before: Value) -> Fix | None:
    """For copies to a GPU alone: they keep their order with the kernels that read them, so this changes no result.

    The CPU does not wait for a copy to its own memory, and would read what has not arrived yet. Safe where the file
    shows that a tensor is moved (other objects need not take ``non_blocking``), and writes nothing into it later.
    """
    if any(keyword.arg == "non_blocking" for keyword in call.keywords):
        return None
    edit = add_argument(source, call, "non_blocking=True")
    made = before.loader
    safe = made is not None and source.qualified(made.func) == LOADER and collates_tensors(made)
    title = "Copy with non_blocking=True"
    return Fix(title=title, edits=(edit,), safe=safe and not _is_written(source, call)) if edit else None


def _is_written(source: Source, call: ast.Call) -> bool:
    """Whether the function changes the tensor on the CPU in place, while a copy may still read it."""
    assert isinstance(call.func, ast.Attribute)
    root = first_name(call.func.value)
    region = source.function(call) or source.tree
    stored = [one for one in source.walk(region, ast.Subscript) if isinstance(one.ctx, ast.Store)]
    stored += [one.target for one in source.walk(region, ast.AugAssign)]
    stored += [one for one in source.walk(region, ast.Attribute) if one.attr.endswith("_")]
    return not root or any(first_name(one) == root for one in stored)
