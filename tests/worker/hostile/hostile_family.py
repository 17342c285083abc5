"""Techniques that misbehave in every way known, found through an entry point like any third party's. Tests only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

from togi.core.records import Stage
from togi.techniques.base import Applies, Technique


class Hostile(Technique):
    """Applies to everything, does its harm while it is built."""

    stage = Stage.REWRITE
    conflicts = frozenset({"hostile"})
    provides = frozenset({"hostile"})

    def applies(self, facts: Any) -> Applies:
        return Applies()

    def expected_speedup(self, facts: Any, options: Any) -> float:
        return 2.0

    def apply(self, candidate: Any, options: Any) -> Any:
        self.harm(candidate)
        return candidate

    def harm(self, candidate: Any) -> None:
        raise NotImplementedError


class HostileRaises(Hostile):
    id = "hostile_raises"

    def harm(self, candidate: Any) -> None:
        raise ValueError("deliberately unhelpful\nsecond line")


class HostileHangs(Hostile):
    id = "hostile_hangs"

    def harm(self, candidate: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)


class HostileSegfaults(Hostile):
    id = "hostile_segfaults"

    def harm(self, candidate: Any) -> None:
        import ctypes

        ctypes.string_at(0)


class HostileAborts(Hostile):
    id = "hostile_aborts"

    def harm(self, candidate: Any) -> None:
        os.abort()


class HostileAllocates(Hostile):
    id = "hostile_allocates"

    def harm(self, candidate: Any) -> None:
        held = []
        while True:
            held.append(bytearray(os.urandom(1 << 20)) * 32)
            time.sleep(0.01)


class HostileExits(Hostile):
    id = "hostile_exits"

    def harm(self, candidate: Any) -> None:
        os._exit(0)


class HostileWrites(Hostile):
    """Writes rubbish, also half a frame, to every descriptor it finds, and prints a lot."""

    id = "hostile_writes"

    def harm(self, candidate: Any) -> None:
        print("rubbish " * 10_000)
        for fd in range(3, 64):
            try:
                os.write(fd, b'{"verified": {}}\n{"ready": true}\ngarbage without an end')
            except OSError:
                continue


class HostileMutates(Hostile):
    id = "hostile_mutates"

    def harm(self, candidate: Any) -> None:
        next(candidate.module.parameters()).data.mul_(1.5)


class HostileForks(Hostile):
    """Leaves children behind: one in its group, one in a session of its own."""

    id = "hostile_forks"

    def harm(self, candidate: Any) -> None:
        command = [sys.executable, "-c", "import time; time.sleep(600)", "togi-hostile-orphan"]
        subprocess.Popen(command)
        subprocess.Popen(command, start_new_session=True)
        raise RuntimeError("left two behind")


class _Calls(Hostile):
    """Misbehaves when it is called: ``call(original, x)`` replaces the forward pass."""

    def apply(self, candidate: Any, options: Any) -> Any:
        from togi.techniques.engine.programs.exported import ExportableProgram

        return candidate.with_(program=ExportableProgram(candidate, self.wrapped(candidate.module)))

    def wrapped(self, module: Any) -> Any:
        raise NotImplementedError


class HostileNan(_Calls):
    id = "hostile_nan"

    def wrapped(self, module: Any) -> Any:
        return lambda x: module(x) * float("nan")


class HostileStale(_Calls):
    """Answers with the first result for ever."""

    id = "hostile_stale"

    def wrapped(self, module: Any) -> Any:
        memory: list[Any] = []

        def call(x: Any) -> Any:
            if not memory:
                memory.append(module(x))
            return memory[0].clone()

        return call


class HostileAliased(_Calls):
    """Returns the same buffer every time, filled anew."""

    id = "hostile_aliased"

    def wrapped(self, module: Any) -> Any:
        buffers: dict[Any, Any] = {}

        def call(x: Any) -> Any:
            out = module(x)
            buffer = buffers.setdefault(out.shape, out.clone())
            buffer.copy_(out)
            return buffer

        return call


class HostileInputs(_Calls):
    """Overwrites its input after use."""

    id = "hostile_inputs"

    def wrapped(self, module: Any) -> Any:
        def call(x: Any) -> Any:
            out = module(x)
            x.zero_()
            return out

        return call


class HostileSticky(_Calls):
    """Fails at its second call, and at every call after it, as after a CUDA error: only a new process mends it."""

    id = "hostile_sticky"

    def wrapped(self, module: Any) -> Any:
        calls: list[Any] = []

        def call(x: Any) -> Any:
            calls.append(x)
            if len(calls) > 1:
                raise RuntimeError("CUDA error: device-side assert triggered")
            return module(x)

        return call


class HostileSlow(_Calls):
    """Right, but slow: must never win. Its program tells of its calls."""

    id = "hostile_slow"

    def apply(self, candidate: Any, options: Any) -> Any:
        applied = super().apply(candidate, options)
        applied.program.notes = lambda: ["slept at every call"]
        return applied

    def wrapped(self, module: Any) -> Any:
        def call(x: Any) -> Any:
            time.sleep(0.01)
            return module(x)

        return call
