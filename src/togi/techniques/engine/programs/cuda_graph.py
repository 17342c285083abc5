"""CUDA graphs captured by hand: one for each combination of input sizes, up to a limit."""

from __future__ import annotations

import threading
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

    replay: Callable[[], None]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


Capture = Callable[[Callable[..., Sequence[Tensor]], tuple[Tensor, ...]], Recording]


@final
class CudaGraphs:
    """Replays the recording for the sizes at hand; beyond ``limit`` sizes it runs in eager.

    Several threads may call it, on streams of their own: a lock keeps their calls apart on the host, and a stream that
    is not the last call's waits for it, since all calls go through the same inputs and outputs.
    """

    def __init__(self, flat: Callable[..., Sequence[Tensor]], limit: int, capture: Capture | None = None) -> None:
        self.flat = flat
        self.limit = limit
        self.capture = capture or OnDevice()
        self.recordings: dict[Any, Recording] = {}
        self._lock = threading.Lock()
        self._stream: Any = None

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        with self._lock:
            if (recording := self.recording(inputs)) is not None:
                self._after_the_last_call()
                for mine, given in zip(recording.inputs, inputs, strict=True):
                    mine.copy_(given)
                recording.replay()
                return [tensor.clone() for tensor in recording.outputs]
        return self.flat(*inputs)

    def recording(self, inputs: Sequence[Tensor]) -> Recording | None:
        """For such inputs; made where there is none yet, and None beyond the limit. Raises what the capture raises."""
        key = tuple((tensor.shape, tensor.stride()) for tensor in inputs)
        if key not in self.recordings and len(self.recordings) < self.limit:
            # Not inference tensors, whatever mode this call runs in: a later call in another mode writes to them.
            with torch.inference_mode(False), torch.no_grad():
                mine = tuple(torch.empty_like(tensor).copy_(tensor) for tensor in inputs)
                self.recordings[key] = self.capture(self.flat, mine)
        return self.recordings.get(key)

    def _after_the_last_call(self) -> None:
        stream = torch.cuda.current_stream()
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream = stream


@final
class OnDevice:
    """Captures on the current device. One pool for all recordings: only one of them runs at a time, and what they
    return is copied at once."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, flat: Callable[..., Sequence[Tensor]], inputs: tuple[Tensor, ...]) -> Recording:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                flat(*inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # What other threads do with the device meanwhile (a loader that pins memory) is no fault of this capture.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            outputs = tuple(flat(*inputs))
        return Recording(replay=graph.replay, inputs=inputs, outputs=outputs)
