"""Callers on a CUDA device, shown without one: streams are queues of their own, which end when they are waited for."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pytest
import torch

from togi.measure import Turn, callers_on, take_turn, wait_for
from togi.subject.inputs import Inputs

SHORT_MS, LONG_MS = 1.0, 200.0


class Device:
    """Works off what streams are given, each in its own order and all at once. Refuses what no thread may do."""

    def __init__(self) -> None:
        self.done_at: dict[object, float] = defaultdict(float)
        self.default = Stream(self)
        self.current = threading.local()
        self.asker = threading.current_thread()
        self.used: dict[threading.Thread, set[object]] = defaultdict(set)

    def stream(self) -> Stream:
        found: Stream = getattr(self.current, "stream", self.default)
        return found

    def set_stream(self, stream: Stream) -> None:
        self.current.stream = stream

    def launch(self, work_ms: float) -> None:
        stream = self.stream()
        self.used[threading.current_thread()].add(stream)
        self.done_at[stream] = max(self.done_at[stream], time.perf_counter()) + work_ms * 1e-3

    def busy(self) -> bool:
        return any(at > time.perf_counter() for at in self.done_at.values())

    def synchronize(self) -> None:
        assert threading.current_thread() is self.asker, "a caller waits for what others have queued"
        for stream in list(self.done_at):
            stream.synchronize()


class Stream:
    def __init__(self, device: Device) -> None:
        self.device = device

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.device.done_at[self] - time.perf_counter()))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream(found))
    monkeypatch.setattr(torch.cuda, "set_stream", found.set_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", found.stream)
    monkeypatch.setattr(torch.cuda, "synchronize", found.synchronize)
    return found


def turn(device: Device, on: str) -> Turn:
    callers = callers_on(2, on)
    try:
        samples = [Inputs((LONG_MS,)), *[Inputs((SHORT_MS,))] * 19]
        return take_turn(device.launch, samples, 1, callers=callers, device="cuda")
    finally:
        callers.close()


def test_a_caller_waits_for_its_own_work_alone(device: Device) -> None:
    found = turn(device, "cuda")
    assert found.call_ms is not None
    assert found.call_ms < LONG_MS / 2, "95 of 100 calls are short ones, which need not wait for a long one"
    streams = [stream for thread, used in device.used.items() if thread is not device.asker for stream in used]
    assert len(set(streams)) == len(streams) == 2
    assert device.default not in streams
    assert not device.busy(), "what the last caller queued is part of the time"


def test_what_a_caller_is_given_is_there_and_what_it_gives_back_too(device: Device) -> None:
    """Tensors are made, and compared, on the stream of whoever asks."""
    callers, seen = callers_on(3, "cuda"), []
    device.launch(20.0)
    callers.answer(lambda _: seen.append(device.busy()), 1)
    assert seen == [False]
    callers.answer(lambda _: device.launch(20.0), 3)
    assert not device.busy()
    callers.close()


def test_on_a_cpu_there_is_nothing_to_wait_for(device: Device) -> None:
    callers = callers_on(2, "cpu")
    device.asker = threading.Thread()  # nobody may wait for the device
    callers.answer(lambda _: callers.after(), 4)
    wait_for("cpu")()
    callers.close()
    assert [wait_for(name) for name in ("cuda", "cuda:1")] == [device.synchronize] * 2
