"""Gradients of captured functions, with a recorder that replays by calling: equal to eager's, and the caller's own."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from togi.graphs import CapturedFunction, GraphError, GraphWarning, Pool, Recorder, capture

WIDTH = 4
SIZES = {3: 1, 5: 2, 8: 1}


def tokens(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(seed))


class Attends(nn.Module):
    """Tokens that look at each other, but for those of the mask; one of its weights is not used."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.project = nn.Linear(WIDTH, 3 * WIDTH)
            self.unused = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        query, key, value = self.project(x).chunk(3, -1)
        scores = (query @ key.T).masked_fill(mask == 0, -1e9)
        found = scores.softmax(-1) @ value
        return {"out": found * mask[:, None], "best": found.argmax(-1)}


def masked(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return tokens(n, seed), torch.ones(n)


def made(fn: Callable[..., Any], samples: Any = None, **options: Any) -> CapturedFunction:
    options = {"sizes": SIZES, "memory": Pool("1MiB", Recorder(graph_bytes=10_000)), "gradients": True} | options
    return capture(fn, [masked(3), masked(5)] if samples is None else samples, **options)


def plus(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).tanh()


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 10), st.booleans()), min_size=1, max_size=5), st.integers(0, 100))
def test_gradients_accumulate_as_in_eager_in_any_order(calls: list[tuple[int, bool]], seed: int) -> None:
    """Some calls go back at once, the others when all have been made, the last first (pytorch issue 181723)."""
    found, expected = Attends(), Attends()
    fast = made(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sizes above the largest bucket
        for call, model in ((fast, found), (expected, expected)):
            waiting = []
            for at, (n, at_once) in enumerate(calls):
                loss = call(*masked(n, seed + at))["out"].square().sum()
                loss.backward() if at_once else waiting.append(loss)
            for loss in reversed(waiting):
                loss.backward()
            assert model.unused.weight.grad is None
    assert fast.calls["replayed"] == sum(n <= 8 for n, _ in calls)
    torch.testing.assert_close(found.project.weight.grad, expected.project.weight.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.project.bias.grad, expected.project.bias.grad, rtol=1e-4, atol=1e-5)


def test_a_gradient_is_the_callers_own() -> None:
    model = Attends()
    fast = made(model)
    fast(*masked(4))["out"].sum().backward()
    kept = model.project.weight.grad
    assert kept is not None
    before = kept.clone()
    model.zero_grad()
    fast(*masked(4, seed=1))["out"].sum().backward()
    assert torch.equal(kept, before)
    assert not torch.equal(model.project.weight.grad, before)  # type: ignore[arg-type]


def test_training_goes_on_as_in_eager() -> None:
    models = [Attends(), Attends()]
    calls = [made(models[0]), models[1]]
    for model, call in zip(models, calls, strict=True):
        optimizer = torch.optim.Adam(model.project.parameters(), lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            call(*masked(2 + step, seed=step))["out"].square().sum().backward()
            optimizer.step()
    assert calls[0].calls == {"replayed": 6}  # type: ignore[union-attr]
    torch.testing.assert_close(models[0].project.weight, models[1].project.weight, rtol=1e-3, atol=1e-4)


def test_gradients_of_inputs_and_without_a_module() -> None:
    weight = torch.full((WIDTH,), 0.5, requires_grad=True)
    samples = [(tokens(n).requires_grad_(), weight) for n in (3, 5)]
    fast = made(lambda x: plus(x, weight), [sample[:1] for sample in samples])
    x, plain = (tokens(4, seed=2).requires_grad_() for _ in range(2))
    for _ in range(2):
        fast(x).square().sum().backward()
    found, weight.grad = weight.grad, None
    for _ in range(2):
        plus(plain, weight).square().sum().backward()
    torch.testing.assert_close([x.grad, found], [plain.grad, weight.grad])
    with torch.no_grad():
        assert not fast(x).requires_grad
    assert fast.calls == {"replayed": 3}
    with pytest.warns(GraphWarning, match="gradients of other tensors"):
        fast(tokens(4)).sum().backward()


def test_compiled_functions_have_gradients_too() -> None:
    model = Attends()
    fast = made(torch.compile(model, backend="aot_eager"))
    fast(*masked(4))["out"].square().sum().backward()
    expected = Attends()
    expected(*masked(4))["out"].square().sum().backward()
    assert fast.calls == {"replayed": 1}
    torch.testing.assert_close(model.project.weight.grad, expected.project.weight.grad)


def test_padding_that_changes_gradients_alone_is_refused() -> None:
    class Halves(torch.autograd.Function):
        """Its gradient depends on the number of rows; its result does not."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * weight

        @staticmethod
        def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor]:
            (x,) = ctx.saved_tensors
            return given, (given * x).sum(0) / len(x)

    weight = torch.ones(WIDTH, requires_grad=True)
    with pytest.raises(GraphError, match=r"padding changes gradient 0: at size 3 padded to 8"):
        made(lambda x: Halves.apply(x, weight), [tokens(3), tokens(5)], limit=1)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.steps: Tensor
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps.add_(1)
        return x * self.weight


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (nn.Sequential(nn.Linear(WIDTH, 2), nn.Dropout()), "draws random numbers"),
        (Counts(), "changes its buffers"),
        (torch.neg, "nothing that it returns depends on"),
    ],
)
def test_what_cannot_be_repeated_is_refused(fn: Callable[..., Any], said: str) -> None:
    pool = Pool("1MiB", Recorder())
    with pytest.raises(GraphError, match=said):
        made(fn, [tokens(3), tokens(5)], memory=pool)
    assert pool.held_bytes == 0


def test_a_frozen_or_thawed_weight_is_another_call() -> None:
    model = Attends()
    model.project.bias.requires_grad_(False)
    fast = made(model)
    model.project.bias.requires_grad_()
    with pytest.warns(GraphWarning, match="gradients of other tensors"):
        fast(*masked(4))["out"].sum().backward()
    assert model.project.bias.grad is not None


class TwoHeads(nn.Module):
    """The slope of the last result is infinite where ``scale`` is zero: times a gradient of zero that is NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.used(x), self.other(x), (x * self.scale).square().sqrt()


@pytest.mark.parametrize("calls", [1, 2])
def test_weights_that_the_loss_does_not_use_get_no_gradient(calls: int) -> None:
    model = TwoHeads()
    fast = made(model, [tokens(3), tokens(5)])
    for at in range(calls):
        with pytest.warns(GraphWarning, match="does not use all results") if not at else warnings.catch_warnings():
            fast(tokens(4))[0].square().sum().backward()
    assert model.other.weight.grad is None
    assert model.scale.grad is None
    (expected,) = torch.autograd.grad(model.used(tokens(4)).square().sum(), model.used.weight)
    torch.testing.assert_close(model.used.weight.grad, calls * expected)
    (reason,) = set(fast.calls) - {"replayed"}
    assert fast.calls == {"replayed": calls, reason: calls}


def test_what_no_gradient_ever_arrives_at_has_none_in_a_replay_too() -> None:
    class GivesOne(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor, weight: Tensor) -> Tensor:
            return x + weight

        @staticmethod
        def backward(_: Any, given: Tensor) -> tuple[Tensor, None]:
            return given, None

    stopped, weight = (torch.ones(WIDTH, requires_grad=True) for _ in range(2))
    fast = made(
        lambda x, _unused: GivesOne.apply(x * weight, stopped),
        [(tokens(n).requires_grad_(), tokens(n).requires_grad_()) for n in (3, 5)],
    )
    x, unused = tokens(4).requires_grad_(), tokens(4).requires_grad_()
    fast(x, unused).sum().backward()
    assert fast.calls == {"replayed": 1}
    assert unused.grad is None
    assert stopped.grad is None
    assert x.grad is not None
    torch.testing.assert_close(weight.grad, tokens(4).sum(0))


def test_weights_that_change_before_backward_are_an_error_as_in_eager() -> None:
    model = Attends()
    loss = made(model)(*masked(4))["out"].sum()
    with torch.no_grad():
        model.project.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_of_gradients_are_an_error() -> None:
    x = tokens(4).requires_grad_()
    fast = made(lambda x: x * x, [tokens(n).requires_grad_() for n in (3, 5)])
    with pytest.raises(GraphError, match="gradients of gradients are not captured"):
        torch.autograd.grad(fast(x).sum(), x, create_graph=True)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_graph_that_went_before_its_backward_is_made_up_for_in_eager(autocast: bool) -> None:
    model, pool = Attends(), Pool("1MiB", Recorder(graph_bytes=10_000))
    with torch.autocast("cpu", enabled=autocast):
        fast = made(model, memory=pool, limit=1)
        loss = fast(*masked(4))["out"].sum()
    pool.memory_bytes = 30_000
    made(torch.relu, [tokens(3), tokens(5)], memory=pool, limit=1, gradients=False)
    assert fast.plan().buckets == ()
    with pytest.warns(GraphWarning, match="dropped for others' before its backward"):
        loss.backward()
    expected = Attends()
    with torch.autocast("cpu", enabled=autocast):
        loss = expected(*masked(4))["out"].sum()
    loss.backward()
    torch.testing.assert_close(model.project.weight.grad, expected.project.weight.grad)


def test_both_graphs_are_within_the_memory() -> None:
    account = Recorder(working_bytes=lambda _: 0, graph_bytes=10_000)
    buffers = 8 * 4 * (WIDTH + 1) + 8 * 4 * (WIDTH + 2) + 4 * sum(p.numel() for p in Attends().project.parameters())
    pool = Pool(buffers + 4 * 10_000, account)
    fast = made(Attends(), memory=pool)
    assert len(fast.plan().buckets) == 2, "two graphs each"
    assert pool.held_bytes == pool.memory_bytes


class FailsGoingBack(nn.Module):
    """Its larger sizes cannot be captured with gradients: out of memory, or waiting for the device."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(x) > 5:
            raise self.error
        return x * self.weight


def test_a_capture_of_gradients_that_fails_leaves_nothing() -> None:
    pool = Pool("9MiB", Recorder())
    error = RuntimeError("CUDA error: operation not permitted when stream is capturing")
    with pytest.raises(GraphError, match="cannot be captured"):
        made(FailsGoingBack(error), [tokens(3), tokens(5)], memory=pool)
    assert pool.held_bytes == 0
    fast = made(FailsGoingBack(torch.OutOfMemoryError("CUDA out of memory")), [tokens(3), tokens(5)], memory=pool)
    assert "sizes above 5 do not fit into the memory" in str(fast.plan())
    assert fast.plan().buckets == (3, 5)
    buffers = 5 * WIDTH * 4 * 2 + WIDTH * 4
    assert pool.held_bytes == buffers + 5 * WIDTH * 4 + 4 * (1 << 20), "of the two that are held"


def test_a_weight_that_one_operation_uses_twice() -> None:
    weight = torch.full((WIDTH,), 3.0, requires_grad=True)
    fast = made(lambda x: weight * weight * x, [tokens(3), tokens(5)])
    fast(tokens(4)).sum().backward()
    assert fast.calls["replayed"] == 1
    torch.testing.assert_close(weight.grad, 6 * tokens(4).sum(0))


def test_the_model_is_left_as_it_was() -> None:
    model = Attends()
    model.project.weight.grad = torch.ones_like(model.project.weight)
    before = copy.deepcopy(model.state_dict())
    made(model)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert bool((model.project.weight.grad == 1).all())
    assert model.project.bias.grad is None


@pytest.fixture
def backward_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward passes run on one thread of their own, as autograd has them on a GPU."""
    grad, engine = torch.autograd.grad, ThreadPoolExecutor(1, "autograd")

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().name.startswith("autograd"):
            return grad(*args, **kwargs)  # backward within backward stays on its thread
        return engine.submit(grad, *args, **kwargs).result(timeout=30)

    monkeypatch.setattr(torch.autograd, "grad", elsewhere)


@pytest.mark.usefixtures("backward_elsewhere")
def test_gradients_are_proven_where_backward_has_a_thread_of_its_own() -> None:
    fast = made(Attends())
    assert not fast.plan().eager


@pytest.mark.usefixtures("backward_elsewhere")
def test_a_backward_pass_does_not_wait_for_who_may_be_waiting_for_it() -> None:
    weight = torch.ones(WIDTH, requires_grad=True)
    pool = Pool("1MiB", Recorder(graph_bytes=10_000))
    fast = made(lambda x: plus(x, weight), [tokens(3), tokens(5)], memory=pool)
    loss, free = fast(tokens(3)).sum(), threading.Event()
    (expected,) = torch.autograd.grad(plus(tokens(3), weight).sum(), weight)

    def holds() -> None:
        with pool.lock:
            taken.set()
            assert free.wait(30)

    taken = threading.Event()
    other = threading.Thread(target=holds)
    other.start()
    assert taken.wait(30)
    with pytest.warns(GraphWarning, match="another thread had the pool"):
        (found,) = torch.autograd.grad(loss, weight)
    free.set()
    other.join()
    assert torch.allclose(found, expected)
