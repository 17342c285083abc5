"""The functions that are captured: a call, or its gradients, from and into shared memory, so that nothing in the pool
outlives a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.graphs.form import SharedTensors, size_of, tensors_in
from togi.graphs.gradient import gradients_of

Call = Callable[..., Any]
"""The function, called with the tensors of a call in order."""


def forward(call: Call, results: SharedTensors, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The results of a call go to ``results``."""
    computed = _without_cached_casts(lambda: tensors_in(call(*tensors)))
    _copy(computed, results.views(size_of(computed, results.shapes) or 0))
    return ()


def gradients(
    call: Call,
    weights: Sequence[Tensor],
    wanted: Sequence[bool],
    differentiable: Sequence[bool],
    memory: tuple[SharedTensors, SharedTensors, SharedTensors],
    *tensors: Tensor,
) -> tuple[Tensor, ...]:
    """The gradients that stand in the memory of the results go back to the wanted inputs and to the weights.

    Args:
        differentiable: by result.
        memory: of inputs, of results, and what takes the gradients found.
    """
    inputs, results, gradients_found = memory
    n = size_of(tensors, inputs.shapes) or 0
    ahead = [view for view, differs in zip(results.views(n), differentiable, strict=True) if differs]
    run = gradients_of(call, weights, wanted, lambda _: ahead, zeros=True)
    _copy(_without_cached_casts(lambda: run(*tensors)), gradients_found.views(n))
    return ()


def _without_cached_casts(run: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
    # Weights that autocast keeps in 16 bits go when its block ends: the graph must make them, and not leave its own.
    torch.clear_autocast_cache()
    results = run()
    torch.clear_autocast_cache()
    return results


def _copy(results: Sequence[Tensor], into: Sequence[Tensor]) -> None:
    for buffer, tensor in zip(into, results, strict=True):
        buffer.copy_(tensor)
