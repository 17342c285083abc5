"""Reductions put together from parts equal the reduction of the whole, wherever the cuts are."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from togi.tiling.combining import COMBINERS, part_call, streamable_dims
from togi.tiling.slicing import Slice

REDUCTIONS = {
    "sum": lambda x: x.sum(1),
    "sum kept": lambda x: x.sum(1, keepdim=True),
    "mean": lambda x: x.mean(1),
    "amax": lambda x: x.amax(1),
    "amin kept": lambda x: x.amin(1, keepdim=True),
    "max": lambda x: x.max(1),
    "min kept": lambda x: x.min(1, keepdim=True),
    "argmax": lambda x: x.argmax(1),
    "argmin kept": lambda x: x.argmin(1, keepdim=True),
    "logsumexp": lambda x: x.logsumexp(1),
    "topk": lambda x: x.topk(3, 1),
    "least": lambda x: x.topk(2, 1, largest=False),
    "any": lambda x: (x > 1).any(1),
    "all": lambda x: (x > -1).all(1),
}
SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0]


def combined(function, x, cuts):
    """The function's reduction over the last dimension of ``x``, cut into pieces at ``cuts``."""
    graph = make_fx(function)(x).graph
    node = next(n for n in graph.nodes if n.target in COMBINERS)
    dim, values = streamable_dims(node)[-1], {}
    for one in graph.nodes:
        if one is node:
            break
        args = fx.node.map_arg(one.args, values.__getitem__)
        values[one] = x if one.op == "placeholder" else one.target(*args, **one.kwargs)
    call, length = part_call(node, dim), values[node.args[0]].shape[dim]
    combiner = COMBINERS[node.target](node, dim, length)
    for start, end in pairwise([0, *sorted(cuts), length]):
        if end > start:
            args = [values[a.node].narrow(a.dim, start, end - start) if isinstance(a, Slice) else a for a in call.args]
            combiner.add(call.target(*args, **call.kwargs), start, end - start)
    return combiner.finish()


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    cuts=st.sets(st.integers(1, 11), max_size=4),
    seed=st.integers(0, 99),
    special=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 11), st.sampled_from(SPECIAL)), max_size=3),
)
def test_parts_make_the_whole(name, cuts, seed, special):
    x = torch.randint(-3, 4, (5, 12), generator=torch.Generator().manual_seed(seed)).float()
    if name not in ("topk", "least"):  # which of equal values topk takes is not defined
        for row, column, value in special:
            x[row, column] = value
    else:
        x += torch.arange(12) / 100
    found, expected = combined(REDUCTIONS[name], x, cuts), REDUCTIONS[name](x)
    pairs = [(found, expected)] if isinstance(expected, torch.Tensor) else zip(found, expected, strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, equal_nan=True)


ADDED = {
    "sum": lambda x: x.sum(1),
    "sum of all": lambda x: x.sum(),
    "sum in a type": lambda x: x.sum(1, dtype=x.dtype),
    "mean": lambda x: x.mean(1),
    "mean of both": lambda x: x.mean((0, 1)),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "sum of powers": lambda x: torch.linalg.vector_norm(x, 1, 1, dtype=x.dtype),
    "logsumexp": lambda x: x.logsumexp(1),
    "product": lambda x: x @ x.T,
    "product with a vector": lambda x: x @ x[0],
    "product of vectors": lambda x: x[0] @ x[1],
    "product of many": lambda x: torch.bmm(x[None], x.T[None]),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ADDED)
def test_half_precision_is_rounded_once_however_many_tiles_are_added(name, dtype):
    """Each tile's sum is far from 0, and that of all is not: what a tile is rounded to would be left over."""
    x = torch.randn(5, 4096, generator=torch.Generator().manual_seed(0)).mul(0.01).to(dtype)
    x[:, :2048] += 3
    x[:, 2048:] -= 3
    truth = ADDED[name](x.double())
    found = combined(ADDED[name], x, range(8, 4096, 8))
    assert found.dtype == dtype
    roundings = torch.finfo(dtype).eps * truth.abs() / 2
    added_in_float32 = 1e-6 * x.double().abs().sum(1).max()
    assert ((found.double() - truth).abs() <= 1.01 * roundings + added_in_float32).all()
