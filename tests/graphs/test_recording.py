"""Captures on a device, with a stand-in that refuses what torch refuses: no device is needed."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.graphs.cuda_without_a_device import Runtime, Stream
from togi.core.user_code import error_line
from togi.graphs import GraphError, Pool, capture, pool, recording, waits
from togi.graphs.pool import Cuda
from togi.graphs.recording import OnDevice
from togi.graphs.waits import Waits
from togi.techniques.engine.programs.cuda_graph import CudaGraphs

KINDS = {
    "2.9": {"ends_failed_captures": False, "drops_free_workspaces": False},
    "2.12": {"ends_failed_captures": False, "drops_free_workspaces": True},
    "2.13": {"ends_failed_captures": True, "drops_free_workspaces": True},
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def runtime(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    found = Runtime(**request.param)
    found.install(monkeypatch)
    recording._warm_up_stream.cache_clear()
    yield found
    recording._warm_up_stream.cache_clear()


def product(runtime: Runtime) -> Callable[[Tensor], tuple[Tensor]]:
    def run(x: Tensor) -> tuple[Tensor]:
        runtime.product()
        return (x + 1,)

    return run


ONE = (torch.ones(1),)


# --- pools


def test_a_pool_whose_graphs_are_gone_is_not_entered_again(runtime: Runtime) -> None:
    on_device, run = OnDevice(), product(runtime)
    for _ in range(3):
        made = on_device(run, ONE)
        del made
        gc.collect()
    first, second = on_device(run, ONE), on_device(run, ONE)
    pools = [name for name, _ in runtime.captures]
    assert len(set(pools[:4])) == 4
    assert pools[4] == pools[3], "what lives shares its memory"
    assert runtime.held() == {pools[3]}, "what is gone gave its memory back"
    first.replay()
    del first
    second.replay()


def test_each_pool_has_its_stream_and_its_workspaces(runtime: Runtime) -> None:
    """A graph of one pool is replayed while another one runs, or after the other has been dropped."""
    ours, others, run = OnDevice(), OnDevice(), product(runtime)
    made = [on_device(run, ONE) for on_device in (ours, others, ours, others)]
    streams = dict(runtime.captures)
    assert len(streams) == len(set(streams.values())) == 2
    assert not runtime.workspaces, "eager work on these streams does not inherit them"
    for graph in runtime.live:
        assert graph.workspace == graph.pool
    while made:
        for each in made:
            each.replay()
        made.pop(0)
        gc.collect()


def test_eager_work_on_a_capture_stream_does_not_lend_its_workspace(runtime: Runtime) -> None:
    """Torch hands out 32 streams again and again: the caller's may be one of ours."""
    on_device, run = OnDevice(), product(runtime)
    first = on_device(run, ONE)
    with torch.cuda.stream(runtime.captures[0][1]):
        runtime.product()
    second = on_device(run, ONE)
    for made in (first, second):
        made.replay()


def test_one_stream_warms_up_for_all(runtime: Runtime) -> None:
    warmed: set[Stream] = set()

    def run(x: Tensor) -> tuple[Tensor]:
        if runtime.capturing is None:
            warmed.add(runtime.current)
        return (x,)

    for _ in range(2):
        on_device = OnDevice()
        kept = [on_device(run, ONE) for _ in range(3)]
    assert len(kept) == 3
    assert len(warmed) == 1
    assert len(runtime.streams) == 3, "and one for each pool"
    assert not warmed & {stream for _, stream in runtime.captures}


# --- captures that fail


class Waiting(nn.Module):
    def __init__(self, how: Callable[[], None]) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> tuple[Tensor]:
        self.how()  # the line that waits
        return (x + 1,)


def test_what_waits_is_refused_before_a_capture_at_its_line(runtime: Runtime) -> None:
    on_device = OnDevice()
    with pytest.raises(Waits) as caught:
        on_device(Waiting(runtime.wait), ONE)
    assert "the line that waits" in error_line(caught.value)
    assert not runtime.captures
    assert runtime.mode == 0
    assert warnings.showwarning.__module__ != waits.__name__


def test_what_does_not_wait_in_a_capture_is_captured(runtime: Runtime) -> None:
    def asks() -> None:
        if not torch.cuda.is_current_stream_capturing():
            runtime.wait()

    OnDevice()(Waiting(asks), ONE)
    assert len(runtime.captures) == 1
    assert not torch.cuda.is_current_stream_capturing()


def test_other_threads_wait_as_they_like_meanwhile(runtime: Runtime) -> None:
    raised: list[Exception] = []

    def elsewhere() -> None:
        assert not torch.cuda.is_current_stream_capturing()
        try:
            runtime.wait()
        except Exception as error:
            raised.append(error)

    def run() -> None:
        if runtime.capturing is None:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        OnDevice()(Waiting(run), ONE)
    assert not raised
    assert not said


def test_a_failed_capture_leaves_nothing_behind(runtime: Runtime) -> None:
    """The debug mode does not see each wait. Memory, random numbers and the current stream are the process's own."""
    on_device = OnDevice()
    kept = on_device(product(runtime), ONE)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing") as caught:
            on_device(Waiting(runtime.stop), ONE)
        assert "the line that waits" in error_line(caught.value)
        torch.cuda.empty_cache()
        runtime.random()
        assert runtime.current is runtime.default
    again = on_device(product(runtime), ONE)
    for made in (kept, again):
        made.replay()
    assert runtime.captures[-1][0] != runtime.captures[0][0], "in a pool that no capture broke"


def test_an_error_of_the_function_alone_breaks_nothing(runtime: Runtime) -> None:
    def fails() -> None:
        if runtime.capturing is not None:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        OnDevice()(Waiting(fails), ONE)
    assert not runtime.leaked
    assert len(runtime.captures) == 1
    OnDevice()(product(runtime), ONE)


def test_the_pool_says_the_users_line(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = on_a_device(runtime, monkeypatch, "1MiB")
    with pytest.raises(GraphError, match=r"test_recording\.py:\d+ .*the line that waits.*cannot wait for the device"):
        captured(Waiting(runtime.stop))


def test_what_else_fails_is_not_said_to_wait(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        if runtime.capturing is not None:
            raise ValueError("no")

    with pytest.raises(GraphError, match=r"no\. Mend that, or call the function as it is"):
        on_a_device(runtime, monkeypatch, "1MiB")(Waiting(fails))


# --- threads


class InThreads:
    """Two captures, of which the second begins within the first and would end after it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.inside = {name: threading.Event() for name in ("first", "second")}
        self.first_is_over = threading.Event()
        self.errors: list[BaseException] = []
        self.order: list[str] = []

    def function(self, name: str, until: threading.Event) -> Callable[[Tensor], tuple[Tensor]]:
        def run(x: Tensor) -> tuple[Tensor]:
            if not torch.cuda.is_current_stream_capturing():
                self.runtime.wait()  # refused, and run once more as if it were captured
            elif self.runtime.capturing is None:
                self.inside[name].set()
                until.wait(0.2)  # as long as nothing keeps the other thread out
            return (x + 1,)

        return run

    def capture(self, name: str, until: threading.Event) -> None:
        try:
            OnDevice()(self.function(name, until), ONE)
        except BaseException as error:
            self.errors.append(error)
        self.order.append(name)

    def first(self) -> None:
        self.capture("first", self.inside["second"])
        self.first_is_over.set()

    def second(self) -> None:
        assert self.inside["first"].wait(10)
        self.capture("second", self.first_is_over)


def test_captures_of_two_threads_take_turns(runtime: Runtime) -> None:
    both = InThreads(runtime)
    threads = [threading.Thread(target=each) for each in (both.first, both.second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not both.errors
    assert both.order == ["first", "second"]
    assert len(runtime.captures) == 2
    assert runtime.mode == 0
    assert torch.cuda.is_current_stream_capturing() is False


def test_a_capture_that_does_not_end_is_not_waited_for_for_ever(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that waits for a thread which captures."""
    monkeypatch.setattr(recording, "_PATIENCE_S", 0.01)
    said: list[str] = []

    def elsewhere() -> None:
        try:
            OnDevice()(product(runtime), ONE)
        except RuntimeError as error:
            said.append(str(error))

    def run(x: Tensor) -> tuple[Tensor]:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(10)
        return (x,)

    OnDevice()(run, ONE)
    assert said
    assert all("another thread has been capturing" in text for text in said)
    OnDevice()(product(runtime), ONE)


# --- budgets

WIDTH = 256


def on_a_device(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, memory: str) -> Callable[..., Any]:
    """``togi.graphs.capture`` on the CPU's tensors, with ``Cuda``: a graph takes as much again as its input."""
    held: dict[str, int] = {}

    def used() -> int:
        alive = runtime.held()
        for name in held.keys() - alive:
            del held[name]
        return sum(held.values())

    class Device(Cuda):
        def __init__(self, place: torch.device) -> None:
            super().__init__(place)
            self._order.after_the_last_call = lambda: None

        def capture(self, run: Any, inputs: tuple[Tensor, ...]) -> recording.Recording:
            made = super().capture(run, inputs)
            name = runtime.captures[-1][0]
            held[name] = max(held.get(name, 0), sum(tensor.nbytes for tensor in inputs))

            def replay() -> None:
                made.replay()
                run(*inputs)

            return replace(made, replay=replay)

        def used_bytes(self) -> int:
            torch.cuda.empty_cache()
            return used()

        def current(self) -> Any:
            return torch.no_grad()

        def random_state(self) -> Tensor:
            return torch.get_rng_state()

        def faster(self, *_: Any) -> bool:
            return True

    monkeypatch.setattr(pool, "own_cuda_bytes", lambda _: 0)
    monkeypatch.setattr(pool, "cuda_bytes_of_all", lambda _: 0)
    place = torch.device("cpu")
    samples = [torch.ones(n, WIDTH) for n in (2, 3)]
    return lambda fn: capture(fn, samples, sizes=[2, 3, 16], memory=Pool(memory, Device(place)))


def test_a_budget_below_the_largest_size_holds_smaller_ones(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest is captured, found too large, and dropped: the pool is empty, and entered again."""
    run = product(runtime)
    captured = on_a_device(runtime, monkeypatch, f"{4 * WIDTH * 4 * 3}B")(lambda x: run(x)[0])
    assert captured.plan().buckets == (2, 3)
    assert "sizes above 3 do not fit" in str(captured.plan())
    torch.testing.assert_close(captured(torch.ones(3, WIDTH)), torch.full((3, WIDTH), 2.0))


# --- the engine


def test_within_a_capture_the_engine_runs_as_it_is(runtime: Runtime) -> None:
    """A part that was tuned, in a model that is captured as a whole."""
    part = CudaGraphs(product(runtime), limit=4)
    whole = OnDevice()(lambda x: part(x), ONE)
    assert len(runtime.captures) == 1
    assert not part.recordings
    whole.replay()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        part(*ONE)
    assert not part.recordings
    assert torch.equal(part(*ONE)[0], torch.full((1,), 2.0))
    assert len(part.recordings) == 1


def test_a_recording_goes_with_its_last_reference(runtime: Runtime) -> None:
    made = OnDevice()(product(runtime), ONE)
    gone = weakref.ref(made)
    del made
    assert gone() is None
    assert not runtime.held()
