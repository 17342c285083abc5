"""Layers of the small models on which the claims of techniques are measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def normed(channels: int, out: int, stride: int = 1, size: int = 3) -> nn.Module:
    norm = nn.BatchNorm2d(out)
    with torch.no_grad():  # statistics as after training: folding them must change the weights
        for tensor in (norm.running_mean, norm.bias):
            assert tensor is not None
            tensor.uniform_(-0.1, 0.1)
        for tensor in (norm.running_var, norm.weight):
            assert tensor is not None
            tensor.uniform_(0.8, 1.2)
    return nn.Sequential(nn.Conv2d(channels, out, size, stride=stride, padding=size // 2, bias=False), norm)


class Skip(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(width, width, 3, padding=1)
        self.outer = nn.Conv2d(2 * width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[n, width, h, w], unchanged in shape."""
        return functional.relu(self.outer(torch.cat([x, functional.relu(self.inner(x))], dim=1)))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = normed(channels, channels), normed(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.second(functional.relu(self.first(x))))


class EarlyExit(nn.Module):
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


class Branches(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide, self.narrow = normed(channels, channels), normed(channels, channels, size=1)
        self.identity = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.wide(x) + self.narrow(x) + self.identity(x))


class Head(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((2, 3)))  # type: ignore[no-any-return]


class Standardised(nn.Module):
    """Source: Qiao et al., https://arxiv.org/abs/1903.10520."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.convolution.weight.flatten(1)
        weight = (weight - weight.mean(1, keepdim=True)) / (weight.std(1, keepdim=True) * weight.shape[1] ** 0.5)
        weight = weight.view_as(self.convolution.weight)
        return functional.relu(x + functional.conv2d(x, weight, self.convolution.bias, padding=1))


class TransformerBlock(nn.Module):
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


class ByFirstToken(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x)[:, 0])  # type: ignore[no-any-return]


class WrittenOut(TransformerBlock):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.norms = nn.ModuleList([LayerNorm(width), LayerNorm(width)])

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        return scores.softmax(-1) @ value  # type: ignore[no-any-return]

    def activation(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x.pow(3))))


class LayerNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias


class Small(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.relu(self.linear(x)) * 0.1


class SingularValues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = torch.linalg.svdvals(x)
        return values


class Elementwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(65_536))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(x * self.scale) + x
        return x


class Growing(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.steps):
            x = torch.cat([x, x[:1]]) * 0.5
        return x


class Copies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(16_384))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout((x.clone() * self.scale + 0) * 1)  # type: ignore[no-any-return]


class Decaying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.full((16_384,), 0.97))
        self.bias = nn.Parameter(torch.randn(16_384))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(300):
            x = x * self.decay
        return x + self.bias
