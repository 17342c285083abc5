"""Small modules drawn from a grammar of operators and dtypes, and calls of them that no sample shows (``right.py``)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS, WIDTH = 4, 16
_TABLE = 503

Step = tuple[str, str, str, Callable[[], Any]]
"""Name, what it takes, what it gives, and what makes it: a module or a function of one tensor."""


def _steps() -> list[Step]:
    """Written out: each is one operator or one idiom."""
    f32: list[tuple[str, Callable[[], Any]]] = [
        ("linear", lambda: nn.Linear(WIDTH, WIDTH)),
        ("relu", lambda: torch.relu),
        ("gelu", lambda: F.gelu),
        ("clamp", lambda: lambda x: x.clamp(-1.0, 1.0)),
        ("root", lambda: lambda x: x.abs().sqrt()),
        ("logarithm", lambda: torch.log),
        ("exponential", lambda: torch.exp),
        ("softmax", lambda: lambda x: x.softmax(-1)),
        ("layer_norm", lambda: nn.LayerNorm(WIDTH)),
        ("normalize", lambda: lambda x: x / x.norm(dim=-1, keepdim=True)),
        ("batch_statistics", lambda: lambda x: F.batch_norm(x, None, None, training=True)),
        ("maximum", lambda: lambda x: torch.maximum(x, x.flip(-1))),
        ("pool", lambda: lambda x: F.max_pool1d(x[None], 3, 1, 1)[0]),
        ("centred", lambda: lambda x: x - x.mean(0)),
        ("cumulative", lambda: lambda x: x.cumsum(-1)),
        ("sorted", lambda: lambda x: x.sort(-1).values),
        ("largest", lambda: lambda x: x.topk(4, -1).values.repeat(1, WIDTH // 4)),
        ("round", lambda: torch.round),
        ("floor", lambda: torch.floor),
        ("remainder", lambda: lambda x: x.remainder(1.5)),
        ("fmod", lambda: lambda x: x.fmod(1.5)),
        ("sign", lambda: torch.sign),
        ("reciprocal", lambda: torch.reciprocal),
        ("where", lambda: lambda x: torch.where(x > 0, x, -x)),
        ("is_number", lambda: lambda x: torch.where(x == x, x, 7.0)),
        ("floored", lambda: lambda x: torch.maximum(x, x.max() - 4.0)),
        ("gathered", lambda: lambda x: x.gather(-1, x.argsort(-1))),
    ]
    to_int: list[tuple[str, Callable[[], Any]]] = [
        ("cast", lambda: lambda x: (x * 10).to(torch.int64)),
        ("rounded", lambda: lambda x: x.round().to(torch.int64)),
        ("argmax", lambda: lambda x: x.argmax(-1, keepdim=True).expand(-1, WIDTH)),
        ("argsort", lambda: lambda x: x.argsort(dim=-1, stable=True)),
        ("count", lambda: lambda x: (x > 0).sum(-1, keepdim=True).expand(-1, WIDTH)),
        ("bucket", lambda: lambda x: torch.bucketize(x, torch.linspace(-2, 2, 9))),
    ]
    i64: list[tuple[str, Callable[[], Any]]] = [
        ("modulo", lambda: lambda x: x.remainder(_TABLE)),
        ("divided", lambda: lambda x: x.div(7, rounding_mode="floor")),
        ("truncated", lambda: lambda x: x.div(7, rounding_mode="trunc")),
        ("c_modulo", lambda: lambda x: x.fmod(_TABLE)),
        ("hashed", lambda: lambda x: x * 2654435761 + 7),
        ("multiplied", lambda: lambda x: x * 31 + 7),
        ("bits", lambda: lambda x: x & 255),
        ("shifted", lambda: lambda x: x >> 3),
        ("summed", lambda: lambda x: x.cumsum(-1)),
        ("sorted_ids", lambda: lambda x: x.sort(-1).values),
        ("absolute", lambda: torch.abs),
    ]
    to_float: list[tuple[str, Callable[[], Any]]] = [
        ("embedding", lambda: _Embedded()),
        ("scaled", lambda: lambda x: x.to(torch.float32) / 1000),
        ("halved", lambda: lambda x: x / 7),
        ("one_hot", lambda: lambda x: F.one_hot(x.remainder(WIDTH), WIDTH).to(torch.float32).mean(1)),
        ("compared", lambda: lambda x: (x > 5).to(torch.float32)),
    ]
    u8: list[tuple[str, Callable[[], Any]]] = [
        ("minus", lambda: lambda x: x - torch.tensor(60, dtype=torch.uint8)),
        ("plus", lambda: lambda x: x + torch.tensor(100, dtype=torch.uint8)),
        ("times", lambda: lambda x: x * torch.tensor(3, dtype=torch.uint8)),
    ]
    f64: list[tuple[str, Callable[[], Any]]] = [
        ("later", lambda: lambda x: x + F.softplus((x - x.floor()).to(torch.float32)).to(torch.float64)),
        ("days", lambda: lambda x: (x / 86400).floor() * 86400),
        ("beside_a_score", lambda: lambda x: torch.cat([x[:, :8], (x - x.floor())[:, :8]], -1)),
    ]
    found: list[tuple[str, Callable[[], Any]]] = [
        ("found", lambda: _found),
        ("few_found", lambda: _few_found),
        ("chosen_rows", lambda: _chosen_rows),
    ]
    kinds = [
        ("f32", "f32", f32),
        ("f32", "i64", to_int),
        ("i64", "i64", i64),
        ("i64", "f32", to_float),
        ("u8", "u8", u8),
        ("u8", "f32", [("pixels", lambda: lambda x: x.to(torch.float32) / 255)]),
        ("f64", "f64", f64),
        ("f64", "f32", [("since", lambda: lambda x: (x - 1.76e9).to(torch.float32) / 1e5)]),
        ("f32", "f32", found),
    ]
    return [(name, takes, gives, make) for takes, gives, group in kinds for name, make in group]


def _found(x: Tensor) -> Tensor:
    chosen = x[x > 0.5]
    return x + 1.0 if chosen.numel() == 0 else x * chosen.mean()


def _few_found(x: Tensor) -> Tensor:
    return x * 2 if torch.nonzero(x > 0).shape[0] < 20 else x - 1.0


def _chosen_rows(x: Tensor) -> Tensor:
    return x * 3 if torch.equal(x[0], x[1]) else x


@final
class _Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(_TABLE, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids.remainder(_TABLE)).mean(1)


@final
class Masked(nn.Module):
    """Attention of one head over rows, of which a mask hides some."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.key = how, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.how == "mean":
            return (x * mask[:, None]).sum(0) / mask.sum()
        scores = self.key(x) @ x.transpose(-1, -2)
        return scores.masked_fill(~mask, -torch.inf if self.how == "infinite" else -1e9).softmax(-1) @ x


@final
class Chain(nn.Module):
    def __init__(self, steps: Sequence[Any]) -> None:
        super().__init__()
        self.steps = list(steps)
        self.parts = nn.ModuleList(step for step in steps if isinstance(step, nn.Module))

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


@final
@dataclass(frozen=True)
class Drawn:
    name: str
    module: nn.Module
    sample: tuple[Tensor, ...]


def drawn(seed: int) -> Drawn:
    """The module of a seed, with its sample."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    if rng.random() < 0.1:
        how = rng.choice(["mean", "infinite", "large"])
        return Drawn(f"masked_{how}", Masked(how).eval(), (torch.randn(ROWS, WIDTH), _shown(rng, how)))
    kind = rng.choice(["f32", "f32", "f32", "i64", "i64", "u8", "f64"])
    steps, names, now = [], [], kind
    for _ in range(rng.randint(2, 5)):
        name, _, now, make = rng.choice([step for step in _STEPS if step[1] == now])
        names.append(name)
        steps.append(make())
    return Drawn(f"{kind}: {' '.join(names)}", Chain(steps).eval(), (_sample(kind),))


_STEPS = _steps()


def _shown(rng: random.Random, how: str) -> Tensor:
    """A mask that hides nothing, or the end."""
    mask = torch.ones(ROWS if how == "mean" else (ROWS, ROWS), dtype=torch.bool)
    if rng.random() < 0.5:
        mask[..., -1] = False
    return mask


def _sample(kind: str) -> Tensor:
    match kind:
        case "f32":
            return torch.randn(ROWS, WIDTH)
        case "i64":
            return torch.randint(0, 1000, (ROWS, WIDTH))
        case "u8":
            return torch.randint(100, 150, (ROWS, WIDTH), dtype=torch.uint8)
    return 1.76e9 + 1e5 * torch.rand(ROWS, WIDTH, dtype=torch.float64)


def other(tensor: Tensor, rng: random.Random) -> tuple[Tensor, bool]:
    """Other values of an input, and whether they are exact: meant to be equal, or halves."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    if tensor.dtype is torch.bool:
        return torch.rand(tensor.shape, generator=generator) < rng.choice([0.0, 0.1, 0.5, 0.9, 1.0]), True
    if tensor.dtype is torch.uint8:
        return torch.randint(0, 256, tensor.shape, dtype=torch.uint8, generator=generator), True
    if not tensor.is_floating_point():
        bound = rng.choice([10, 1000, 1 << 16, 1 << 24, 1 << 31, 1 << 33, 1 << 53, 1 << 62])
        low = -bound if rng.random() < 0.5 else 0
        return torch.randint(low, bound, tensor.shape, generator=generator), True
    way = rng.choice(["near", "scaled", "wild", "lattice", "equal", "special", "permuted"])
    near = tensor.flatten()[torch.randint(0, tensor.numel(), tensor.shape, generator=generator)]
    match way:
        case "scaled":
            return near * rng.choice([1e-6, 0.01, 3.0, 100.0, 1e4, 1e8, 1e12, 1e20]), False
        case "wild":
            powers = torch.randint(-8, 12, tensor.shape, generator=generator)
            return (torch.randn(tensor.shape, generator=generator) * 10.0**powers).to(tensor.dtype), False
        case "lattice":
            return torch.randint(-5, 6, tensor.shape, generator=generator).to(tensor.dtype) / 2, True
        case "equal":
            return torch.full_like(tensor, rng.choice([0.0, 1.0, -1.0, 0.5, 1e6])), True
        case "special":
            special = torch.rand(tensor.shape, generator=generator) < rng.choice([0.02, 0.3, 1.0])
            return torch.where(special, rng.choice([torch.nan, torch.inf, -torch.inf, 0.0]), near), False
        case "permuted":
            return near, False
    return near + 0.1 * torch.randn(tensor.shape, generator=generator).to(tensor.dtype), False
