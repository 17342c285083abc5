"""Stands for CUDA where a capture is made: it refuses what torch and the driver refuse, and keeps cuBLAS's workspaces.

Modelled on c10/cuda/CUDACachingAllocator.cpp (``create_or_incref_pool``, ``endAllocateToPool``, ``empty_cache``), on
aten/src/ATen/cuda/CUDAGraph.cpp (``capture_end``, ``reset``), torch/cuda/graphs.py and CublasHandlePool.cpp.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from togi.torch_internals import cuda

SYNCHRONIZES = "called a synchronizing CUDA operation"


def of_torch(function: Any) -> Any:
    """Its frames are torch's: the innermost line of the user's is that of the call."""
    function.__code__ = function.__code__.replace(co_filename="<torch>")
    return function


class Stream:
    def __init__(self, name: str) -> None:
        self.name = name

    def wait_stream(self, other: Stream) -> None: ...


class Graph:
    """Drops its count of the pool as it goes, if its capture ended."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.pool, self.stream = runtime, "", None
        self.workspace: str | None = None
        """Whose memory its products write to: a pool, or ``eager``."""

    def replay(self) -> None:
        if self.workspace is not None and (self.workspace != self.pool or not self.runtime.graphs[self.pool]):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def begin(self, pool: str, stream: Stream) -> None:
        others = {each.pool for each in self.runtime.live if each.stream is stream} - {pool}
        if others:
            raise RuntimeError(f"graphs of {sorted(others)} share {stream.name}, and so a workspace, with {pool}")
        self.runtime.enter(pool)
        self.pool, self.stream = pool, stream

    def __del__(self) -> None:
        if self.stream is not None and self.pool not in self.runtime.leaked:
            self.runtime.leave(self.pool, self.stream)


class Runtime:
    """One device of one process.

    Args:
        ends_failed_captures: as torch 2.13 and newer do (pytorch #180395).
        drops_free_workspaces: as torch 2.12 and newer do (pytorch #175276).
    """

    def __init__(self, *, ends_failed_captures: bool, drops_free_workspaces: bool) -> None:
        self.ends_failed_captures, self.drops_free_workspaces = ends_failed_captures, drops_free_workspaces
        self.handles, self.names = itertools.count(1), itertools.count(1)
        self.graphs: Counter[str] = Counter()
        """Live graphs by pool."""
        self.entries: set[str] = set()
        """Pools that the allocator knows: an entry goes with ``empty_cache``, if nothing in the pool lives."""
        self.workspaces: dict[Stream, str] = {}
        """By stream, where its workspace lies: a pool, or ``eager``."""
        self.open: list[str] = []
        self.leaked: set[str] = set()
        self.default = self.current = Stream("default")
        self.streams: list[Stream] = []
        self.captures: list[tuple[str, Stream]] = []
        self.live: weakref.WeakSet[Graph] = weakref.WeakSet()
        self.mode = 0
        self.capturing: Graph | None = None
        self.broken = False
        """The capture that is under way is no longer valid."""
        self.random_in_capture = False
        self.cleared = 0

    # --- what a function does on the device

    def product(self) -> None:
        """A kernel of cuBLAS on the current stream."""
        place = self.workspaces.setdefault(self.current, self.capturing.pool if self.capturing else "eager")
        if self.capturing is not None:
            self.capturing.workspace = place

    @of_torch
    def wait(self) -> None:
        """``.item()``."""
        if self.mode == 2:
            raise RuntimeError(SYNCHRONIZES)
        if self.mode == 1:
            warnings.warn(SYNCHRONIZES, stacklevel=2)
        self.stop()

    @of_torch
    def stop(self) -> None:
        """What the debug mode does not see: ``torch.cuda.synchronize()``."""
        if self.capturing is not None:
            self.broken = True
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def random(self) -> None:
        if self.random_in_capture and self.capturing is None:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    # --- the allocator

    def enter(self, pool: str) -> None:
        if pool in self.entries and not self.graphs[pool]:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        if pool in self.open:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.entries.add(pool)
        self.graphs[pool] += 1
        self.open.append(pool)

    def end(self, pool: str) -> None:
        if pool not in self.open:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.open.remove(pool)

    def leave(self, pool: str, stream: Stream) -> None:
        if self.drops_free_workspaces:
            self.workspaces.pop(stream, None)
        self.graphs[pool] -= 1

    def empty_cache(self) -> None:
        if self.open:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
        self.entries = {pool for pool in self.entries if self.graphs[pool] or pool in self.workspaces.values()}

    def held(self) -> set[str]:
        """Pools whose memory is not given back."""
        gc.collect()
        self.empty_cache()
        return self.entries

    # --- torch.cuda

    def new_stream(self) -> Stream:
        self.streams.append(Stream(f"stream {next(self.names)}"))
        return self.streams[-1]

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = self

        class Capture:
            def __init__(self, graph: Graph, pool: str = "", stream: Any = None, **_: Any) -> None:
                self.graph, self.pool = graph, pool or f"own {next(runtime.handles)}"
                self.stream = stream or runtime.default

            def __enter__(self) -> None:
                assert runtime.capturing is None, "one capture at a time"
                runtime.empty_cache()
                runtime.current = self.stream  # as torch does: back only when the capture ended
                self.before = runtime.default
                self.graph.begin(self.pool, self.stream)
                runtime.captures.append((self.pool, self.stream))
                runtime.capturing, runtime.random_in_capture, runtime.broken = self.graph, True, False

            def __exit__(self, *_: object) -> None:
                assert runtime.current is self.stream, "Capture must end on the same stream it began on."
                runtime.capturing = None
                if runtime.ends_failed_captures or not runtime.broken:
                    runtime.end(self.pool)
                if runtime.broken:
                    runtime.leaked.add(self.pool)
                    raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
                runtime.random_in_capture = False
                runtime.live.add(self.graph)
                runtime.current = self.before

        def release(_: int, pool: str) -> None:
            self.graphs[pool] -= 1

        def clear() -> None:
            self.workspaces.clear()
            self.cleared += 1

        replaced = {
            "graph_pool_handle": lambda: f"pool {next(self.handles)}",
            "Stream": self.new_stream,
            "stream": self.on,
            "current_stream": lambda *_: self.current,
            "current_device": lambda: 0,
            "CUDAGraph": lambda: Graph(self),
            "graph": Capture,
            "synchronize": lambda *_: self.stop(),
            "empty_cache": self.empty_cache,
            "get_sync_debug_mode": lambda: self.mode,
            "set_sync_debug_mode": self.set_mode,
            "is_current_stream_capturing": lambda: self.capturing is not None,
        }
        for name, stand_in in replaced.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        private = {
            "_cuda_clearCublasWorkspaces": clear,
            "_cuda_endAllocateToPool": lambda _, pool: self.end(pool),
            "_cuda_releasePool": release,
        }
        for name, stand_in in private.items():
            monkeypatch.setattr(cuda.torch._C, name, stand_in, raising=False)

    def set_mode(self, mode: int | str) -> None:
        self.mode = {"default": 0, "warn": 1, "error": 2}.get(mode, mode) if isinstance(mode, str) else mode
