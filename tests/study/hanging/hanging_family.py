"""Two engines and a subject for studies in which something hangs. ``PLANTED`` says where and how: ``build:holds_gil``.

Tests only. Both engines leave out what makes the subject slow; the one that is expected to be faster hangs.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from togi.core.errors import Refused
from togi.techniques.base import Applies, Engine, GraphRewrite

PLACE, _, HOW = os.environ.get("PLANTED", "").partition(":")
SLOW_S = 0.004


def sleeps() -> None:
    if threading.current_thread() is threading.main_thread():  # others may not
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


def holds_gil() -> None:
    ctypes.PyDLL(None).sleep(1000)


def stops() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    sleeps()


def floods_log() -> None:
    while True:
        os.write(1, b"nothing new\n" * 5000)


def floods_channels() -> None:
    while True:
        for fd in range(3, 64):
            try:
                os.write(fd, b"nothing of interest\n" * 500)
            except OSError:
                continue


def kills_server() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    sleeps()


def stops_server() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    sleeps()


def planted(place: str) -> None:
    if place == PLACE:
        globals()[HOW or "sleeps"]()


def inside(function: str) -> bool:
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False


class Planted(Engine):
    """Hangs where it is told to."""

    id = "planted"
    hangs = True

    def applies(self, facts: Any) -> Applies:
        return Applies()

    def expected_speedup(self, facts: Any, options: Any) -> float:
        return 4.0

    def cost_s(self, facts: Any, options: Any) -> float:
        return 1.5

    def apply(self, candidate: Any, options: Any) -> Any:
        if self.hangs:
            planted("build")
        net = candidate.module.net
        weights = {"weight": net.weight.detach().clone(), "bias": net.bias.detach().clone()}
        return candidate.with_(program=_program(weights, candidate.signature, self.hangs))

    def load(self, folder: Path, meta: Any, signature: Any, threads: Any) -> Any:
        from safetensors.torch import load_file

        if self.hangs:
            planted("load")
        return _program(load_file(folder / "weights.safetensors"), signature, self.hangs)


class Healthy(Planted):
    """The same without harm."""

    id = "healthy"
    hangs = False

    def expected_speedup(self, facts: Any, options: Any) -> float:
        return 3.0


class Rewrites(GraphRewrite):
    """Hangs while the study finds out which rewrites have nothing to do."""

    id = "planted_rewrite"

    def applies(self, facts: Any) -> Applies:
        return Applies()

    def expected_speedup(self, facts: Any, options: Any) -> float:
        return 1.0

    def edit(self, *arguments: Any) -> Any:
        planted("rewrites")
        raise Refused("there is nothing to do")


def _program(weights: Any, signature: Any, hangs: bool) -> Any:
    import torch
    from safetensors.torch import save_file

    from togi.graph.candidate import FlatProgram

    class Program(FlatProgram):
        calls = 0
        busy = 0

        def run(self, inputs: Any) -> Any:
            if PLACE == "race":
                time.sleep(SLOW_S / 4)  # both are as fast: only what is near the fastest races
            if hangs:
                self.calls += 1
                self.harm()
            return [torch.nn.functional.linear(inputs[0], weights["weight"], weights["bias"])]

        def harm(self) -> None:
            planted("first_call")
            if self.calls == 4:
                planted("verify")
            if inside("take_turn"):
                planted("turn")
                if Path(os.environ.get("RACES", "nowhere")).exists():
                    planted("race")
            if inside("measure_footprint"):
                planted("memory")
            if PLACE == "callers":
                self.busy += 1
                time.sleep(0.002)
                if self.busy > 1:  # as two that wait for each other, while one of them holds the interpreter's lock
                    planted("callers")
                self.busy -= 1

        def save(self, folder: Path) -> dict[str, Any]:
            if hangs:
                planted("save")
            save_file(weights, folder / "weights.safetensors")
            return {}

    return Program(signature)


def subject() -> Any:
    import torch

    class Slow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(16, 4)
            self.calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            planted("original")
            if x.dtype == torch.float64:
                planted("truth")
            if torch.compiler.is_exporting():
                planted("capture")
            if inside("take_turn"):
                planted("original_turn")
            time.sleep(SLOW_S)
            return self.net(x)

    planted("factory")
    if PLACE == "exit":
        atexit.register(sleeps)
    if PLACE == "thread":
        threading.Thread(target=sleeps_in_a_thread).start()
    torch.manual_seed(0)
    return Slow(), torch.randn(8, 16)


def sleeps_in_a_thread() -> None:
    while True:
        time.sleep(1)
