"""Shows whether the slices of a call along a dimension are independent, by changing the other slices.

A call is run with two slices of the real input. Then the second is replaced: by other values, and by NaN. The first
slice's results must stay the same to the bit (shapes are the same, and so are the kernels), and each slice alone must
give what it gave in company. Rows of a batch are the slices along dimension 0 of every tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from togi.subject.inputs import Inputs
from togi.torch_internals.tensors import tensors_of

Change = Callable[[Tensor, int], Tensor]
"""Of a tensor that is cut along that dimension: another of its shape and dtype."""
_SLICES = 2
_TOLERANCE = 1e-3
"""Of a slice alone against the slice in company, relative to the largest value: other sizes take other kernels."""


@final
@dataclass(frozen=True)
class Cut:
    """Along which dimension each tensor of the arguments is cut, in their order; None where it is passed whole."""

    dimensions: tuple[int | None, ...]

    @classmethod
    def rows(cls, sample: Inputs) -> Cut:
        """Dimension 0 of every tensor that has dimensions."""
        return cls(tuple(0 if tensor.dim() else None for tensor in sample.tensors()))

    def part(self, sample: Inputs, start: int, count: int) -> Inputs:
        """Slices ``start`` to ``start + count``."""
        return self._map(sample, lambda tensor, dimension: tensor.narrow(dimension, start, count))

    def changed(self, sample: Inputs, start: int, count: int, change: Change) -> Inputs:
        """All other slices as ``change`` of the tensor has them."""

        def of(tensor: Tensor, dimension: int) -> Tensor:
            result = change(tensor, dimension)
            result.narrow(dimension, start, count).copy_(tensor.narrow(dimension, start, count))
            return result

        return self._map(sample, of)

    def _map(self, sample: Inputs, change: Callable[[Tensor, int], Tensor]) -> Inputs:
        waiting = iter(self.dimensions)

        def of(tensor: Tensor) -> Tensor:
            dimension = next(waiting)
            return tensor if dimension is None else change(tensor, dimension)

        return sample.map(of)


def why_dependent(function: Callable[..., Any], sample: Inputs) -> str:
    """Empty where the rows of a batch are independent and its results have one row per input row; else the reason why
    not. Calls the function with two rows."""
    cut = Cut.rows(sample)
    two = cut.part(sample, 0, _SLICES)
    both = _run(function, two)
    return _why_dependent(function, two, cut, both, [0] * len(both), "row")


def joined_along(function: Callable[..., Any], sample: Inputs, cut: Cut) -> tuple[list[int], str]:
    """The dimension that holds the slices in each result, where slices are independent; else the reason why not.

    Calls the function with two slices.
    """
    two = cut.part(sample, 0, _SLICES).map(_dense)
    both, one = _run(function, two), _run(function, cut.part(two, 0, 1))
    along = [_only_difference(a, b) for a, b in zip(both, one, strict=False)]
    if len(both) != len(one) or None in along:
        shapes = ", ".join(str(tuple(result.shape)) for result in both)
        return [], f"its results do not have one slice per input slice: {_SLICES} slices gave {shapes}"
    known = [d for d in along if d is not None]
    return known, _why_dependent(function, two, cut, both, known, "slice")


def _why_dependent(
    function: Callable[..., Any], two: Inputs, cut: Cut, both: Sequence[Tensor], along: Sequence[int], thing: str
) -> str:
    if not both:
        return "it returns no tensor"
    if any(result.dim() <= d or result.shape[d] != _SLICES for result, d in zip(both, along, strict=True)):
        shapes = ", ".join(str(tuple(result.shape)) for result in both)
        return f"its results do not have one {thing} per input {thing}: {_SLICES} {thing}s gave {shapes}"
    if found := _why_changed(function, two, cut, along, 0, 1, both, {"another value": _other, "NaN": _nan}):
        return f"the first {thing}'s result changes when the second {thing} becomes {found}"
    for at in range(_SLICES):
        alone = _run(function, cut.part(two, at, 1))
        if any(not _close(a.narrow(d, at, 1), b) for a, b, d in zip(both, alone, along, strict=True)):
            return f"a {thing} alone does not give what it gives in company"
    return ""


def why_kept_changes(
    function: Callable[..., Any], sample: Inputs, cut: Cut, along: Sequence[int], start: int, count: int
) -> str:
    """What the other slices became when results of the ``count`` slices from ``start`` changed; empty where none did.

    Calls the function twice, with all slices; the others become other values and NaN in turns.

    Args:
        along: for each tensor of the results, the dimension that holds its slices.
    """
    apart = sample.map(_dense)  # an argument given twice may take other kernels than two that are equal
    return _why_changed(function, apart, cut, along, start, count, _run(function, apart), {"NaN or others": _mixed})


def _why_changed(
    function: Callable[..., Any],
    sample: Inputs,
    cut: Cut,
    along: Sequence[int],
    start: int,
    count: int,
    known: Sequence[Tensor],
    changes: Mapping[str, Change],
) -> str:
    for name, change in changes.items():
        changed = _run(function, cut.changed(sample, start, count, change))
        for a, b, d in zip(known, changed, along, strict=True):
            if a.shape != b.shape or not _same(a.narrow(d, start, count), b.narrow(d, start, count)):
                return name
    return ""


def _only_difference(one: Tensor, other: Tensor) -> int | None:
    """The one dimension in which the shapes differ."""
    if one.dim() != other.dim():
        return None
    different = [d for d in range(one.dim()) if one.shape[d] != other.shape[d]]
    return different[0] if len(different) == 1 else None


def _run(function: Callable[..., Any], sample: Inputs) -> list[Tensor]:
    """With the same random numbers every time, and without drawing from the caller's."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [tensor.detach() for tensor in tensors_of(function(*sample.args, **sample.kwargs))]


def _other(tensor: Tensor, _: int) -> Tensor:
    """Other values of the same kind: reversed, and for numbers also scaled."""
    reversed_values = tensor.flatten().flip(0).view_as(tensor)
    return reversed_values * 3 + 1 if tensor.is_floating_point() else reversed_values


def _nan(tensor: Tensor, _: int) -> Tensor:
    return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor.clone()


def _mixed(tensor: Tensor, dimension: int) -> Tensor:
    """Every second slice NaN."""
    changed = _other(tensor, dimension)
    if tensor.is_floating_point():
        changed.transpose(0, dimension)[::2] = torch.nan
    return changed


def _dense(tensor: Tensor) -> Tensor:
    """Other strides would take other kernels, with other roundings: all runs that are compared have these."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first.nan_to_num(), second.nan_to_num())


def _close(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not first.is_floating_point():
        return torch.equal(first, second)
    scale = first.abs().nan_to_num().max().item() if first.numel() else 0.0
    return torch.allclose(first, second, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True)
