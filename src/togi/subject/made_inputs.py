"""Inputs and weights made up from a seed, for subjects that come without.

Inputs follow from what is known of them: name, dtype, shape. Weights look as if the model had been trained: fresh
models hold constants (batch norms that change nothing, residual branches and layer scales that start at nearly zero,
classifiers of zeros), on which a wrong fold or a lost branch would pass every comparison. Constants therefore get
values of their own per element; weights that are random already stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from togi.subject.domain import Domain
from togi.subject.inputs import Inputs
from togi.torch_internals.modules import BatchNorm

if TYPE_CHECKING:
    from togi.subject.signature import Signature


DYNAMIC_SIZE = 8
"""Size given to a dynamic dimension. Not 0 or 1, which tracers treat as constants."""


_OTHER_SIZES = (16, 32, 64, 128, 256, 512, 1024, 4, 2, 6, 12, 24, 48, 96, 7, 14, 49, 196)


def made_tensor(dtype: torch.dtype, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Normal values for floating-point and complex dtypes; else 0 and 1, which are valid ids, masks and class numbers
    nearly everywhere."""
    if dtype.is_floating_point:
        return torch.randn(tuple(shape), generator=generator).to(dtype)
    if dtype.is_complex:
        parts = torch.randn(*shape, 2, generator=generator)
        return torch.view_as_complex(parts).to(dtype)
    return torch.randint(0, 2, tuple(shape), generator=generator).to(dtype)


def samples_from_signature(signature: Signature, seed: int) -> tuple[Inputs, ...]:
    """One sample of the form that ``signature`` describes; dynamic dimensions get ``DYNAMIC_SIZE``, and as much more
    than another as they have to; another size where its conditions ask for one."""
    samples = (_sample(signature, size, seed) for size in (DYNAMIC_SIZE, *_OTHER_SIZES))
    return (
        next((sample for sample in samples if not signature.unmet(sample)), _sample(signature, DYNAMIC_SIZE, seed)),
    )


def _sample(signature: Signature, least: int, seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    sizes = dict.fromkeys(signature.dynamic_dims, least)
    for relation in signature.relations:  # one that others are less than is made larger
        sizes[relation.other] = max(sizes[relation.other], least - relation.more)
    for relation in signature.relations:
        sizes[relation.one] = sizes[relation.other] + relation.more
    tensors = [
        made_tensor(
            getattr(torch, facts.dtype),
            [sizes[i, dim] if size is None else size for dim, size in enumerate(facts.shape)],
            generator,
        ).to(signature.device)
        for i, facts in enumerate(signature.inputs_facts)
    ]
    domains = signature.domains or (Domain(),) * len(tensors)
    args, kwargs = signature.build_inputs([_inside(d, t) for d, t in zip(domains, tensors, strict=True)])
    return Inputs(args, kwargs)


def _inside(domain: Domain, tensor: Tensor) -> Tensor:
    """The tensor with its values moved into a domain."""
    if domain.bounded:
        numbers = tensor.int() if tensor.dtype is torch.bool else tensor
        tensor = numbers.clamp(domain.low, domain.high).to(tensor.dtype)
    if not domain.empty_rows:
        tensor[..., 0] = 1
    if not domain.full_rows:
        tensor[..., -1] = 0
    return tensor


def vary_constants(module: nn.Module, seed: int) -> nn.Module:
    """Change ``module`` in place, and return it. Weights loaded from a file must not be given here."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, BatchNorm) and part.running_mean is not None:
                assert part.running_var is not None
                part.running_mean.normal_(0.0, 0.1, generator=generator)
                part.running_var.uniform_(0.5, 1.5, generator=generator)
        for name, parameter in module.named_parameters():
            if _is_constant(parameter):
                _vary(name, parameter, generator)
    return module


def _is_constant(parameter: Tensor) -> bool:
    plain = parameter.is_floating_point() and parameter.numel() > 1 and parameter.device.type == "cpu"
    return plain and bool((parameter == parameter.flatten()[0]).all())


def _vary(name: str, parameter: Tensor, generator: torch.Generator) -> None:
    constant = float(parameter.flatten()[0])
    per_channel = parameter.numel() == max(parameter.shape)
    if abs(constant) > 0.5:  # scales of norms
        parameter.mul_(_uniform(parameter, 0.8, 1.2, generator))
    elif per_channel and not name.endswith(("bias", "token")):  # branches that start switched off
        parameter.copy_(_uniform(parameter, 0.1, 0.3, generator))
    else:
        parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.02, generator=generator))


def _uniform(like: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.empty_like(like).uniform_(low, high, generator=generator)
