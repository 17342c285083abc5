"""Small models with made-up weights on which the claims of techniques are measured, one per kind of claim.

Each function is a subject's factory: it returns a module and one sample. A pass takes some milliseconds on two cores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, Tensor]


def _in_use(make: Callable[[], Made]) -> Callable[[], Made]:
    """In eval mode, as a model is used."""

    @functools.wraps(make)
    def made() -> Made:
        module, sample = make()
        return module.eval(), sample

    return made


@_in_use
def convolutions() -> Made:
    """A residual network for images of 96 x 96: 3 x 3 convolutions of 64 channels, each with a batch norm."""
    return nn.Sequential(_normed(3, 64, stride=2), *(_Residual(64) for _ in range(4)), _Head(64)), torch.randn(
        1, 3, 96, 96
    )


@_in_use
def volumes() -> Made:
    """3 x 3 x 3 convolutions of 32 channels over a volume of 16 x 24 x 24."""
    layers = [nn.Sequential(nn.Conv3d(32, 32, 3, padding=1), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(nn.Conv3d(1, 32, 3, padding=1), *layers), torch.randn(1, 1, 16, 24, 24)


@_in_use
def odd_channels() -> Made:
    """As ``convolutions``, with 61 channels: no multiple of what the processor's vectors hold."""
    return nn.Sequential(_normed(3, 61, stride=2), *(_Residual(61) for _ in range(4)), _Head(61)), torch.randn(
        1, 3, 96, 96
    )


@_in_use
def branches() -> Made:
    """RepVGG blocks as they are trained: 3 x 3, 1 x 1 and identity, each with a batch norm, added."""
    return nn.Sequential(_normed(3, 64, stride=2), *(_Branches(64) for _ in range(4)), _Head(64)), torch.randn(
        1, 3, 96, 96
    )


@_in_use
def upsampled() -> Made:
    """3 x 3 convolutions of 64 channels, two of them after an upsampling by two, from 24 x 24 on."""
    steps = [nn.Upsample(scale_factor=2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    again = [nn.Upsample(scale_factor=2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*steps, *again), torch.randn(1, 64, 24, 24)


@_in_use
def skips() -> Made:
    """3 x 3 convolutions of 64 channels on 64 x 64, each of its input and the one before it, as decoders have them."""
    return nn.Sequential(*(_Skip(64) for _ in range(3))), torch.randn(1, 64, 64, 64)


@_in_use
def gru() -> Made:
    """Two layers of 256 units over 100 steps of one sequence."""
    return nn.GRU(80, 256, num_layers=2, batch_first=True), torch.randn(1, 100, 80)


@_in_use
def early_exit() -> Made:
    """Eight passes through a residual network, ended early where the result is small: Python that no export follows."""
    return _EarlyExit(nn.Sequential(*(_Residual(32) for _ in range(3)))), torch.randn(1, 32, 48, 48)


@_in_use
def transformer() -> Made:
    """Two transformer blocks of width 256 over 128 tokens."""
    return nn.Sequential(*(_Block(256, heads=4) for _ in range(2))), torch.randn(1, 128, 256)


@_in_use
def classified() -> Made:
    """As ``transformer``, and a class by the first token alone."""
    blocks, sample = transformer()
    return nn.Sequential(blocks, _ByFirstToken(256)), sample


@_in_use
def handwritten() -> Made:
    """As ``transformer``, with attention, layer norms and GELU written out."""
    return nn.Sequential(*(_WrittenOut(256, heads=4) for _ in range(2))), torch.randn(1, 128, 256)


@_in_use
def standardised() -> Made:
    """Convolutions of 256 channels on 14 x 14 whose weights get mean 0 and deviation 1 at each call."""
    return nn.Sequential(*(_Standardised(256) for _ in range(4))), torch.randn(1, 256, 14, 14)


@_in_use
def small_operations() -> Made:
    """Sixty linear layers of width 32 with a residual each: time goes into calling operations, not into computing."""
    return nn.Sequential(*(_Small(32) for _ in range(60))), torch.randn(1, 32)


@_in_use
def matrices() -> Made:
    """The singular values of 64 matrices, which PyTorch asks LAPACK for one after the other."""
    return _SingularValues(), torch.randn(64, 48, 48)


@_in_use
def kept_activations() -> Made:
    """As ``small_operations``, for 512 rows: every layer's result would be kept for a backward pass."""
    return small_operations()[0], torch.randn(512, 32)


@_in_use
def large_activations() -> Made:
    """Elementwise operations on 16 MiB at a time: time goes into memory that is asked for and given back."""
    return _Elementwise(), torch.randn(64, 65_536)


@_in_use
def growing() -> Made:
    """Twelve results from 8 MiB on, each larger than the one before by a megabyte."""
    return _Growing(12), torch.randn(8, 1 << 18)


@_in_use
def copies() -> Made:
    """Elementwise operations with a copy, ``x + 0``, ``x * 1`` and a dropout after each."""
    return nn.Sequential(*(_Copies() for _ in range(4))), torch.randn(64, 16_384)


@_in_use
def decaying() -> Made:
    """A filter whose state decays until its numbers are denormal, as recurrent networks' may."""
    return _Decaying(), torch.rand(1, 16_384) * 1e-36


def _normed(channels: int, out: int, stride: int = 1, size: int = 3) -> nn.Module:
    norm = nn.BatchNorm2d(out)
    with torch.no_grad():  # statistics as after training: folding them must change the weights
        for tensor in (norm.running_mean, norm.bias):
            assert tensor is not None
            tensor.uniform_(-0.1, 0.1)
        for tensor in (norm.running_var, norm.weight):
            assert tensor is not None
            tensor.uniform_(0.8, 1.2)
    return nn.Sequential(nn.Conv2d(channels, out, size, stride=stride, padding=size // 2, bias=False), norm)


class _Skip(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(width, width, 3, padding=1)
        self.outer = nn.Conv2d(2 * width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[n, width, h, w], unchanged in shape."""
        return functional.relu(self.outer(torch.cat([x, functional.relu(self.inner(x))], dim=1)))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = _normed(channels, channels), _normed(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.second(functional.relu(self.first(x))))


class _EarlyExit(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            x = self.body(x)
            largest = x.abs().amax()
            if float(largest) < 1e-3:  # togi: ignore[scalar-from-tensor] a program decides by values
                break
            x = x / largest
        return x


class _Branches(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide, self.narrow = _normed(channels, channels), _normed(channels, channels, size=1)
        self.identity = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.wide(x) + self.narrow(x) + self.identity(x))


class _Head(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((2, 3)))  # type: ignore[no-any-return]


class _Standardised(nn.Module):
    """Source: Qiao et al., https://arxiv.org/abs/1903.10520."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.convolution.weight.flatten(1)
        weight = (weight - weight.mean(1, keepdim=True)) / (weight.std(1, keepdim=True) * weight.shape[1] ** 0.5)
        weight = weight.view_as(self.convolution.weight)
        return functional.relu(x + functional.conv2d(x, weight, self.convolution.bias, padding=1))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.mix(self.norms[0](x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(query, key, value).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(self.activation(self.up(self.norms[1](x))))  # type: ignore[no-any-return]

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value)

    def activation(self, x: Tensor) -> Tensor:
        return functional.gelu(x)


class _ByFirstToken(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x)[:, 0])  # type: ignore[no-any-return]


class _WrittenOut(_Block):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.norms = nn.ModuleList([_LayerNorm(width), _LayerNorm(width)])

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        return scores.softmax(-1) @ value  # type: ignore[no-any-return]

    def activation(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x.pow(3))))


class _LayerNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias


class _Small(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.relu(self.linear(x)) * 0.1


class _SingularValues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = torch.linalg.svdvals(x)
        return values


class _Elementwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(65_536))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(x * self.scale) + x
        return x


class _Growing(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            x = torch.cat([x, x[:1]]) * 0.5
        return x


class _Copies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(16_384))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout((x.clone() * self.scale + 0) * 1)  # type: ignore[no-any-return]


class _Decaying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.full((16_384,), 0.97))
        self.bias = nn.Parameter(torch.randn(16_384))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(300):
            x = x * self.decay
        return x + self.bias
