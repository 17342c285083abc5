"""Several captured functions in one pool, in any order of calls, loans, backward passes, evictions and ends."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from torch import Tensor

from togi.graphs import GraphError, GraphWarning, Pool, Recorder, capture

WIDTH = 4
GRAPH = 400
LARGEST = 8
BUFFER = LARGEST * WIDTH * 4
SIZES = st.sets(st.integers(1, LARGEST), min_size=1, max_size=4)


def tokens(n: int, value: float = 1.0) -> Tensor:
    return torch.arange(1.0, n * WIDTH + 1).reshape(n, WIDTH) * value


class Called:
    """A function that is captured, the plain one beside it, and what is lent of it."""

    def __init__(self, plain: Callable[[Tensor], Tensor], pool: Pool, sizes: set[int], **options: Any) -> None:
        self.plain = plain
        self.lent: list[tuple[ExitStack, Tensor, Tensor]] = []
        self.fast: Any = capture(plain, [tokens(2), tokens(3)], sizes=dict.fromkeys(sizes, 1), memory=pool, **options)


class SharedPool(RuleBasedStateMachine):
    """Room for a few graphs and buffers: most captures evict."""

    functions = Bundle("functions")

    def __init__(self) -> None:
        super().__init__()
        warnings.simplefilter("ignore", GraphWarning)
        self.recorder = Recorder(graph_bytes=GRAPH)
        self.pool = Pool(8 * BUFFER + 5 * GRAPH, self.recorder)
        self.waiting: list[tuple[Tensor, Tensor, Tensor]] = []

    @rule(target=functions, factor=st.integers(2, 5), sizes=SIZES, trained=st.booleans())
    def captured(self, factor: int, sizes: set[int], trained: bool) -> Called | None:
        weight = torch.full((WIDTH,), float(factor), requires_grad=trained)
        held = self.pool.held_bytes
        try:
            return Called(lambda x: (x * weight).relu(), self.pool, sizes, gradients=trained)
        except GraphError:
            assert held + 3 * BUFFER + 2 * GRAPH > self.pool.memory_bytes, "there was room"
            return None

    @rule(called=functions, n=st.integers(1, LARGEST + 1), value=st.integers(-2, 2))
    def call(self, called: Called | None, n: int, value: int) -> None:
        if called is not None and called.fast is not None:
            with torch.no_grad():
                torch.testing.assert_close(
                    called.fast(tokens(n, value)), called.plain(tokens(n, value)), rtol=0, atol=0
                )

    @rule(called=functions, n=st.integers(1, LARGEST))
    def lend(self, called: Called | None, n: int) -> None:
        if called is not None and called.fast is not None:
            block = ExitStack()
            with torch.no_grad():
                out = block.enter_context(called.fast.lend(tokens(n)))
                called.lent.append((block, out, called.plain(tokens(n))))

    @rule(lender=functions, taker=functions)
    def lent_results_are_given_to_another(self, lender: Called | None, taker: Called | None) -> None:
        if lender is not None and taker is not None and lender.lent and taker.fast is not None:
            _, out, expected = lender.lent[-1]
            with torch.no_grad():
                torch.testing.assert_close(taker.fast(out), taker.plain(expected), rtol=0, atol=0)
            torch.testing.assert_close(out, expected, rtol=0, atol=0)

    @rule(called=functions)
    def give_back(self, called: Called | None) -> None:
        if called is not None and called.lent:
            block, out, expected = called.lent.pop()
            torch.testing.assert_close(out, expected, rtol=0, atol=0)
            block.close()

    @rule(called=functions, n=st.integers(1, LARGEST))
    def record_gradients(self, called: Called | None, n: int) -> None:
        if called is not None and called.fast is not None:
            given = tokens(n).requires_grad_(), tokens(n).requires_grad_()
            self.waiting.append((*given, called.fast(given[0]).sum() - 3 * called.plain(given[1]).sum()))

    @rule()
    def backward(self) -> None:
        if self.waiting:
            found, expected, loss = self.waiting.pop(0)
            loss.backward()
            torch.testing.assert_close(-3 * found.grad, expected.grad)

    @rule(called=functions)
    def end(self, called: Called | None) -> None:
        if called is not None and not called.lent:
            called.fast = None
            gc.collect()

    @invariant()
    def what_is_held_is_what_the_device_says_and_fits(self) -> None:
        assert self.pool.held_bytes == self.recorder.used_bytes() + self.pool.buffer_bytes
        assert self.pool.held_bytes <= self.pool.memory_bytes


TestSharedPool = SharedPool.TestCase
TestSharedPool.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_lent_results_of_one_function_are_inputs_of_another() -> None:
    pool = Pool("1MiB", Recorder(graph_bytes=GRAPH))
    first = Called(lambda x: x * 2, pool, {3, 5}).fast
    weight = torch.full((WIDTH,), 3.0, requires_grad=True)
    second = Called(lambda x: x * weight, pool, {3, 5}, gradients=True).fast
    with torch.no_grad(), first.lend(tokens(4)) as one, second.lend(one) as two:
        assert torch.equal(two, tokens(4) * 6)
        assert torch.equal(one, tokens(4) * 2)
        own = second.calls["replayed"], first.calls["replayed"]
    assert own == (1, 1)
    with first.lend(tokens(4)) as one:
        loss = second(one).sum()
    with pytest.raises(RuntimeError, match="was lent"):
        loss.backward()
    with first.lend(tokens(4)) as one:
        second(one).sum().backward()
    assert torch.equal(weight.grad, (tokens(4) * 2).sum(0))
