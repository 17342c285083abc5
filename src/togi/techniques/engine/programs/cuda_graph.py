"""CUDA graphs captured by hand: one for each combination of input sizes, up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

_WARM_UPS = 3
"""Runs before the capture: libraries allocate and choose algorithms in their first ones, which a capture forbids."""


@final
@dataclass(frozen=True, kw_only=True)
class Recording:
    """A captured graph with the memory it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@final
class CudaGraphs:
    """Replays the recording for the sizes at hand; beyond ``limit`` sizes it runs in eager. For one thread at a
    time."""

    def __init__(self, flat: Callable[..., Sequence[Tensor]], limit: int) -> None:
        self.flat = flat
        self.limit = limit
        self.recordings: dict[Any, Recording] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        key = tuple((tensor.shape, tensor.stride()) for tensor in inputs)
        recording = self.recordings.get(key)
        if recording is None:
            if len(self.recordings) >= self.limit:
                return self.flat(*inputs)
            recording = self.recordings[key] = self._record(inputs)
        for mine, given in zip(recording.inputs, inputs, strict=True):
            mine.copy_(given)
        recording.graph.replay()
        return [tensor.clone() for tensor in recording.outputs]

    def _record(self, inputs: Sequence[Tensor]) -> Recording:
        with torch.no_grad():
            mine = tuple(torch.empty_like(tensor).copy_(tensor) for tensor in inputs)
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UPS):
                    self.flat(*mine)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # One pool for all: only one of them runs at a time, and what they return is copied at once.
            with torch.cuda.graph(graph, pool=self.pool):
                outputs = tuple(self.flat(*mine))
        return Recording(graph=graph, inputs=mine, outputs=outputs)
