"""The watched region: modes, patches and marks together, on every thread that is started inside of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from togi.lint.trace.cuda_functions import patch_cuda
from togi.lint.trace.dispatch import OperatorWatch
from togi.lint.trace.functions import FunctionWatch
from togi.lint.trace.patches import Patches
from togi.lint.trace.placement import CUDA, place
from togi.lint.trace.recorder import Recorder
from togi.lint.trace.tensor_methods import patch_appearance, patch_moves, patch_reads
from togi.subject.inputs import Inputs
from togi.torch_internals.compiler import import_dynamo
from togi.torch_internals.cuda_simulation import cuda_can_be_named

import_dynamo()  # before anything is replaced: it keeps what it finds in torch.cuda when it is imported


@contextlib.contextmanager
def watching(recorder: Recorder, *, simulated: bool) -> Iterator[None]:
    """Inside, what marked tensors do is recorded. Not reentrant; for a process of its own.

    Args:
        simulated: tensors, ``torch.cuda`` and factories answer as with a GPU. Without it the subject sees the CPU that
            it runs on, and only reads, dynamic sizes and layouts of marked tensors are recorded.
    """
    patches = Patches()
    patch_reads(patches, recorder)
    patches.set(threading.Thread, "_bootstrap_inner", _watched_thread(recorder, simulated))
    if simulated:
        patch_moves(patches, recorder)
        patch_appearance(patches)
        patch_cuda(patches, recorder)
    eager = torch.compiler.set_stance("force_eager")
    with patches, cuda_can_be_named() if simulated else contextlib.nullcontext(), eager, _modes(recorder, simulated):
        yield


def mark_subject(module: nn.Module, samples: tuple[Inputs, ...]) -> None:
    """Say that the module's parameters and buffers and the samples lie on the GPU. Other tensors do not, just as
    ``module.to("cuda")`` would leave them."""
    for tensor in (*module.parameters(), *module.buffers()):
        place(tensor.data, CUDA)
        if tensor.grad is not None:
            place(tensor.grad, CUDA)
    for sample in samples:
        sample.map(lambda tensor: place(tensor, CUDA))


@contextlib.contextmanager
def _modes(recorder: Recorder, simulated: bool) -> Iterator[None]:
    with FunctionWatch(recorder, simulated=simulated), OperatorWatch(recorder, simulated=simulated):
        yield


def _watched_thread(recorder: Recorder, simulated: bool) -> Callable[[threading.Thread], None]:
    """Modes belong to a thread: one that is started inside gets its own."""
    original: Callable[[Any], None] = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def bootstrap(thread: threading.Thread) -> None:
        with _modes(recorder, simulated):
            original(thread)

    return bootstrap
