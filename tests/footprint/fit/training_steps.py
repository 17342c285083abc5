"""Small steps that hold what real ones hold: dropout, statistics, in-place operations, views, shared modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from togi.footprint.step import Step, mean_of_outputs
from togi.subject.inputs import Inputs


class Block(nn.Module):
    """Convolution, batch norm, dropout, and an in-place addition and activation, as in residual networks."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.drop, self.act = nn.Dropout(0.3), nn.ReLU(inplace=True)

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.drop(self.norm(self.conv(given)))
        hidden += given
        return self.act(hidden)


class Attention(nn.Module):
    """Views of one projection, a mask, keyword arguments, and a tuple as output."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(8, 24), nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(
        self, given: Tensor, *, mask: Tensor | None = None, scale: float = 1.0
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.qkv(given).chunk(3, -1)
        weights = (q @ k.transpose(-1, -2) * scale).masked_fill(~mask, -1e9).softmax(-1)  # type: ignore[operator]
        return self.drop(self.out(weights @ v)) + given, {"keys": k}


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = Attention(), Attention(), nn.LayerNorm(8)

    def forward(self, given: Tensor, mask: Tensor) -> Tensor:
        hidden, extra = self.first(given, mask=mask, scale=0.5)
        hidden, _ = self.second(self.norm(hidden), mask=mask)
        return hidden + extra["keys"].mean()


class Twice(nn.Module):
    """One module called twice, and one shared under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5))
        self.alias = self.shared

    def forward(self, given: Tensor) -> Tensor:
        return self.alias(self.shared(given) * 2)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 7, num_layers=2, batch_first=True, dropout=0.2), nn.Linear(7, 3)

    def forward(self, given: Tensor) -> Tensor:
        hidden, (last, _) = self.lstm(given)
        return self.head(hidden) + last.sum()


class Spectral(nn.Module):
    """Its weight depends on buffers that each call moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.spectral_norm(nn.Linear(6, 6))

    def forward(self, given: Tensor) -> Tensor:
        return self.layer(self.layer(given))


class WritesAlot(nn.Module):
    """Into its input, into slices, into what was read before, through views and with several operands at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.count: Tensor
        self.register_buffer("count", torch.zeros(1))

    def forward(self, given: Tensor) -> Tensor:
        shifted = given * 2  # read before it is overwritten
        given.mul_(0.5).add_(1)
        self.count += 1
        hidden = self.layer(given) * self.count
        noise = torch.empty_like(hidden).uniform_()
        hidden[:, :3] = hidden[:, 3:].sigmoid() * noise[:, :3]
        hidden = hidden.t().contiguous().t() + shifted
        pair = [hidden * 1.5, hidden + 0.1]
        torch._foreach_mul_(pair, 3.0)
        out = torch.cat(pair, 1)
        out.view(-1)[::2].sigmoid_()
        return torch.where(out > 1, out.log(), out * out) + torch.complex(out, out).abs()


class Checkpointed(nn.Module):
    """Part of it recomputes by itself already."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.3)), nn.Linear(6, 6)

    def forward(self, given: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, self.head(given).tanh(), use_reentrant=False)).sigmoid()


class Mixed(nn.Module):
    """Under autocast: casts of weights are shared between the calls of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, given: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(torch.nn.functional.gelu(self.layer(given))).softmax(-1).float()


class Embedding(nn.Module):
    """A weight that is used at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(20, 8), nn.GroupNorm(2, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.table(tokens).transpose(1, 2)).transpose(1, 2)
        return (hidden @ self.table.weight.t()).log_softmax(-1)


def _step(module: nn.Module, *args: Tensor) -> Step:
    return Step(module=module.train(), sample=Inputs(args), train=True, loss=_loss)


def _loss(module: nn.Module, sample: Inputs) -> Tensor:
    return mean_of_outputs(module, sample.map(torch.clone))  # some write into them


STEPS: dict[str, Callable[[], Step]] = {
    "blocks": lambda: _step(nn.Sequential(Block(), Block(), Block()), torch.randn(2, 4, 6, 6)),
    "attention": lambda: _step(Attending(), torch.randn(2, 5, 8), torch.ones(5, 5).tril().bool()),
    "twice": lambda: _step(Twice(), torch.randn(9, 6)),
    "lstm": lambda: _step(Recurrent(), torch.randn(2, 4, 5)),
    "spectral": lambda: _step(Spectral(), torch.randn(3, 6)),
    "writes": lambda: _step(WritesAlot(), torch.randn(4, 6)),
    "checkpointed": lambda: _step(Checkpointed(), torch.randn(4, 6)),
    "autocast": lambda: _step(Mixed(), torch.randn(4, 6)),
    "embedding": lambda: _step(Embedding(), torch.randint(0, 20, (2, 5))),
}
