"""``togi.graphs.capture`` with a recorder that replays by calling: no device is needed."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import togi
from togi.graphs import CapturedFunction, GraphError, GraphWarning, Pool, Recorder, capture
from togi.graphs.buckets import choose_buckets, padding
from togi.graphs.pool import Cuda

WIDTH = 4
GRAPH = 10_000


def tokens(n: int) -> Tensor:
    return torch.arange(1.0, n * WIDTH + 1).reshape(n, WIDTH)


SAMPLES = [tokens(3), tokens(5)]


def double(x: Tensor) -> Tensor:
    return x * 2 + 1


def made(fn: Callable[..., Any] = double, samples: Any = SAMPLES, **options: Any) -> CapturedFunction:
    options = {"sizes": {3: 1, 5: 2, 8: 1}, "memory": Pool("1MiB", Recorder(graph_bytes=GRAPH))} | options
    return capture(fn, samples, **options)


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(st.integers(1, 30), st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 12),
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
)
def test_every_call_is_right_within_the_memory_and_its_results_stay(
    sizes: dict[int, int], graphs: int, calls: list[int]
) -> None:
    largest = max(sizes)
    scratch = buffers = largest * WIDTH * 4
    pool = Pool(scratch + 2 * buffers + graphs * GRAPH, Recorder(graph_bytes=GRAPH))
    captured = made(sizes=sizes, memory=pool)
    plan = captured.plan()
    assert plan.buckets == choose_buckets(sizes, graphs), "as many as fit, and no other choice pads less"
    assert plan.padding == padding(sizes, plan.buckets) / sum(n * times for n, times in sizes.items())
    assert pool.held_bytes == scratch + 2 * buffers + len(plan.buckets) * GRAPH <= pool.memory_bytes
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = [captured(tokens(n) + at) for at, n in enumerate(calls)]
    for at, n in enumerate(calls):
        torch.testing.assert_close(found[at], double(tokens(n) + at), rtol=0, atol=0)
    above = sum(n > largest for n in calls)
    assert captured.calls["replayed"] == len(calls) - above
    assert sum(captured.calls.values()) == len(calls)
    assert len(said) == (1 if above else 0), "once for each reason"


class Captured:
    """What the recorder was asked for, by the rows of the first input."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.rows: list[int] = []
        self.most = most

    def __call__(self, inputs: tuple[Tensor, ...]) -> int:
        self.rows.append(len(inputs[0]))
        if len(inputs[0]) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 0


def test_the_largest_is_captured_first() -> None:
    seen = Captured()
    made(memory=Pool("1MiB", Recorder(seen, graph_bytes=GRAPH)))
    assert seen.rows == [8, 8, 5, 3], "the largest once more, to measure what a further graph takes"


def test_sizes_that_do_not_fit_run_in_eager() -> None:
    captured = made(memory=Pool("1MiB", Recorder(Captured(most=6), graph_bytes=GRAPH)))
    assert captured.plan().buckets == (3, 5)
    assert captured.plan().above == 1
    assert "above 5 do not fit" in str(captured.plan())
    with pytest.warns(GraphWarning, match="double ran in eager: sizes above the largest bucket"):
        torch.testing.assert_close(captured(tokens(8)), double(tokens(8)))


def test_memory_too_small_for_any_graph_is_refused() -> None:
    with pytest.raises(GraphError, match=r"no graph fits.*give more"):
        made(memory=Pool(100, Recorder(graph_bytes=GRAPH)))


def masked_mean(x: Tensor, mask: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
    return {"mean": (x * mask[:, None]).sum(0) / mask.sum() * scale, "each": x + 1}


def test_a_mask_that_pads_with_zeros_is_proven() -> None:
    captured = made(masked_mean, [(tokens(n), torch.ones(n)) for n in (3, 5)])
    found = captured(tokens(4), torch.ones(4))
    torch.testing.assert_close(found, masked_mean(tokens(4), torch.ones(4)))
    assert captured.calls == {"replayed": 1}


@pytest.mark.parametrize("fn", [lambda x: x.mean(0), lambda x: x / len(x), lambda x: x.flip(0), lambda x: x.softmax(0)])
def test_padding_that_changes_results_is_refused(fn: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(GraphError, match=r"padding changes result 0: at size 3 padded to 8 with \[0\]"):
        made(fn, limit=1)


def test_the_value_of_padding_may_be_what_makes_it_harmless() -> None:
    captured = made(lambda x: x.amax(0), [-t for t in SAMPLES], pad=-torch.inf, limit=1)
    assert captured(-tokens(4)).tolist() == [-1, -2, -3, -4]


def test_a_module_with_integer_inputs_and_gradients_elsewhere() -> None:
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 2)).eval()
    captured = made(model, [torch.arange(3), torch.arange(5)])
    with torch.no_grad():
        torch.testing.assert_close(captured(torch.arange(4)), model(torch.arange(4)))
    with pytest.warns(GraphWarning, match="gradients are recorded"):
        captured(torch.arange(4)).sum().backward()
    assert model[1].weight.grad is not None
    with torch.no_grad(), pytest.warns(GraphWarning, match="training mode"):
        captured(torch.arange(4)) if model.train() else None
    with torch.inference_mode():
        model.eval()
        assert captured(torch.arange(2)).shape == (2, 2)
    assert captured.calls["replayed"] == 2


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda f: f(tokens(4).double(), torch.ones(4)), "dtype"),
        (lambda f: f(tokens(4), torch.ones(4), 2.0), "other arguments"),
        (lambda f: f(x=tokens(4), mask=torch.ones(4)), "other arguments"),
        (lambda f: f(tokens(4)[:, :1], torch.ones(4)), "other shapes"),
        (lambda f: f(tokens(4), torch.ones(1)), "other shapes"),
        (lambda f: f(tokens(0), torch.ones(0))["each"], "or empty"),
        (lambda f: f(tokens(4).to("meta"), torch.ones(4, device="meta")), "another device"),
        (lambda f: f(tokens(4).requires_grad_(), torch.ones(4)), "gradients"),
        (lambda f: torch.autocast("cpu")(f)(tokens(4), torch.ones(4)), "autocast"),
    ],
)
def test_calls_of_another_kind_run_as_they_are(call: Callable[[Any], Any], reason: str) -> None:
    captured = made(masked_mean, [(tokens(n), torch.ones(n)) for n in (3, 5)])
    with pytest.warns(GraphWarning, match=reason):
        found = call(captured)
    torch.testing.assert_close(found, call(masked_mean))
    assert "replayed" not in captured.calls


def test_a_tensor_in_the_place_of_a_number_is_another_call() -> None:
    captured = made(torch.add, [(tokens(n), 1.0) for n in (3, 5)])
    with pytest.warns(GraphWarning, match="other arguments"):
        assert captured(1.0, tokens(3)).tolist() == captured(tokens(3), 1.0).tolist()


def test_a_graph_that_is_not_faster_is_not_used() -> None:
    captured = made(memory=Pool("1MiB", Recorder(graph_bytes=GRAPH, faster=lambda sample: len(sample.args[0]) < 8)))
    assert (captured.plan().buckets, captured.plan().eager) == ((3, 5), (8,))
    with pytest.warns(GraphWarning, match="not faster than eager"):
        captured(tokens(7))
    captured(tokens(4))
    assert captured.calls["replayed"] == 1


def test_functions_share_a_pool_and_what_was_not_used_for_longest_goes() -> None:
    buffers = 2 * 8 * WIDTH * 4
    pool = Pool(8 * WIDTH * 4 + 3 * buffers + 3 * GRAPH, Recorder(graph_bytes=GRAPH))
    first = made(sizes={5: 1, 8: 1}, memory=pool)
    second = made(torch.relu, sizes={8: 1}, memory=pool)
    assert (first.plan().buckets, second.plan().buckets) == ((5, 8), (8,))
    first(tokens(5))
    third = made(torch.neg, sizes={8: 1}, memory=pool)
    assert (first.plan().buckets, second.plan().buckets) == ((5,), (8,)), "first's of size 8 was captured first"
    assert pool.held_bytes <= pool.memory_bytes
    assert third(tokens(6)).sum() == -tokens(6).sum()
    torch.testing.assert_close(first(tokens(8)), double(tokens(8)))
    assert first.calls == {"replayed": 2}
    assert (first.plan().buckets, second.plan().buckets) == ((5, 8), ()), "captured again when it was needed"
    assert pool.held_bytes <= pool.memory_bytes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(6):
            assert second(tokens(8)).sum() == tokens(8).sum()
            assert third(tokens(8)).sum() == -tokens(8).sum()
            torch.testing.assert_close(first(tokens(8)), double(tokens(8)))
    assert pool.held_bytes <= pool.memory_bytes


def test_a_function_that_is_gone_leaves_its_memory() -> None:
    pool = Pool("1MiB", Recorder(graph_bytes=GRAPH))
    first, second = made(memory=pool), made(memory=pool)
    held = second.plan().held_bytes
    del first
    gc.collect()
    third = made(memory=pool)
    assert third.plan().held_bytes == held


def test_a_function_in_a_captured_one_is_part_of_it() -> None:
    calls = []

    def counted(x: Tensor) -> Tensor:
        calls.append(len(x))
        return double(x)

    inner = made(counted, memory=Pool("1MiB", Recorder(graph_bytes=GRAPH)))
    with pytest.warns(GraphWarning, match="dtype"):  # the truth in float64
        outer = made(lambda x: inner(x) - 1)
    replayed = inner.calls["replayed"]
    calls.clear()
    torch.testing.assert_close(outer(tokens(4)), tokens(4) * 2)
    assert outer.calls == {"replayed": 1}
    assert inner.calls["replayed"] == replayed, "its own graph is not replayed in another's"
    assert calls == [5], "the function itself is, at the outer one's size"
    torch.testing.assert_close(inner(tokens(4)), double(tokens(4)))
    assert inner.calls["replayed"] == replayed + 1


def test_what_warms_up_for_a_capture_is_what_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that was replayed, or captured, in the middle of another's warm-up would be counted twice."""
    seen, device = [], Cuda.__new__(Cuda)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    device._capture = lambda run, inputs: run(*inputs)
    assert not device.capturing()
    device.capture(lambda: seen.append(device.capturing()), ())
    assert seen == [True]
    assert not device.capturing()


def test_other_threads_replay_while_one_captures() -> None:
    fast, seen = made(), []

    def slow(x: Tensor) -> Tensor:
        thread = threading.Thread(target=lambda: seen.append(Recorder().capturing()))
        thread.start()
        thread.join()
        return x

    made(slow)
    assert not any(seen)
    assert fast.plan().buckets


@pytest.mark.parametrize(
    "compiled",
    [
        lambda: torch.compile(double, mode="reduce-overhead"),
        lambda: torch.compile(double, options={"triton.cudagraphs": True}),
        lambda: nn.Sequential(nn.ReLU(), torch.compile(nn.Tanh(), mode="max-autotune")),
        lambda: compiled_in_place(nn.Sequential(nn.ReLU())),
    ],
)
def test_code_with_cuda_graphs_of_its_own_is_refused_by_name(compiled: Callable[[], Any]) -> None:
    with pytest.raises(GraphError, match=r"compiled with mode='reduce-overhead'.*'max-autotune-no-cudagraphs'"):
        made(compiled())


def compiled_in_place(module: nn.Module) -> nn.Module:
    module[0].compile(mode="reduce-overhead")
    return module


def test_compiled_functions_are_captured_and_captured_ones_compiled() -> None:
    captured = made(torch.compile(double, backend="eager"))
    torch.testing.assert_close(captured(tokens(4)), double(tokens(4)))
    outer = torch.compile(lambda x: captured(x) - 1, backend="eager", fullgraph=True)
    torch.testing.assert_close(outer(tokens(6)), tokens(6) * 2)
    assert captured.calls == {"replayed": 1}, "in compiled code it is the plain function"


def test_threads_take_turns() -> None:
    captured, wrong = made(), []

    def work(value: float) -> None:
        for n in (3, 7, 4, 8, 5) * 4:
            if not bool((captured(torch.full((n, WIDTH), value)) == 2 * value + 1).all()):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(float(at),)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert captured.calls == {"replayed": 80}


class FailsIn:
    """Raises in one call: the third is that of the capture."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return x + 1


def test_what_waits_for_the_device_is_reported_with_its_line() -> None:
    pool = Pool("1MiB", Recorder(graph_bytes=GRAPH))
    with pytest.raises(GraphError, match=r"captured at .*test_captured\.py:\d+ .*: CUDA error: operation not"):
        made(FailsIn(3), memory=pool)
    assert pool.held_bytes == 0


def writes(x: Tensor) -> Tensor:
    return x.mul_(2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory": "1MiB"}, "samples are on 'cpu', and CUDA graphs need a CUDA device"),
        ({"fn": writes}, "writes to its inputs"),
        ({"fn": lambda x: x[: len(x) // 2]}, "a dimension that varies must be the size itself"),
        ({"fn": lambda x: (x, len(x))}, "depends on the size in more than the shapes"),
        ({"samples": [tokens(3)]}, "at least two whose sizes differ"),
        ({"samples": [torch.ones(3, 4), torch.ones(5, 6)]}, "at least two whose sizes differ"),
        ({"samples": [torch.ones(3), torch.ones(5).int()]}, "differ in dtypes"),
        ({"samples": [(tokens(3), 1), (tokens(5), 2)]}, "more than their sizes"),
        ({"limit": 0}, "limit=0 allows no graph"),
        ({"sizes": []}, "there are none"),
        ({"sizes": [3, 0]}, "0 occurs 1 times"),
        ({"sizes": {3: 1.5}}, "3 occurs 1.5 times"),
        ({"pad": [0, 1]}, "pad has 2 values, and a sample 1 tensor"),
        ({"memory": "2 parsecs"}, "memory='2 parsecs'"),
        ({"samples": ["text"]}, "a sample is"),
    ],
)
def test_what_cannot_be_captured_is_refused_with_what_would_do(options: dict[str, Any], said: str) -> None:
    with pytest.raises(togi.TogiError, match=said):
        made(**options)
