"""Reductions put together from parts equal the reduction of the whole, wherever the cuts are."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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
    """The function's last reduction over ``x``, cut into pieces at ``cuts``."""
    graph = make_fx(function)(x).graph
    node = next(n for n in graph.nodes if n.target in COMBINERS)
    source = _operand(node, x)
    (dim,) = streamable_dims(node)
    call = part_call(node, dim)
    combiner = COMBINERS[node.target](node, dim, source.shape[dim])
    edges = [0, *sorted(cuts), source.shape[dim]]
    for start, end in pairwise(edges):
        if end > start:
            args = [source.narrow(dim, start, end - start) if isinstance(a, Slice) else a for a in call.args]
            combiner.add(call.target(*args, **call.kwargs), start, end - start)
    return combiner.finish()


def _operand(node, x):
    """The value that the reduction reads: ``x`` itself, or a comparison of it."""
    source = node.args[0]
    return x if source.op == "placeholder" else source.target(x, *source.args[1:])


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
