"""Asks whether rows are computed apart for a batch of any size: recorded once, with symbols for the sizes that vary."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from togi.graph.dependence.analysis import RowsVerdict, judged
from togi.graph.dependence.pairing import for_any_number
from togi.graph.dependence.proof import Called, placed, said
from togi.graph.dependence.recording import record
from togi.torch_internals.compiler import varying_source
from togi.torch_internals.sizes import kernels_for_symbols
from togi.torch_internals.tensors import FakeTensorMode

_MOST_OPERATORS = 2000
"""Followed with symbols, each takes several milliseconds."""
Place = tuple[int, int]
"""A tensor of the call, and a dimension of it."""


def rows_apart_at_any_size(
    call: Called, tensors: Sequence[Tensor], cut: Sequence[int | None], follows: Mapping[Place, tuple[Place, int]]
) -> RowsVerdict:
    """``rows_apart`` for any batch and any piece of two rows or more.

    Args:
        follows: for every size that may vary the one that it is a constant above, and that constant.

    Sizes by which the call branches, or that it turns into plain numbers, are refused.
    """
    environment = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    leads = list(dict.fromkeys(lead for lead, _ in follows.values()))
    sizes = dict(zip(leads, _symbols(mode, [tensors[i].shape[dim] for i, dim in leads]), strict=True))
    try:
        given = [_with_sizes(mode, tensor, i, follows, sizes) for i, tensor in enumerate(tensors)]
        with kernels_for_symbols():
            operators, called = record(
                call, given, mode, stop_at=_MOST_OPERATORS, decisions=lambda: len(environment.guards)
            )
    except Exception as error:  # foreign code: it may read values, or leave torch
        return RowsVerdict(reason=f"it cannot be followed for any number of rows: {said(error)}")
    symbols = {lead: size.node.expr for lead, size in sizes.items()}
    if len(environment.guards) > called.decided or not all(symbol.is_Symbol for symbol in symbols.values()):
        return RowsVerdict(reason="it branches by a size, or computes with one as a plain number")
    lead, _ = follows[next((i, dim) for i, dim in enumerate(cut) if dim is not None)]
    verdict = judged(for_any_number(operators, symbols[lead]), cut)
    return placed(verdict, functools.partial(record, call, given, mode))


def _symbols(mode: FakeTensorMode, hints: Sequence[int]) -> list[Any]:
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(hints))
    sized = mode.from_tensor(
        torch.empty(hints, device="meta"), source=varying_source("sizes"), symbolic_context=context
    )
    return list(sized.shape)


def _with_sizes(
    mode: FakeTensorMode,
    tensor: Tensor,
    i: int,
    follows: Mapping[Place, tuple[Place, int]],
    sizes: Mapping[Place, Any],
) -> Tensor:
    shape: list[Any] = list(tensor.shape)
    for dim in range(tensor.dim()):
        if (i, dim) in follows:
            lead, more = follows[i, dim]
            shape[dim] = sizes[lead] + more if more else sizes[lead]
    with mode:
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
