"""Subjects that commands are given by the name of this file."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def perceptron(width: int = 256) -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 8)), torch.ones(16, 64)


def wider_perceptron() -> tuple[nn.Module, Tensor]:
    return perceptron(width=512)


def blocks() -> tuple[nn.Module, Tensor]:
    """Three blocks that keep much for their backward pass."""
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1)) for _ in range(3))
    return nn.Sequential(*layers), torch.randn(512, 64)


def frozen() -> tuple[nn.Module, Tensor]:
    module, sample = blocks()
    return module.requires_grad_(False), sample


def wide() -> tuple[nn.Module, Tensor]:
    """Its hidden values are many times as large as its input and output."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 2048), nn.GELU(), nn.Linear(2048, 16)).eval(), torch.randn(2, 256, 16)


class _Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no forward today")


def broken() -> tuple[nn.Module, Tensor]:
    return _Broken(), torch.ones(1)


class _OfValues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0]


def of_values() -> tuple[nn.Module, Tensor]:
    """The size of its output depends on values."""
    return _OfValues(), torch.ones(4)
