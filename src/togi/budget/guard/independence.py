"""Whether the rows of a batch are independent: shown by what happens when other rows change.

Two rows of the real input run together. Then the second is replaced: by another row's values, and by NaN. The first
row's results must stay the same to the bit (shapes are the same, and so are the kernels), and each row alone must give
what it gave in company.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from togi.budget.guard.foresee import first_rows, tensors_of
from togi.subject.inputs import Inputs

_ROWS = 2
_TOLERANCE = 1e-3
"""Of a row alone against the row in company, relative to the largest value: other sizes take other kernels."""


def why_dependent(function: Callable[..., Any], sample: Inputs) -> str:
    """Empty where rows are independent; else the reason why they are not. Calls the function with two rows."""
    two = first_rows(sample, 0, _ROWS)
    both = _run(function, two)
    if not both:
        return "it returns no tensor"
    if any(result.dim() == 0 or result.shape[0] != _ROWS for result in both):
        shapes = ", ".join(str(tuple(result.shape)) for result in both)
        return f"its results do not have one row per input row: {_ROWS} rows gave {shapes}"
    for name, change in (("another value", _other), ("NaN", _nan)):
        changed = _run(function, two.map(change))
        if any(not _same(a[:1], b[:1]) for a, b in zip(both, changed, strict=True)):
            return f"the first row's result changes when the second row becomes {name}"
    for row in range(_ROWS):
        alone = _run(function, first_rows(two, row, 1))
        if any(not _close(a[row : row + 1], b) for a, b in zip(both, alone, strict=True)):
            return "a row alone does not give what it gives in company"
    return ""


def _run(function: Callable[..., Any], sample: Inputs) -> list[Tensor]:
    """With the same random numbers every time, and without drawing from the caller's."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [tensor.detach() for tensor in tensors_of(function(*sample.args, **sample.kwargs))]


def _other(tensor: Tensor) -> Tensor:
    """The second row with other values of the same kind: reversed, and for numbers also scaled."""
    if tensor.dim() == 0:
        return tensor
    changed = tensor.clone()
    reversed_row = tensor[:1].flatten().flip(0).view_as(tensor[:1])
    changed[1:] = reversed_row * 3 + 1 if tensor.is_floating_point() else reversed_row
    return changed


def _nan(tensor: Tensor) -> Tensor:
    if tensor.dim() == 0 or not tensor.is_floating_point():
        return tensor
    changed = tensor.clone()
    changed[1:] = torch.nan
    return changed


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first.nan_to_num(), second.nan_to_num())


def _close(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not first.is_floating_point():
        return torch.equal(first, second)
    scale = first.abs().nan_to_num().max().item() if first.numel() else 0.0
    return torch.allclose(first, second, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True)
