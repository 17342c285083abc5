"""Small models with made-up weights on which the claims of techniques are measured, one per kind of claim.

Each function is a subject's factory: it returns a module and one sample. By default a pass takes some milliseconds on
two cores; ``gpu_models`` makes the same at the size of a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import torch
from torch import Tensor, nn

from togi.claims.formulas.layers import (
    Branches,
    ByFirstToken,
    Copies,
    Decaying,
    EarlyExit,
    Elementwise,
    Growing,
    Head,
    Residual,
    SingularValues,
    Skip,
    Small,
    Standardised,
    TransformerBlock,
    WrittenOut,
    normed,
)

Made = tuple[nn.Module, Tensor]
Sizes = ParamSpec("Sizes")


def _in_use(make: Callable[Sizes, Made]) -> Callable[Sizes, Made]:
    """In eval mode, as a model is used."""

    @functools.wraps(make)
    def made(*args: Sizes.args, **sizes: Sizes.kwargs) -> Made:
        module, sample = make(*args, **sizes)
        return module.eval(), sample

    return made


@_in_use
def convolutions(batch: int = 1, size: int = 96) -> Made:
    """A residual network for images of 96 x 96: 3 x 3 convolutions of 64 channels, each with a batch norm."""
    layers = [normed(3, 64, stride=2), *(Residual(64) for _ in range(4)), Head(64)]
    return nn.Sequential(*layers), torch.randn(batch, 3, size, size)


@_in_use
def volumes(batch: int = 1, size: tuple[int, int, int] = (16, 24, 24)) -> Made:
    """3 x 3 x 3 convolutions of 32 channels over a volume of 16 x 24 x 24."""
    layers = [nn.Sequential(nn.Conv3d(32, 32, 3, padding=1), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(nn.Conv3d(1, 32, 3, padding=1), *layers), torch.randn(batch, 1, *size)


@_in_use
def odd_channels(batch: int = 1, size: int = 96) -> Made:
    """As ``convolutions``, with 61 channels: no multiple of what the processor's vectors hold."""
    layers = [normed(3, 61, stride=2), *(Residual(61) for _ in range(4)), Head(61)]
    return nn.Sequential(*layers), torch.randn(batch, 3, size, size)


@_in_use
def branches(batch: int = 1, size: int = 96) -> Made:
    """RepVGG blocks as they are trained: 3 x 3, 1 x 1 and identity, each with a batch norm, added."""
    layers = [normed(3, 64, stride=2), *(Branches(64) for _ in range(4)), Head(64)]
    return nn.Sequential(*layers), torch.randn(batch, 3, size, size)


@_in_use
def upsampled(batch: int = 1, size: int = 24) -> Made:
    """3 x 3 convolutions of 64 channels, two of them after an upsampling by two, from 24 x 24 on."""
    steps = [nn.Upsample(scale_factor=2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    again = [nn.Upsample(scale_factor=2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*steps, *again), torch.randn(batch, 64, size, size)


@_in_use
def skips(batch: int = 1, size: int = 64) -> Made:
    """3 x 3 convolutions of 64 channels on 64 x 64, each of its input and the one before it, as decoders have them."""
    return nn.Sequential(*(Skip(64) for _ in range(3))), torch.randn(batch, 64, size, size)


@_in_use
def gru() -> Made:
    """Two layers of 256 units over 100 steps of one sequence."""
    return nn.GRU(80, 256, num_layers=2, batch_first=True), torch.randn(1, 100, 80)


@_in_use
def early_exit(batch: int = 1, channels: int = 32, size: int = 48) -> Made:
    """Eight passes through a residual network, ended early where the result is small: Python that no export follows."""
    body = nn.Sequential(*(Residual(channels) for _ in range(3)))
    return EarlyExit(body), torch.randn(batch, channels, size, size)


@_in_use
def transformer(batch: int = 1, tokens: int = 128, width: int = 256) -> Made:
    """Two transformer blocks of width 256 over 128 tokens, with heads of 64."""
    return nn.Sequential(*(TransformerBlock(width, heads=width // 64) for _ in range(2))), torch.randn(
        batch, tokens, width
    )


@_in_use
def classified(batch: int = 1, tokens: int = 128, width: int = 256) -> Made:
    """As ``transformer``, and a class by the first token alone."""
    blocks, sample = transformer(batch, tokens, width)
    return nn.Sequential(blocks, ByFirstToken(width)), sample


@_in_use
def handwritten(batch: int = 1, tokens: int = 128, width: int = 256) -> Made:
    """As ``transformer``, with attention, layer norms and GELU written out."""
    return nn.Sequential(*(WrittenOut(width, heads=width // 64) for _ in range(2))), torch.randn(batch, tokens, width)


@_in_use
def standardised(batch: int = 1, channels: int = 256) -> Made:
    """Convolutions of 256 channels on 14 x 14 whose weights get mean 0 and deviation 1 at each call."""
    layers = [Standardised(channels) for _ in range(4 if channels <= 256 else 2)]
    return nn.Sequential(*layers), torch.randn(batch, channels, 14, 14)


@_in_use
def small_operations() -> Made:
    """Sixty linear layers of width 32 with a residual each: time goes into calling operations, not into computing."""
    return nn.Sequential(*(Small(32) for _ in range(60))), torch.randn(1, 32)


@_in_use
def large_products(width: int = 4096) -> Made:
    """Five linear layers on one row: 84 million weights, of which each is used once."""
    layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(5)]
    return nn.Sequential(*layers), torch.randn(1, width)


@_in_use
def matrices() -> Made:
    """The singular values of 64 matrices, which PyTorch asks LAPACK for one after the other."""
    return SingularValues(), torch.randn(64, 48, 48)


@_in_use
def kept_activations() -> Made:
    """As ``small_operations``, for 512 rows: every layer's result would be kept for a backward pass."""
    return small_operations()[0], torch.randn(512, 32)


@_in_use
def large_activations() -> Made:
    """Elementwise operations on 16 MiB at a time: time goes into memory that is asked for and given back."""
    return Elementwise(), torch.randn(64, 65_536)


@_in_use
def growing(columns: int = 1 << 18) -> Made:
    """Twelve results from 8 MiB on, each larger than the one before by a megabyte."""
    return Growing(12), torch.randn(8, columns)


@_in_use
def copies(rows: int = 64) -> Made:
    """Elementwise operations with a copy, ``x + 0``, ``x * 1`` and a dropout after each."""
    return nn.Sequential(*(Copies() for _ in range(4))), torch.randn(rows, 16_384)


@_in_use
def decaying() -> Made:
    """A filter whose state decays until its numbers are denormal, as recurrent networks' may."""
    return Decaying(), torch.rand(1, 16_384) * 1e-36
