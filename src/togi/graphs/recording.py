"""Captures one CUDA graph: what the engine ``cuda_graph`` and ``togi.graphs`` have in common."""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from togi.core.quantities import first_line
from togi.core.user_code import error_line
from togi.graphs.waits import Waits, refuse_waits
from togi.measure.memory import is_out_of_memory
from togi.torch_internals.cuda import end_open_capture, free_workspaces

_WARM_UPS = 3
"""Runs before the capture: libraries allocate and choose algorithms in their first ones, which a capture forbids."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """A captured graph with the memory it reads and writes. It is freed with the last reference to it."""

    replay: Callable[[], None]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


_one_at_a_time = threading.RLock()
"""Held by the thread that captures. A capture sets what the process has once: torch's debug mode of waits, the filters
of warnings, the answer to who is capturing; and beginning one empties torch's cache, which another one forbids. It is
taken after a pool's lock, never before: what runs within a capture takes no pool's."""
_PATIENCE_S = 600.0
"""For another thread's capture, which may compile in its first runs."""


Flat = Callable[..., Sequence[Tensor]]
Capture = Callable[[Flat, tuple[Tensor, ...]], Recording]
_here = threading.local()


@contextmanager
def capturing() -> Iterator[None]:
    """Mark this thread as capturing. What warms up for a capture runs as the capture does: a captured function within
    it is a part of both."""
    before = getattr(_here, "capturing", False)
    _here.capturing = True
    try:
        yield
    finally:
        _here.capturing = before


def is_capturing() -> bool:
    """Return whether togi captures on this thread, or warms up for it."""
    return bool(getattr(_here, "capturing", False))


@contextmanager
def _in_turn() -> Iterator[None]:
    """No other thread captures in the block. Raises RuntimeError if one does not end, rather than wait for ever."""
    if not _one_at_a_time.acquire(timeout=_PATIENCE_S):
        raise RuntimeError(
            f"another thread has been capturing a CUDA graph for {_PATIENCE_S:g} s, and captures take turns. If its "
            "function waits for this thread, call what captures here once before: it is not captured again"
        )
    try:
        yield
    finally:
        _one_at_a_time.release()


class OnDevice:
    """Captures on the current device. One pool for all recordings: only one of them runs at a time, and what they
    return is copied before the next one does. One stream for all captures, as torch's documentation asks for one pool.

    cuBLAS keeps a workspace for each stream, whose address is part of a graph. It is freed before and after each
    capture, so that every graph has its own, in its pool: graphs of two pools may run at once, and none reads what
    dropping another one freed (pytorch #193402).

    Captures of several threads take turns. A call raises torch.OutOfMemoryError where memory was refused, whoever says
    so in whatever words; Waits, before any capture, where the function waits for the device; else what the function
    raised, or the capture.
    """

    def __init__(self) -> None:
        self._live: weakref.WeakSet[Recording] = weakref.WeakSet()
        self._pool: Any = None
        self._stream: Any = None
        """Made by the first capture, since it starts CUDA."""

    def __call__(self, flat: Flat, inputs: tuple[Tensor, ...]) -> Recording:
        try:
            with _in_turn(), capturing():
                _warm_up(flat, inputs)
                recording = self._captured(flat, inputs)
        except Exception as error:  # foreign code: the function, and the libraries below it
            if is_out_of_memory(error):
                raise torch.OutOfMemoryError(first_line(error)) from error
            raise
        self._live.add(recording)
        return recording

    def _captured(self, flat: Flat, inputs: tuple[Tensor, ...]) -> Recording:
        if not self._live:  # torch refuses a pool whose graphs are all gone, for as long as anything in it lives
            self._pool = torch.cuda.graph_pool_handle()
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        with self._capture(graph):
            free_workspaces()
            try:
                outputs = tuple(flat(*inputs))
            finally:
                free_workspaces()
        return Recording(replay=graph.replay, inputs=inputs, outputs=outputs)

    @contextmanager
    def _capture(self, graph: Any) -> Iterator[None]:
        """Capture what runs inside. What is raised there goes through, even if the capture cannot be ended after it."""
        # What other threads do with the device meanwhile (a loader that pins memory) is no fault of this capture.
        capture = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with torch.cuda.stream(self._stream):  # a capture that cannot be ended leaves its stream the current one
            capture.__enter__()
            try:
                with torch.cuda.stream(self._stream):  # the function may leave another one
                    yield
            except BaseException:
                with suppress(Exception):
                    self._end(capture, graph)
                raise
            self._end(capture, graph)

    def _end(self, capture: Any, graph: Any) -> None:
        try:
            capture.__exit__(None, None, None)
        except Exception:
            self._repair(graph)
            raise

    def _repair(self, graph: Any) -> None:
        """After a capture that could not be ended: before torch 2.14 the allocator and the random numbers of the whole
        process stay in it (pytorch #180395, #190348). Neither this pool nor its stream is used again."""
        end_open_capture(graph, self._pool)
        self._live.clear()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # The next capture that ends frees the random numbers. None does if the device itself has failed.
        with suppress(RuntimeError), torch.cuda.stream(self._stream), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is empty
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._stream, capture_error_mode="thread_local"):
                pass


def _warm_up(flat: Flat, inputs: tuple[Tensor, ...]) -> None:
    stream = _warm_up_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS - 1):
            flat(*inputs)
        refuse_waits(lambda: flat(*inputs))  # the last one: the first may wait for what it sets up
    torch.cuda.current_stream().wait_stream(stream)


@functools.cache
def _warm_up_stream(_device: int) -> Any:
    """One for all captures, and another one than theirs: on Hopper cuBLAS takes 32 MiB for each stream, outside of the
    pool where it does so before the capture."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class StreamOrder:
    """The order of calls that go through the same memory, from whatever stream: each waits for the one before."""

    def __init__(self) -> None:
        self._stream: Any = None

    def after_the_last_call(self) -> None:
        """The current stream waits for that of the last call, if it is another one."""
        stream = torch.cuda.current_stream()
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream = stream


def why_not_captured(error: Exception) -> str:
    """Put what a capture raised into a sentence, with the user's line."""
    line = error_line(error)
    return f"its kernels cannot be captured{line and f' at {line}'}: {first_line(error)}"


def what_to_do(error: Exception) -> str:
    """Say in a sentence what to do about what a capture raised."""
    if isinstance(error, Waits) or "captur" in str(error):  # "operation not permitted when stream is capturing"
        return "A CUDA graph cannot wait for the device: move that out of the function"
    return "Mend that, or call the function as it is"
