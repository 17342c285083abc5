"""Random weights as if a model had been trained: no layer is the identity, no branch is switched off.

Fresh models hold constants: batch norms that change nothing, residual branches and layer scales that start at (nearly)
zero, classifiers of zeros. On such a model a wrong fold or a lost branch would pass every comparison, so constants get
values of their own per element. Weights that are random already stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def live_in(module: nn.Module, seed: int) -> nn.Module:
    """Change ``module`` in place, and return it. Weights loaded from a file must not be given here."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
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
