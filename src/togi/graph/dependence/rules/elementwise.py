"""Operators that compute each element by itself, with broadcasting."""

from __future__ import annotations

import torch

from togi.graph.dependence.rules.registry import Answer, Operands, agreed, aligned, rule
from togi.graph.dependence.state import Depends

_COUNTS = (torch.int32, torch.int64)


@rule(
    "pointwise native_dropout fill zero copy hardswish log_sigmoid_forward _prelu_kernel polar complex "
    "fake_quantize_per_tensor_affine_cachemask"
)
def pointwise(given: Operands) -> Answer:
    """Operands are aligned from the right."""
    states = [aligned(given.states[operand], len(operand.shape), given.rank) for operand in given.tensors()]
    return agreed(given.call, states)


@rule("_to_copy clone alias detach lift_fresh lift_fresh_copy contiguous _conj _neg_view resolve_conj", numbers=True)
def copied(given: Operands) -> Answer:
    state = given.rows("self")
    if state.numbers and given.result.dtype not in _COUNTS:
        raise Depends(f"{given.call.name} computes with the numbers of the rows")
    return state


@rule("view_as_real view_as_complex real imag")
def complex_parts(given: Operands) -> Answer:
    """The last dimension comes or goes."""
    return given.kept("self", [-1] if given.call.name.startswith("aten.view_as_complex") else [])
