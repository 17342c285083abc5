"""Tensors that are not contiguous: a view of theirs in another shape is a copy, which the budget has to hold."""

# ruff: noqa: ARG005 (one signature for all functions)

from __future__ import annotations

import os
import warnings

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils import _pytree as pytree

import togi
from togi.measure.memory import torch_allocator_peak_bytes
from togi.tiling.lean import LeanWarning

os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape) / 8


LAYOUTS = {
    "contiguous": lambda rows, columns: numbers(rows, columns),
    "transposed": lambda rows, columns: numbers(columns, rows).T,
    "every second column": lambda rows, columns: numbers(rows, 2 * columns)[:, ::2],
    "every second row": lambda rows, columns: numbers(2 * rows, columns)[::2],
    "some of the columns": lambda rows, columns: numbers(rows, columns + 3)[:, 3:],
    "one row": lambda rows, columns: numbers(1, columns).expand(rows, columns),
    "one column": lambda rows, columns: numbers(rows, 1).expand(rows, columns),
    "blocks": lambda rows, columns: numbers(columns, 2, rows // 2).permute(1, 2, 0).flatten(0, 1),
}
FUNCTIONS = {
    "flattened": lambda x, y: x.reshape(-1).sin().sum(),
    "flattened later": lambda x, y: x.sin().reshape(-1).square().mean(),
    "rows halved": lambda x, y: x.reshape(2 * x.shape[0], -1).sin().sum(1),
    "rows in blocks": lambda x, y: (x.view(2, -1, x.shape[1]) @ y.T).sin().sum(-1),
    "columns in blocks": lambda x, y: x.unflatten(1, (4, -1)).sin().sum(2),
    "columns in blocks, all": lambda x, y: x.unflatten(1, (4, -1)).sin(),
    "the other side in blocks": lambda x, y: (x @ y.reshape(2, -1, y.shape[1]).mT).sin().sum(-1),
    "linear of blocks": lambda x, y: functional.linear(x.reshape(2, -1, x.shape[1]), y).relu().mean(-1),
    "copied": lambda x, y: x.contiguous().view(-1, 4).cos().sum(1),
    "turned": lambda x, y: x.T.reshape(4, -1).cos().sum(0),
    "turned, small": lambda x, y: (x[:, :4].T.reshape(-1)[None] * y[:8, :1]).cos().sum(1),
    "there and back": lambda x, y: x.reshape(-1).view(x.shape[0], -1).sin().sum(1),
    "flattened pairs": lambda x, y: (x @ y.T).reshape(-1).sin().sum(),
    "product": lambda x, y: (x @ y.T).sin().sum(1),
    "small product": lambda x, y: x @ y[:2].T,
    "product with a vector": lambda x, y: x @ y[0],
    "added product": lambda x, y: torch.addmm(y[:3, 0], x, y[:3].T),
    "sums": lambda x, y: (x.sum(0), x.mean(1), x.amax(0)),
    "logsumexp": lambda x, y: x.logsumexp(1),
    "softmax": lambda x, y: x.softmax(1).sum(0),
    "normalized": lambda x, y: functional.layer_norm(x, x.shape[1:]).abs().sum(1),
    "distances": lambda x, y: torch.cdist(x, y).amin(1),
    "differences": lambda x, y: (x[:, None, :4] - y[None, :, :4]).abs().sum(-1).amin(1),
    "third": lambda x, y: x.kthvalue(3, 1).values,
    "best": lambda x, y: x.topk(2, 0).values,
    "sorted": lambda x, y: x.sort(1).values[:, 1],
    "joined": lambda x, y: torch.cat([x, x.flip(0)]).sin().sum(1),
    "picked": lambda x, y: x.index_select(1, torch.arange(0, x.shape[1], 7)).sin().sum(1),
    "given back": lambda x, y: x.reshape(-1),
}
CASES = given(
    function=st.sampled_from(sorted(FUNCTIONS)),
    layouts=st.tuples(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(sorted(LAYOUTS))),
    rows=st.integers(60, 300).map(lambda half: 2 * half),
    columns=st.integers(6, 40).map(lambda quarter: 4 * quarter),
    others=st.integers(10, 150).map(lambda half: 2 * half),
    room=st.sampled_from([24 << 10, 96 << 10]),
    gradients=st.booleans(),
)


def check(function, layouts, rows, columns, others, room, gradients):
    torch.manual_seed(rows)
    plain = FUNCTIONS[function]
    x, y = LAYOUTS[layouts[0]](rows, columns), LAYOUTS[layouts[1]](others, columns)
    expected = plain(x, y)
    budget = room + sum(leaf.nbytes for leaf in pytree.tree_leaves(expected))
    call = togi.lean(plain, memory=budget, compile=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeanWarning)
        for _ in range(2):
            torch.testing.assert_close(call(x, y), expected, rtol=1e-4, atol=1e-4)
        plan = call.plan()
        if plan.strategy != "as it is":
            assert (torch_allocator_peak_bytes(lambda: call(x, y)) or 0) <= budget, plan
            assert plan.peak_after_bytes is None or plan.peak_after_bytes <= budget
        if gradients:
            given = [t.detach().requires_grad_() for t in (x, y)]
            made, right = (pytree.tree_leaves(f(*given)) for f in (call, plain))
            found, known = (
                torch.autograd.grad(leaves, given, [torch.ones_like(leaf) for leaf in leaves], allow_unused=True)
                for leaves in (made, right)
            )
            for one, other in zip(found, known, strict=True):
                one, other = (torch.zeros(1) if g is None else g for g in (one, other))
                torch.testing.assert_close(one.expand_as(other), other, rtol=1e-3, atol=1e-3)
    return plan


@settings(max_examples=12, deadline=None, derandomize=True)
@CASES
def test_the_budget_holds_whatever_the_strides(function, layouts, rows, columns, others, room, gradients):
    check(function, layouts, rows, columns, others, room, gradients)


@pytest.mark.thorough
@settings(max_examples=20, deadline=None, phases=[Phase.generate])
@CASES
def test_the_budget_holds_for_any_strides(function, layouts, rows, columns, others, room, gradients):
    check(function, layouts, rows, columns, others, room, gradients)


def streamed(function, *tensors, memory):
    call = togi.lean(function, memory=memory, compile=False)
    torch.testing.assert_close(call(*tensors), function(*tensors), rtol=1e-4, atol=1e-4)
    assert call.plan().strategy == "streamed", call.plan()
    assert (torch_allocator_peak_bytes(lambda: call(*tensors)) or 0) <= memory
    return call


def test_a_copy_of_what_is_transposed_is_made_tile_by_tile():
    """The whole of it is six times the budget."""
    x = numbers(1000, 20, 20).mT
    call = streamed(lambda x: x.reshape(x.shape[0], -1).sum(1), x, memory=256 << 10)
    assert call.plan().peak_before_bytes >= x.nbytes
    call(x.contiguous())
    assert call.plan().strategy == "whole", "of contiguous ones it is a view"


def test_a_copy_that_cannot_be_cut_is_made_whole_where_it_fits_beside_the_tiles():
    def function(x, y):
        return (x.reshape(-1)[:, None] - y).abs().sum(1)

    call = streamed(function, numbers(40, 500).T, numbers(300), memory=192 << 10)
    assert call.plan().peak_before_bytes > 20_000 * 300 * 4


def test_an_error_says_that_copies_do_not_fit():
    x = numbers(400, 1000).T
    call = togi.lean(lambda x: x.reshape(-1).sin().sum(), memory="256KiB", compile=False)
    with pytest.warns(
        LeanWarning, match=r"1\.53 MiB of what it computes are copies: .* \.contiguous\(\) before the call"
    ):
        call(x)
    call(x.contiguous())
    assert call.plan().strategy == "streamed"
    given_back = togi.lean(lambda x: x.reshape(-1), memory="256KiB", compile=False)
    assert given_back(x.contiguous()).shape == (400_000,)
    with pytest.raises(togi.TogiError, match=r"1\.53 MiB of what it computes are copies"):
        given_back(x)


def test_what_an_operation_takes_for_itself_of_an_input_is_kept_within_the_budget():
    """A product copies a factor whose rows and columns are both strided; ``logsumexp`` copies what it reads."""
    strided, y = numbers(1000, 800)[:, ::2], numbers(3, 400)
    streamed(lambda x, y: x @ y.T, strided, y, memory=256 << 10)
    streamed(lambda x, y: x.logsumexp(1), strided.contiguous(), y, memory=256 << 10)
    call = togi.lean(lambda x, y: x @ y.T, memory=256 << 10, compile=False)
    call(strided.contiguous(), y)
    assert call.plan().strategy == "whole", "it copies nothing then"


def test_strides_are_told_apart_at_equal_sizes():
    call = togi.lean(lambda x: x.reshape(-1).sin().sum(), memory="256KiB", compile=False)
    square = numbers(400, 400)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeanWarning)
        strategies = [call(x) is not None and call.plan().strategy for x in (square, square.T, square, square.T)]
    assert strategies == ["streamed", "as it is"] * 2


def test_many_small_values_that_do_not_fit_together_are_cut():
    """None of them is large against the budget."""

    def function(x):
        scaled = [x * scale for scale in range(12)]
        return sum(one.sin() for one in reversed(scaled))

    streamed(function, numbers(32, 64), memory=40 << 10)
