"""The rule ``dataloader-without-pinning``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.edits import set_argument
from togi.lint.source.loaders import batch_to_cuda, collates_tensors, loader_calls
from togi.lint.source.syntax import argument, is_constant

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_POSITION = 7


class DataloaderWithoutPinning(SourceRule):
    """A DataLoader of pageable batches that go to a GPU.

    What it reports: ``DataLoader`` without ``pin_memory`` (or with False) in a file that moves batches to CUDA.

    Why it costs: from pageable memory the driver copies a batch twice, and the host waits. From pinned memory the copy
    is direct, and with ``non_blocking=True`` it overlaps with the step before.

    When it stays silent: nothing in the file moves a batch out of a loader to CUDA (a trainer may do it elsewhere, and
    may set this), ``pin_memory`` is set from something, ``**kwargs`` may hold it, and files of tests.

    Example::

        loader = DataLoader(dataset, batch_size=64, num_workers=4)
        for x, y in loader:
            x, y = x.cuda(), y.cuda()

    Use instead::

        loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)
        for x, y in loader:
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)

    Source: https://docs.pytorch.org/docs/stable/data.html#memory-pinning
    """

    id = "dataloader-without-pinning"

    def check(self, source: Source) -> Iterable[Finding]:
        calls = [call for call in loader_calls(source) if _unpinned(call)]
        moved = batch_to_cuda(source) if calls else None
        if moved is None:
            return
        for call in calls:
            yield source.finding(
                self.id,
                call,
                "batches of this DataLoader lie in pageable memory, from which a copy to the GPU makes the host wait",
                "add pin_memory=True, and non_blocking=True where the batch is moved",
                evidence=f"line {moved.lineno} moves a batch to the GPU: {ast.unparse(moved)}",
                fix=_fix(source, call, moved),
            )


def _unpinned(call: ast.Call) -> bool:
    pinned = argument(call, "pin_memory", _POSITION)
    return pinned is None or is_constant(pinned, False)


def _fix(source: Source, call: ast.Call, moved: ast.Call) -> Fix | None:
    """Safe where the tensors that are moved are of this loader: what is on the GPU already cannot be pinned."""
    edit = set_argument(source, call, "pin_memory", _POSITION, "True")
    assert isinstance(moved.func, ast.Attribute)
    its_own = source.value(moved.func.value).loader is call and collates_tensors(call)
    safe = its_own and argument(call, "pin_memory", _POSITION) is None
    return Fix(title="Pin the batches", edits=(edit,), safe=safe) if edit else None
