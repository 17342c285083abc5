"""Random draws of a float64 twin: the numbers that float32 draws.

A generator gives float64 other numbers than float32, so noise that a step draws would differ between a step and its
twin. Here every float64 draw is made in float32 and widened. Masks of dropout are alike in any case on a CPU, and not
on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from togi.torch_internals.modes import DispatchObserver
from togi.torch_internals.operators import OpOverload, bound_arguments, schema_of, written_arguments
from togi.torch_internals.tensors import tensors_of, tree_map_only


class NarrowDraws(DispatchObserver):
    """Inside, what is drawn in float64 is what float32 would have drawn from the same state."""

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if operator is torch.ops.aten.native_dropout.default:
            return _dropout(**bound_arguments(operator, args, kwargs))
        if not _draws(operator):
            return operator(*args, **kwargs)
        return _drawn(operator, args, kwargs)


@cache
def _draws(operator: Any) -> bool:
    """Whether an operator fills a tensor with floating-point random numbers. Attention and recurrent layers, which may
    draw too, compute with what they are given; integers are alike in all dtypes."""
    if not isinstance(operator, OpOverload) or torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    names = {argument.name for argument in schema_of(operator).arguments}
    return bool(names & {"generator", "dtype"}) and "randint" not in str(operator) and "randperm" not in str(operator)


def _drawn(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    given = bound_arguments(operator, args, kwargs)
    if not _is_float64(given):
        return operator(*args, **kwargs)
    narrow = tree_map_only(Tensor, _narrowed, given)
    if "dtype" in narrow:
        narrow["dtype"] = torch.float32
    written = [given[name] for name in written_arguments(operator) if isinstance(given[name], Tensor)]
    positional = [narrow.pop(a.name) for a in schema_of(operator).arguments if not a.kwarg_only]
    drawn = operator(*positional, **narrow)
    if written:
        return written[0].copy_(drawn)
    return tree_map_only(Tensor, lambda t: t.double() if t.dtype is torch.float32 else t, drawn)


def _is_float64(given: dict[str, Any]) -> bool:
    """Whether the result would be float64: asked for, as the tensors that are given are, or by default."""
    if given.get("dtype") is not None:
        return given["dtype"] is torch.float64
    tensors = tensors_of(given)
    return any(t.dtype is torch.float64 for t in tensors) or (
        not tensors and torch.get_default_dtype() is torch.float64
    )


def _narrowed(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32) if tensor.dtype is torch.float64 else tensor


def _dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The kernel that CUDA has for dropout: its mask is that of float32, what it masks stays as exact as it is."""
    _, mask = torch.ops.aten.native_dropout(_narrowed(input), p, train)
    return input * mask * (1.0 / (1.0 - p) if p < 1 else 0.0) if train is not False else input.clone(), mask
