"""The rule ``blocking-transfer``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.call_sites import method_calls
from togi.lint.source.edits import add_argument
from togi.lint.source.fixes import fix
from togi.lint.source.loaders import LOADER, collates_tensors
from togi.lint.source.model import Source
from togi.lint.source.syntax import argument, first_name, is_constant, unpacks
from togi.lint.source.value import Value, ValueKind, evidence_of, excerpt


class BlockingTransfer(SourceRule):
    """A batch is moved to the device while Python waits.

    What it reports: ``.to(device)`` or ``.cuda()`` of what a DataLoader gave, without ``non_blocking=True``; with it,
    where the DataLoader is seen to be made without ``pin_memory=True``.

    Why it costs: a copy from pageable memory goes through a staging buffer and Python waits for it. From pinned memory,
    with ``non_blocking=True``, it overlaps with what the device still computes. One without the other brings nothing.

    When it stays silent: moves to the CPU, changes of dtype, tensors that did not come from a DataLoader, batches that
    something else has moved already or may have. An example is a loader that was handed to code which the file does not
    show, or came from there (``accelerator.prepare(loader)``). Also moves to what is or may be ``"mps"``: PyTorch may
    read the batch there after its memory was given away (https://github.com/pytorch/pytorch/issues/189690).

    Example::

        for images, labels in DataLoader(data, batch_size=64):
            loss = criterion(model(images.to(device)), labels.to(device))

    Use instead::

        for images, labels in DataLoader(data, batch_size=64, pin_memory=True):
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = criterion(model(images), labels)

    Fix safety: offered only where the target is seen to be a GPU: ``.cuda()``, or a device that is ``"cuda"``. Such a
    copy keeps its order with the kernels that read it, so no result changes. A copy to the CPU would be read before it
    has arrived. The fix is safe where the file shows a DataLoader that gives tensors (other objects need not take
    ``non_blocking``), and writes nothing into the tensor later.

    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    """

    id = "blocking-transfer"

    def check(self, source: Source) -> Iterable[Finding]:
        for call, method in method_calls(source, ("to", "cuda", "xpu")):
            batch = source.value(method.value)
            if batch.kind is not ValueKind.TENSOR or not batch.batch:
                continue
            moved = source.value(call)
            if moved.batch or moved.device in ("cpu", "mps") or _may_be_moved_before(source, call, batch):
                continue
            asynchronous = _is_asynchronous(call, method)
            if asynchronous is False:
                yield self._blocking(source, call, method, batch, to_gpu=moved.device == "cuda")
            elif asynchronous and batch.pinned is False:
                yield source.finding(
                    self.id,
                    call,
                    f"{excerpt(call, 40)} blocks all the same: the DataLoader's batches are not in pinned memory",
                    f"pass pin_memory=True to the DataLoader that {excerpt(method.value, 30)} comes from",
                    evidence=evidence_of(batch, source.hot(call)),
                )

    def _blocking(
        self, source: Source, call: ast.Call, method: ast.Attribute, batch: Value, *, to_gpu: bool
    ) -> Finding:
        remedy = f"pass non_blocking=True to {method.attr}(), and pin_memory=True to the DataLoader"
        if batch.pinned:
            remedy = f"pass non_blocking=True to {method.attr}() (the DataLoader pins its batches already)"
        if not to_gpu:
            remedy += "; only where this goes to a CUDA device: a copy to the CPU or to MPS may be read half done"
        return source.finding(
            self.id,
            call,
            f"{excerpt(call, 40)} waits for the copy of a batch that could overlap with computation",
            remedy,
            evidence=evidence_of(batch, source.hot(call)),
            fix=_fix(source, call, method, batch) if to_gpu else None,
        )


def _is_asynchronous(call: ast.Call, method: ast.Attribute) -> bool | None:
    """None where it is decided at run time."""
    if unpacks(call):
        return None
    flag = argument(call, "non_blocking", 2 if method.attr == "to" else 1)
    if flag is None:  # to(other, True)
        flag = next((value for value in call.args[1:] if is_constant(value, True, False)), None)
    if flag is None:
        return False
    return bool(flag.value) if isinstance(flag, ast.Constant) else None


def _may_be_moved_before(source: Source, call: ast.Call, batch: Value) -> bool:
    """Whether the batch goes to the device of an object that does more in this file than hold settings.

    Such an object (an Accelerator) may have wrapped the loader before it was handed over, and moved the batch already.
    """
    device = argument(call, "device", 0)
    if batch.loader is not None or not (isinstance(device, ast.Attribute) and isinstance(device.value, ast.Name)):
        return False
    driver = device.value.id
    if driver == "self" or source.value(device.value).kind is not ValueKind.UNKNOWN:
        return False
    methods = (node.func for node in source.nodes(ast.Call) if isinstance(node.func, ast.Attribute))
    return any(isinstance(method.value, ast.Name) and method.value.id == driver for method in methods)


def _fix(source: Source, call: ast.Call, method: ast.Attribute, batch: Value) -> Fix | None:
    if argument(call, "non_blocking") is not None:
        return None
    loader = batch.loader
    gives_tensors = loader is not None and source.qualified(loader.func) == LOADER and collates_tensors(loader)
    safe = gives_tensors and not _is_written(source, call, first_name(method.value))
    return fix("Copy with non_blocking=True", add_argument(source, call, "non_blocking=True"), safe=safe)


def _is_written(source: Source, call: ast.Call, tensor: str) -> bool:
    """Whether the function changes the tensor on the CPU in place, while a copy may still read it."""
    region = source.function(call) or source.tree
    written = [item for item in source.walk(region, ast.Subscript) if isinstance(item.ctx, ast.Store)]
    written += [added.target for added in source.walk(region, ast.AugAssign)]
    written += [method for method in source.walk(region, ast.Attribute) if method.attr.endswith("_")]
    return not tensor or any(first_name(node) == tensor for node in written)
