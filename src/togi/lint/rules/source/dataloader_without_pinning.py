"""The rule ``dataloader-without-pinning``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding, Fix
from togi.lint.rule import SourceRule
from togi.lint.source.call_sites import may_switch_on
from togi.lint.source.edits import set_argument
from togi.lint.source.fixes import fix
from togi.lint.source.loaders import batch_to_cuda, collates_tensors, loader_calls
from togi.lint.source.model import Source
from togi.lint.source.syntax import argument

_POSITION = 7


class DataloaderWithoutPinning(SourceRule):
    """A DataLoader of pageable batches that go to a GPU.

    What it reports: ``DataLoader`` without ``pin_memory`` (or with False) in a file that moves batches to CUDA.

    Why it costs: from pageable memory the driver copies a batch twice, and the host waits. From pinned memory the copy
    is direct, and with ``non_blocking=True`` it overlaps with the step before.

    When it stays silent: nothing in the file moves a batch out of a loader to CUDA (a trainer may do it elsewhere, and
    may set this), or the device may be ``"mps"`` as well. Files of tests, and calls where ``pin_memory`` is set from
    something or ``**kwargs`` may hold it.

    Example::

        loader = DataLoader(dataset, batch_size=64, num_workers=4)
        for x, y in loader:
            x, y = x.cuda(), y.cuda()

    Use instead::

        loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)
        for x, y in loader:
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)

    Fix safety: safe where the tensors that are moved are seen to come from this loader, and ``pin_memory`` was left
    open. What is on the GPU already cannot be pinned, and False may have been chosen.

    Source: https://docs.pytorch.org/docs/stable/data.html#memory-pinning
    """

    id = "dataloader-without-pinning"

    def check(self, source: Source) -> Iterable[Finding]:
        calls = [call for call in loader_calls(source) if not may_switch_on(call, "pin_memory", _POSITION)]
        move = batch_to_cuda(source) if calls else None
        if move is None:
            return
        for call in calls:
            yield source.finding(
                self.id,
                call,
                "batches of this DataLoader lie in pageable memory, from which a copy to the GPU makes the host wait",
                "add pin_memory=True, and non_blocking=True where the batch is moved",
                evidence=f"line {move.lineno} moves a batch to the GPU: {ast.unparse(move)}",
                fix=_fix(source, call, move),
            )


def _fix(source: Source, call: ast.Call, move: ast.Call) -> Fix | None:
    assert isinstance(move.func, ast.Attribute)
    its_own = source.value(move.func.value).loader is call and collates_tensors(call)
    left_open = argument(call, "pin_memory", _POSITION) is None
    edit = set_argument(source, call, "pin_memory", _POSITION, "True")
    return fix("Pin the batches", edit, safe=its_own and left_open)
