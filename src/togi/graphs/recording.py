"""Captures one CUDA graph: what the engine ``cuda_graph`` and ``togi.graphs`` have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from togi.core.quantities import first_line
from togi.core.user_code import error_line
from togi.measure.memory import is_out_of_memory

_WARM_UPS = 3
"""Runs before the capture: libraries allocate and choose algorithms in their first ones, which a capture forbids."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """A captured graph with the memory it reads and writes. It is freed with the last reference to it."""

    replay: Callable[[], None]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


Capture = Callable[[Callable[..., Sequence[Tensor]], tuple[Tensor, ...]], Recording]


@final
class OnDevice:
    """Captures on the current device. One pool for all recordings: only one of them runs at a time, and what they
    return is copied before the next one does.

    A call raises torch.OutOfMemoryError where memory was refused, whoever says so in whatever words; else what the
    capture raises.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, flat: Callable[..., Sequence[Tensor]], inputs: tuple[Tensor, ...]) -> Recording:
        try:
            return self._captured(flat, inputs)
        except Exception as error:  # foreign code: the function, and the libraries below it
            if is_out_of_memory(_cause(error)):
                raise torch.OutOfMemoryError(first_line(_cause(error))) from error
            raise

    def _captured(self, flat: Callable[..., Sequence[Tensor]], inputs: tuple[Tensor, ...]) -> Recording:
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


@final
class StreamOrder:
    """For calls that go through the same memory, from whatever stream: each waits for the one before."""

    def __init__(self) -> None:
        self._stream: Any = None

    def after_the_last_call(self) -> None:
        """The current stream waits for that of the last call, if it is another one."""
        stream = torch.cuda.current_stream()
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream = stream


def why_not_captured(error: Exception) -> str:
    """What a capture raised, in a sentence, with the user's line that waits for the device."""
    line = error_line(_cause(error))
    return f"its kernels cannot be captured{line and f' at {line}'}: {first_line(_cause(error))}"


def _cause(error: Exception) -> BaseException:
    """Ending a capture that failed raises too."""
    return error.__context__ or error
