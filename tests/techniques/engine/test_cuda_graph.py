"""The CUDA graph engine's bookkeeping, with a capture that replays by calling: no device is needed."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.techniques.engine.engine_subjects import candidate_of
from togi.core.errors import Refused
from togi.graphs import recording as recordings
from togi.graphs.recording import OnDevice, Recording
from togi.subject.inputs import Inputs
from togi.techniques import technique
from togi.techniques.conformance import check_no_graph_kept
from togi.techniques.engine.programs.cuda_graph import CudaGraphs


class Stream:
    def __init__(self) -> None:
        self.waited_for: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited_for.append(other)


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> dict[int, Stream]:
    """One a thread."""
    found: dict[int, Stream] = {}
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: found.setdefault(threading.get_ident(), Stream()))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return found


class Recorder:
    """A capture on the CPU: as a graph's, its replay reads and writes the memory of the recording."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.captured: list[torch.Size] = []
        self.pause_s = pause_s

    def __call__(self, flat: Callable[..., Sequence[Tensor]], inputs: tuple[Tensor, ...]) -> Recording:
        self.captured.append(inputs[0].shape)
        outputs = tuple(flat(*inputs))

        def replay() -> None:
            time.sleep(self.pause_s)
            for output, value in zip(outputs, flat(*inputs), strict=True):
                output.copy_(value)

        return Recording(replay=replay, inputs=inputs, outputs=outputs)


def double(x: Tensor) -> tuple[Tensor]:
    return (x * 2,)


def test_a_recording_made_in_inference_mode_serves_other_modes() -> None:
    graphs = CudaGraphs(double, limit=4, capture=Recorder())
    with torch.inference_mode():
        (first,) = graphs(torch.ones(3))
    (second,) = graphs(torch.full((3,), 5.0))
    with torch.no_grad():
        (third,) = graphs(torch.full((3,), 7.0))
    assert [t[0].item() for t in (first, second, third)] == [2, 10, 14], "and outputs outlive the next call"


def test_each_combination_of_sizes_and_strides_is_recorded_up_to_the_limit() -> None:
    recorder = Recorder()
    graphs = CudaGraphs(double, limit=2, capture=recorder)
    for shape in ((2, 3), (2, 3), (4, 3), (8, 3)):
        torch.testing.assert_close(graphs(torch.ones(shape))[0], torch.full(shape, 2.0))
    assert recorder.captured == [(2, 3), (4, 3)], "the third runs in eager"
    transposed = torch.arange(6.0).reshape(3, 2).T
    torch.testing.assert_close(graphs(transposed)[0], transposed * 2)
    assert len(recorder.captured) == 2


@pytest.mark.parametrize(
    "error", [RuntimeError("operation not permitted when stream is capturing"), torch.OutOfMemoryError("out")]
)
def test_a_size_that_cannot_be_captured_runs_in_eager_and_is_not_tried_again(error: Exception) -> None:
    class Fails(Recorder):
        def __call__(self, flat: Callable[..., Sequence[Tensor]], inputs: tuple[Tensor, ...]) -> Recording:
            recording = super().__call__(flat, inputs)
            if len(inputs[0]) == 9:
                raise error
            return recording

    recorder = Fails()
    graphs = CudaGraphs(double, limit=2, capture=recorder)
    graphs(torch.ones(4))
    with pytest.warns(UserWarning, match=r"the sizes \(9,\) run without a CUDA graph: its kernels cannot be captured"):
        (found,) = graphs(torch.ones(9))
    assert found.tolist() == [2.0] * 9
    with warnings.catch_warnings(action="error"):
        assert graphs(torch.full((9,), 3.0))[0].tolist() == [6.0] * 9
        assert graphs(torch.ones(5))[0].tolist() == [2.0] * 5, "beyond the limit"
        assert graphs(torch.ones(4))[0].tolist() == [2.0] * 4
    assert recorder.captured == [(4,), (9,)]


def test_a_recording_keeps_no_graph_of_its_caller() -> None:
    graphs = CudaGraphs(double, limit=1, capture=Recorder())
    for _ in range(2):
        check_no_graph_kept("it", graphs, Inputs((torch.ones(3),)))


def test_threads_take_turns_and_their_streams_wait(streams: dict[int, Stream]) -> None:
    graphs, wrong = CudaGraphs(double, limit=1, capture=Recorder(pause_s=0.002)), []

    def work(value: float) -> None:
        for _ in range(10):
            (found,) = graphs(torch.full((64,), value))
            if not bool((found == 2 * value).all()):
                wrong.append(value)
            time.sleep(0.001)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(stream.waited_for and stream not in stream.waited_for for stream in streams.values())


@pytest.fixture
def captured_with(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A device without a device: what ``torch.cuda.graph`` was asked for."""
    asked: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def graph(_: Any, **options: Any) -> Iterator[None]:
        asked.append(options)
        yield

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    for owner, name in ((torch.cuda, "set_sync_debug_mode"), (recordings, "free_workspaces")):
        monkeypatch.setattr(owner, name, lambda *_: None)
    monkeypatch.setattr(recordings, "end_open_capture", lambda *_: None)
    return asked


def test_other_threads_may_use_the_device_during_a_capture(captured_with: list[dict[str, Any]]) -> None:
    calls: list[Tensor] = []
    recording = OnDevice()(lambda x: calls.append(x) or (x + 1,), (torch.ones(2),))
    assert [(each["pool"], each["capture_error_mode"]) for each in captured_with] == [("pool", "thread_local")]
    assert len(calls) == recordings._WARM_UPS + 1
    assert recording.outputs[0].tolist() == [2, 2]


class Waits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return x


@pytest.mark.usefixtures("captured_with")
def test_what_cannot_be_captured_is_refused_at_once_with_its_line() -> None:
    candidate = candidate_of(nn.Identity(), torch.ones(2)).with_(module=Waits())
    with pytest.raises(Refused, match=r"captured at .*test_cuda_graph\.py:\d+ .*: CUDA error: operation not"):
        technique("cuda_graph").apply(candidate, {"limit": 16})


@pytest.mark.usefixtures("captured_with")
@pytest.mark.parametrize("refusal", ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED when calling `x`"])
def test_running_out_of_memory_in_a_capture_is_not_a_refusal(monkeypatch: pytest.MonkeyPatch, refusal: str) -> None:
    """Ending the capture raises an error of its own, which says nothing of memory."""

    @contextlib.contextmanager
    def graph(_: Any, **_options: Any) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    class Allocates(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > recordings._WARM_UPS:
                raise RuntimeError(refusal)
            return x

    monkeypatch.setattr(torch.cuda, "graph", graph)
    candidate = candidate_of(nn.Identity(), torch.ones(2)).with_(module=Allocates())
    with pytest.raises(torch.OutOfMemoryError, match=refusal.split("_STATUS", maxsplit=1)[0]):
        technique("cuda_graph").apply(candidate, {"limit": 16})


def test_the_trial_capture_is_not_the_one_that_serves(captured_with: list[dict[str, Any]]) -> None:
    """Contexts that are entered round later calls (cuDNN's choice of algorithms) must be in the recording."""
    candidate = technique("cuda_graph").apply(candidate_of(nn.Linear(2, 2), torch.ones(1, 2)), {"limit": 16})
    assert len(captured_with) == 1
    assert candidate.program is not None
    with torch.no_grad():
        candidate.program(torch.ones(1, 2))
    assert len(captured_with) == 2
