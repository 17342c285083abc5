"""A thread in the middle of ``torch.export``, while the test calls something else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_LONGEST_S = 60.0


class _Waiting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reached, self.may_go_on = threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        self.reached.set()
        self.may_go_on.wait(_LONGEST_S)
        return x * 2


@contextmanager
def exporting_elsewhere() -> Iterator[None]:
    """During the block another thread exports a module. Then its graph has to hold what that module calls alone."""
    module, exported = _Waiting(), list[torch.export.ExportedProgram]()
    thread = threading.Thread(
        target=lambda: exported.append(torch.export.export(module, (torch.ones(3),), strict=False)), daemon=True
    )
    thread.start()
    try:
        assert module.reached.wait(_LONGEST_S)
        assert torch.compiler.is_exporting()
        yield
    finally:
        module.may_go_on.set()
        thread.join(_LONGEST_S)
    called = [node.target for node in exported[0].graph.nodes if node.op == "call_function"]
    assert called == [torch.ops.aten.mul.Tensor]
