"""Functions put together at random from pointwise, broadcasting, mixing and reducing operations: ``lean(f)`` is ``f``."""

# ruff: noqa: ARG005, E501 (one signature for all steps)

from __future__ import annotations

import os
import warnings

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import togi
from togi.measure.memory import torch_allocator_peak_bytes
from togi.tiling.lean import LeanWarning

os.environ.setdefault("KINETO_LOG_LEVEL", "99")
NUMBERS = 48 << 10
"""That fit into the budget, beside the result."""

PAIRS = {
    "difference": lambda x, y: (x[:, None] - y[None]).abs().sum(-1),
    "product": lambda x, y: x @ y.T,
    "cdist": torch.cdist,
    "outer": lambda x, y: x[:, :1] * y[:, 0],
    "einsum": lambda x, y: torch.einsum("id,jd->ij", x, y),
}
STEPS = {
    "sin": lambda m, x, y: m.sin(),
    "decay": lambda m, x, y: torch.exp(-m.abs()),
    "clamp": lambda m, x, y: m.clamp(-1, 1),
    "add rows": lambda m, x, y: m + x[:, 1:2],
    "scale columns": lambda m, x, y: m * y[:, 1],
    "where": lambda m, x, y: torch.where(m > 0, m, m * 0.1),
    "minus mean of rows": lambda m, x, y: m - m.mean(1, keepdim=True),
    "minus mean of columns": lambda m, x, y: m - m.mean(0, keepdim=True),
    "softmax of rows": lambda m, x, y: m.softmax(1),
    "softmax of columns": lambda m, x, y: m.softmax(0),
    "scan along rows": lambda m, x, y: m.cumsum(1) / 10,
    "scan along columns": lambda m, x, y: m.cumsum(0) / 10,
    "flipped": lambda m, x, y: m.flip(0),
    "sorted": lambda m, x, y: m.sort(1).values,
    "by position": lambda m, x, y: m * (torch.arange(m.shape[0])[:, None] % 3),
    "by size": lambda m, x, y: m / m.shape[0],
    "there and back": lambda m, x, y: (m.T * 2).T,
    "without first": lambda m, x, y: m[1:, :] + x[1:, :1],
    "halves": lambda m, x, y: m.view(2, -1, m.shape[1])[0] if m.shape[0] % 2 == 0 else m,
}
ENDS = {
    "sum": lambda m, d: m.sum(d),
    "mean": lambda m, d: m.mean(d),
    "max": lambda m, d: m.max(d).values,
    "amin": lambda m, d: m.amin(d),
    "logsumexp": lambda m, d: m.logsumexp(d),
    "topk": lambda m, d: m.topk(3, d).values,
    "norm": lambda m, d: m.norm(dim=d),
    "all": lambda m, d: m.sum(),
    "both": lambda m, d: (m.sum(0), m.max(1).values),
    "matrix": lambda m, d: m,
}


COMPOSED = given(
    pair=st.sampled_from(sorted(PAIRS)),
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
    end=st.sampled_from(sorted(ENDS)),
    dim=st.sampled_from([0, 1]),
    sizes=st.tuples(st.integers(150, 260), st.integers(150, 260)),
    seed=st.integers(0, 1000),
)


@pytest.mark.thorough
@settings(max_examples=15, deadline=None, derandomize=True)
@COMPOSED
def test_a_composed_function_is_the_plain_one_within_its_budget(pair, steps, end, dim, sizes, seed):
    # sums of some hundred numbers that cancel: a wrong tile is off by whole numbers
    _check_composed(pair, steps, end, dim, sizes, seed, torch.float32, rtol=2e-4, atol=1e-3)


@pytest.mark.thorough
@settings(max_examples=30, deadline=None, phases=[Phase.generate])
@COMPOSED
def test_any_composed_function_is_the_plain_one_within_its_budget(pair, steps, end, dim, sizes, seed):
    # in float64, where no sum cancels so far that its order could be taken for a wrong tile
    _check_composed(pair, steps, end, dim, sizes, seed, torch.float64, rtol=1e-6, atol=1e-6)


def _check_composed(pair, steps, end, dim, sizes, seed, dtype, *, rtol, atol):
    def function(x, y):
        matrix = PAIRS[pair](x, y)
        for step in steps:
            if step != "without first" or matrix.shape[0] == x.shape[0]:
                matrix = STEPS[step](matrix, x[: matrix.shape[0]], y)
        return ENDS[end](matrix, dim)

    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(size, 4, generator=generator, dtype=dtype) for size in sizes)
    expected = function(x, y)
    budget = NUMBERS * dtype.itemsize + sum(leaf.nbytes for leaf in pytree.tree_leaves(expected))
    call = togi.lean(function, memory=budget, compile=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeanWarning)
        for _ in range(2):
            result = call(x, y)
            for one, other in zip(pytree.tree_leaves(result), pytree.tree_leaves(expected), strict=True):
                torch.testing.assert_close(one, other, rtol=rtol, atol=atol)
    del result, one, other
    assert call.plan().strategy in ("streamed", "whole", "as it is")
    if call.plan().strategy == "streamed":
        assert (torch_allocator_peak_bytes(lambda: call(x, y)) or 0) <= budget


DIFFERENTIATED = ("sum", "mean", "max", "logsumexp", "topk", "norm", "both", "all")


@pytest.mark.parametrize(
    ("end", "dim"),
    [
        pytest.param(end, dim, marks=() if (at + dim) % 2 else pytest.mark.thorough)
        for at, end in enumerate(DIFFERENTIATED)
        for dim in (0, 1)
    ],
)
def test_gradients_against_finite_differences(end, dim):
    def function(x, y):
        return ENDS[end](torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1)) * y[:, 0], dim)

    x = torch.randn(12, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(10, 2, dtype=torch.float64, requires_grad=True)
    call = togi.lean(function, memory=3500, compile=False)
    assert torch.autograd.gradcheck(call, (x, y))
    assert call.plan().strategy == "streamed", call.plan()
