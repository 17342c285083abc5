"""Decides which operations of a function are traced as their parts: those that cannot be cut into tiles as they are.

Autograd has one derivative per operation, with its special cases (0 where a norm is 0, a saturated loss, equal
extremes). The parts lack them: the derivative of a square root is infinite at 0. So an operation with a rule for slices
stays whole, and its gradient is torch's own. A decomposition written here keeps the operation that has the special
cases; ``proof`` asks all others at the points where such cases lie.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from togi.tiling.combining import COMBINERS
from togi.tiling.slicing import RULES, pointwise
from togi.torch_internals.operators import bound_arguments, core_decompositions, decompositions_of, schema_of

aten = torch.ops.aten
Parts = Callable[..., Any]
_MULTI_PASS = (aten._softmax, aten._log_softmax, aten.var, aten.var_mean, aten.native_layer_norm, aten.addmm)


def decompositions(*, multi_pass: bool, gradient: bool) -> dict[Any, Parts]:
    """Operation -> its parts.

    Args:
        multi_pass: also operations that can be cut along some dimensions only, such as softmax and variance, so that
            they can be streamed over the others in several passes.
        gradient: gradients are wanted, so an operation whose derivative has special cases stays whole.
    """
    core = core_decompositions()
    table: dict[Any, Parts] = {op: parts for op, parts in core.items() if not _stays_whole(op, multi_pass)}
    table |= {op: partial(_loss_of_each, op) for op in RULES if _reduces_a_loss(op)}
    table |= {op: partial(_vector_norm, op) for op in _NORMS}
    if multi_pass:
        table |= decompositions_of(_MULTI_PASS)
        table |= {aten.std.correction: _std, aten.std_mean.correction: _std_mean}
    if gradient:
        table.pop(aten._euclidean_dist.default, None)
    else:  # a distance by matrix products: what depends on one side only is done once, not per tile
        table |= decompositions_of([aten._euclidean_dist])
    return table


def _stays_whole(operation: Any, multi_pass: bool) -> bool:
    rule = RULES.get(operation)
    elementwise = torch.Tag.pointwise in operation.tags if rule is None else rule.cut is pointwise
    return elementwise or operation in COMBINERS or (rule is not None and not multi_pass)


def _reduces_a_loss(operation: Any) -> bool:
    """True if it is a loss of each element, then their mean or sum: ``huber_loss``, ``binary_cross_entropy``."""
    return hasattr(operation, "overloadpacket") and any(a.name == "reduction" for a in schema_of(operation).arguments)


def _loss_of_each(operation: Any, *args: Any, **kwargs: Any) -> Any:
    given = bound_arguments(operation, args, kwargs)
    reduction = given["reduction"]
    if reduction == 0:
        return NotImplemented
    losses = operation(*(0 if name == "reduction" else value for name, value in given.items()))
    return losses.mean() if reduction == 1 else losses.sum()


_NORMS = [aten.norm.Scalar, aten.norm.ScalarOpt_dtype, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype]


def _vector_norm(operation: Any, *args: Any, **kwargs: Any) -> Tensor:
    given = bound_arguments(operation, args, kwargs)
    order = 2 if given["p"] is None else given["p"]
    norm: Tensor = aten.linalg_vector_norm(
        given["self"], order, given.get("dim") or None, given.get("keepdim", False), dtype=given.get("dtype")
    )
    return norm


def _std(tensor: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    """The standard deviation by the norm of the deviations, whose derivative is 0 where they are, as that of ``std``
    is."""
    return _std_mean(tensor, dim, correction=correction, keepdim=keepdim)[0]


def _std_mean(
    tensor: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = list(range(tensor.dim())) if not dim else [dim] if isinstance(dim, int) else list(dim)
    count = 1
    for reduced in dims:
        count = count * tensor.shape[reduced]
    mean = tensor.mean(dims, keepdim=True)
    freedom = max(count - (1 if correction is None else correction), 0)
    deviation = aten.linalg_vector_norm(tensor - mean, 2, dims, keepdim) / torch.sym_sqrt(freedom)
    return deviation, mean if keepdim else mean.squeeze(dims)
