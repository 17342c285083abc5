"""CUDA graphs captured by hand: one for each combination of input sizes, up to a limit."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.graphs.recording import Capture, OnDevice, Recording, StreamOrder, is_capturing, why_not_captured


class CudaGraphs:
    """Replays the recording for the sizes at hand; beyond ``limit`` sizes it runs in eager. So it does for sizes whose
    capture failed, which count too: a warning says so, and no later call tries again.

    Within a capture that is under way (the caller's own, or ``torch.compile``'s) it runs as it is, as a part of that
    one. A capture of its own waits for the whole device, and empties torch's cache of its memory.

    Several threads may call it, on streams of their own: a lock keeps their calls apart on the host, and a stream that
    is not the last call's waits for it, since all calls go through the same inputs and outputs.
    """

    def __init__(self, flat: Callable[..., Sequence[Tensor]], limit: int, capture: Capture | None = None) -> None:
        self.flat = flat
        self.limit = limit
        self.capture = capture or OnDevice()
        self.recordings: dict[Any, Recording | None] = {}
        """By sizes and strides; None where they cannot be captured."""
        self._lock = threading.Lock()
        self._order = StreamOrder()

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        if is_capturing() or torch.cuda.is_current_stream_capturing():
            return self.flat(*inputs)
        with self._lock:
            if (recording := self._recording_if_any(inputs)) is not None:
                self._order.after_the_last_call()
                for mine, caller_input in zip(recording.inputs, inputs, strict=True):
                    mine.copy_(caller_input.detach())  # values alone: a copy would keep what computed it
                recording.replay()
                return [tensor.clone() for tensor in recording.outputs]
        return self.flat(*inputs)

    def recording(self, inputs: Sequence[Tensor]) -> Recording | None:
        """The recording for such inputs, made where there is none yet; None beyond the limit. Raises what the capture
        raises."""
        key = _key(inputs)
        if key not in self.recordings and len(self.recordings) < self.limit:
            # Not inference tensors, whatever mode this call runs in: a later call in another mode writes to them.
            with torch.inference_mode(False), torch.no_grad():
                mine = tuple(torch.empty_like(tensor).copy_(tensor) for tensor in inputs)
                self.recordings[key] = self.capture(self.flat, mine)
        return self.recordings.get(key)

    def _recording_if_any(self, inputs: Sequence[Tensor]) -> Recording | None:
        """The same; None too where these sizes cannot be captured. Other kernels serve other sizes, and some of them
        wait for the device, or find no room in the memory of a graph."""
        try:
            return self.recording(inputs)
        except Exception as error:  # foreign code: the function, and the libraries below it
            self.recordings[_key(inputs)] = None
            sizes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
            warnings.warn(
                f"calls with inputs of the sizes {sizes} run without a CUDA graph: {why_not_captured(error)}",
                stacklevel=2,
            )
            return None


def _key(inputs: Sequence[Tensor]) -> Any:
    return tuple((tensor.shape, tensor.stride()) for tensor in inputs)
