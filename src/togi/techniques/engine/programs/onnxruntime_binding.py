"""Tensors as ONNX Runtime binds them, and sessions that replay a CUDA graph, for which they are bound once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.core.records import TensorFacts


def place(tensor: Tensor) -> tuple[str, int, int, list[int], int]:
    """The place of a tensor in memory, as ONNX Runtime binds it."""
    device = tensor.device
    return device.type, device.index or 0, _element_type(tensor), list(tensor.shape), tensor.data_ptr()


def empty(facts: TensorFacts, device: str) -> Tensor | None:
    """Memory for a tensor whose sizes are fixed; None for others."""
    sizes = [size for size in facts.shape if size is not None]
    if len(sizes) < len(facts.shape):
        return None
    return torch.empty(sizes, dtype=getattr(torch, facts.dtype), device=device)


def _element_type(tensor: Tensor) -> int:
    """The number of the tensor's type in ONNX (TensorProto.DataType)."""
    from onnx import TensorProto

    names = {"float32": "FLOAT", "float64": "DOUBLE"}
    name = str(tensor.dtype).removeprefix("torch.")
    return int(TensorProto.DataType.Value(names.get(name, name.upper())))


def _empty(facts: TensorFacts, device: str) -> Tensor:
    memory = empty(facts, device)
    assert memory is not None, "one of its sizes varies"
    return memory


class ReplayedSession:
    """A session that captures its kernels in its first run, with the addresses that are bound then. Inputs are copied
    to those, and outputs from those; callers wait for each other.

    Source: https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html#using-cuda-graphs-preview
    """

    def __init__(
        self, session: Any, inputs: Mapping[str, TensorFacts], outputs: Mapping[str, TensorFacts], device: str
    ) -> None:
        """``inputs``, ``outputs``: by name, with fixed sizes."""
        # not inference tensors, whatever mode this call runs in: a later call in another mode writes to them
        with torch.inference_mode(False):
            self._inputs, self._outputs = ([_empty(port, device) for port in of.values()] for of in (inputs, outputs))
        self._session, self._binding, self._one_call = session, session.io_binding(), threading.Lock()
        for name, tensor in zip(inputs, self._inputs, strict=True):
            self._binding.bind_input(name, *place(tensor))
        for name, tensor in zip(outputs, self._outputs, strict=True):
            self._binding.bind_output(name, *place(tensor))

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Fresh outputs."""
        with self._one_call:
            for mine, tensor in zip(self._inputs, inputs, strict=True):
                mine.copy_(tensor.detach())  # values alone: a copy would keep what computed it
            torch.cuda.current_stream().synchronize()  # the session reads on a stream of its own
            self._session.run_with_iobinding(self._binding)
            own = [output.clone() for output in self._outputs]
            torch.cuda.current_stream().synchronize()  # before another caller's run writes there
            return own
