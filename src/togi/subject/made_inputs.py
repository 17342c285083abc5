"""Inputs made from what is known of them: name, dtype, shape. Values are random, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from togi.subject.inputs import Inputs

if TYPE_CHECKING:
    from togi.subject.signature import Signature

DYNAMIC_SIZE = 8
"""Size given to a dynamic dimension. Not 0 or 1, which tracers treat as constants."""


def made_tensor(dtype: torch.dtype, shape: Sequence[int], generator: torch.Generator, high: int = 2) -> torch.Tensor:
    """Normal values for floating-point and complex dtypes; integers in [0, high); a coin's toss for bool.

    ``high`` is 2 unless more is known: 0 and 1 are valid ids, masks and class numbers nearly everywhere.
    """
    if dtype is torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator).bool()
    if dtype.is_floating_point:
        return torch.randn(tuple(shape), generator=generator).to(dtype)
    if dtype.is_complex:
        parts = torch.randn(*shape, 2, generator=generator)
        return torch.view_as_complex(parts).to(dtype)
    return torch.randint(0, high, tuple(shape), generator=generator).to(dtype)


def samples_from_signature(signature: Signature, seed: int) -> tuple[Inputs, ...]:
    """One sample of the form that ``signature`` describes; dynamic dimensions get ``DYNAMIC_SIZE``."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        made_tensor(
            getattr(torch, facts.dtype),
            [DYNAMIC_SIZE if size is None else size for size in facts.shape],
            generator,
        ).to(signature.device)
        for facts in signature.inputs_facts
    ]
    args, kwargs = signature.build_inputs(tensors)
    return (Inputs(args, kwargs),)
