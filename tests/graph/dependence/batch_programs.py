"""Programs over a batch, made of operators drawn from a table, and whether their rows depend on each other in fact.

A step is a name and a number: the number chooses operands and parameters. A step that cannot be done is left out, by
the rank of its operand alone, so that a program is the same for batches of all sizes.
"""

# ruff: noqa: ARG005 - all steps have one signature
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS, TIME, WIDTH = 6, 4, 8
Step = tuple[str, int]
_fixed = torch.Generator().manual_seed(0)
_WEIGHTS = torch.randn(WIDTH, WIDTH, generator=_fixed, dtype=torch.float64)
_TABLE = torch.randn(12, WIDTH, generator=_fixed, dtype=torch.float64)
_KERNEL = torch.randn(3, 3, 3, generator=_fixed, dtype=torch.float64)


def _dim(x: Tensor, n: int) -> int:
    return n % x.dim()


def _ids(x: Tensor, below: int) -> Tensor:
    return x.nan_to_num(0.0, 0.0, 0.0).clamp(-1e6, 1e6).mul(7).long().remainder(below)


def _in_place(x: Tensor, change: Callable[[Tensor], Any]) -> Tensor:
    made = x.clone()
    change(made)
    return made


def _assign(x: Tensor, n: int) -> Tensor:
    made = x.clone()
    made.select(_dim(x, n), 0).copy_(x.select(_dim(x, n), -1) * 2)
    return made


def _written(made: Tensor, source: Tensor) -> Tensor:
    made.copy_(source)
    return made


def _through_a_view(x: Tensor, n: int) -> Tensor:
    made = torch.zeros_like(x)
    made.transpose(0, _dim(x, n)).add_(x.transpose(0, _dim(x, n)))
    return made


def _grouped(x: Tensor, size: int) -> Tensor:
    return x.reshape(-1, size, *x.shape[1:])


UNARY: dict[str, Callable[[Tensor, int], Tensor]] = {
    "exp": lambda x, n: x.clamp(-5, 5).exp(),
    "relu_": lambda x, n: x.clone().relu_(),
    "double": lambda x, n: x * 2 + 1,
    "mask small": lambda x, n: x.masked_fill(x < 0.1, -1.0),
    "where": lambda x, n: torch.where(x > 0, x, -x),
    "isnan": lambda x, n: torch.isnan(x).double(),
    "transpose": lambda x, n: x.transpose(_dim(x, n), _dim(x, n // 7)),
    "flatten first": lambda x, n: x.flatten(0, 1) if x.dim() > 1 else x,
    "flatten last": lambda x, n: x.flatten(-2) if x.dim() > 1 else x,
    "unflatten first": lambda x, n: x.unflatten(0, (-1, 2)),
    "unflatten last": lambda x, n: x.unflatten(-1, (2, -1)),
    "groups of three": lambda x, n: _grouped(x, 3),
    "groups by size": lambda x, n: x.reshape(x.shape[0] // 2, 2, *x.shape[1:]),
    "unsqueeze": lambda x, n: x.unsqueeze(n % (x.dim() + 1)),
    "squeeze": lambda x, n: x.squeeze(),
    "squeeze last": lambda x, n: x.squeeze(-1),
    "expand": lambda x, n: x.unsqueeze(0).expand(3, *x.shape),
    "expand to rows": lambda x, n: x.unsqueeze(0).expand(x.shape[0], *x.shape),
    "repeat": lambda x, n: x.repeat(2, *[1] * (x.dim() - 1)),
    "repeat_interleave": lambda x, n: x.repeat_interleave(2, _dim(x, n)),
    "flip": lambda x, n: x.flip(_dim(x, n)),
    "roll": lambda x, n: x.roll(1, _dim(x, n)),
    "roll all": lambda x, n: x.roll(1),
    "cumsum": lambda x, n: x.cumsum(_dim(x, n)),
    "cummax": lambda x, n: x.cummax(_dim(x, n))[n % 2].double(),
    "sort": lambda x, n: x.sort(_dim(x, n))[n % 2].double(),
    "topk": lambda x, n: x.topk(1, _dim(x, n)).values,
    "softmax": lambda x, n: x.softmax(_dim(x, n)),
    "sum": lambda x, n: x.sum(_dim(x, n), keepdim=n % 2 == 0) if x.dim() > 1 else x,
    "sum all": lambda x, n: x - x.sum(),
    "amax": lambda x, n: x - x.amax(_dim(x, n), keepdim=True),
    "max floor": lambda x, n: torch.maximum(x, x.max() - 4),
    "argmax": lambda x, n: x.argmax(_dim(x, n)).double() if x.dim() > 1 else x,
    "std": lambda x, n: x / (x.std(_dim(x, n), keepdim=True) + 1),
    "norm": lambda x, n: F.normalize(x, dim=_dim(x, n)),
    "logsumexp": lambda x, n: x.logsumexp(_dim(x, n), keepdim=True),
    "median": lambda x, n: x.median(_dim(x, n), keepdim=True).values,
    "quantile": lambda x, n: x.nan_to_num().quantile(0.5, _dim(x, n), keepdim=True),
    "first": lambda x, n: x.select(_dim(x, n), 0) if x.dim() > 1 else x,
    "last": lambda x, n: x.select(_dim(x, n), -1) if x.dim() > 1 else x,
    "all but first": lambda x, n: x.narrow(_dim(x, n), 1, x.shape[_dim(x, n)] - 1),
    "first rows": lambda x, n: x[:3],
    "first half": lambda x, n: x[: x.shape[0] // 2],
    "every second": lambda x, n: x[::2] if n % 2 else x[..., ::2],
    "chunk": lambda x, n: x.chunk(2, _dim(x, n))[n % 2],
    "unbind": lambda x, n: torch.stack([part * 2 for part in x.unbind(_dim(x, n))], -1),
    "split": lambda x, n: torch.cat([part.exp() for part in x.clamp(-3, 3).split(2, _dim(x, n))], _dim(x, n)),
    "doubled batch": lambda x, n: torch.cat([x, x * 2]).chunk(2)[n % 2],
    "beside itself": lambda x, n: torch.cat([x, -x], _dim(x, n)),
    "stack": lambda x, n: torch.stack([x, -x], n % (x.dim() + 1)),
    "pad": lambda x, n: F.pad(x, (1, 1)),
    "pad rows": lambda x, n: F.pad(x, (0, 0) * (x.dim() - 1) + (1, 0))[:-1],
    "windows": lambda x, n: x.unfold(_dim(x, n), 2, 1).sum(-1),
    "diagonal": lambda x, n: x.diagonal(0, 0, _dim(x, n)) if x.dim() > 2 and _dim(x, n) else x,
    "strided": lambda x, n: x.contiguous().as_strided((x.shape[0], 2), (x.contiguous().stride(0), 1)),
    "strided beyond": lambda x, n: F.pad(x.flatten(), (0, 99)).as_strided((x.shape[0], 2), (1, 3)),
    "times rows": lambda x, n: x * x.shape[0],
    "per rows": lambda x, n: x / max(4, x.shape[0]),
    "few rows": lambda x, n: x * 2 if x.shape[0] < 3 else x,
    "one row": lambda x, n: x * 3 if x.shape[0] == 1 else x,
    "positions of rows": lambda x, n: x + torch.arange(x.shape[0]).view(-1, *[1] * (x.dim() - 1)),
    "positions": lambda x, n: x + torch.arange(x.shape[-1]),
    "at its own row": lambda x, n: (
        x[torch.arange(x.shape[0]), _ids(x.flatten(1)[:, 0], x.shape[1])] if x.dim() > 1 else x
    ),
    "at other rows": lambda x, n: x[_ids(x.flatten(1)[:, 0], x.shape[0])] if x.dim() > 1 else x,
    "at fixed places": lambda x, n: x.index_select(_dim(x, n), torch.tensor([0, 0])),
    "by list": lambda x, n: x[..., [0, -1]],
    "gather": lambda x, n: x.gather(_dim(x, n), _ids(x, x.shape[_dim(x, n)])),
    "scatter": lambda x, n: torch.zeros_like(x).scatter_add(_dim(x, n), _ids(x, x.shape[_dim(x, n)]), x),
    "embedding": lambda x, n: F.embedding(_ids(x, 12), _TABLE),
    "table at rows": lambda x, n: x + _TABLE[: x.shape[0], 0].view(-1, *[1] * (x.dim() - 1)),
    "one hot": lambda x, n: F.one_hot(_ids(x, 3), 3).double(),
    "index add": lambda x, n: torch.zeros_like(x).index_add(_dim(x, n), torch.zeros(x.shape[_dim(x, n)]).long(), x),
    "write masked": lambda x, n: _in_place(x, lambda made: made.__setitem__(x > 0.5, 0.0)),
    "write first": lambda x, n: _in_place(x, lambda made: made.select(_dim(x, n), 0).zero_()),
    "write last over first": _assign,
    "write mean": lambda x, n: _in_place(x, lambda made: made.sub_(made.mean(_dim(x, n), keepdim=True))),
    "write transposed": _through_a_view,
    "write reversed": lambda x, n: _written(torch.empty_like(x), x.flip(_dim(x, n))),
    "squared": lambda x, n: x @ x.transpose(-1, -2) if x.dim() > 1 else x,
    "all products": lambda x, n: x.flatten(1) @ x.flatten(1).T if x.dim() > 1 else x,
    "linear": lambda x, n: F.linear(x, _WEIGHTS[:, : x.shape[-1]]),
    "matmul left": lambda x, n: _WEIGHTS[:, : x.shape[-2]] @ x if x.dim() > 1 else x,
    "einsum": lambda x, n: torch.einsum("b...d,b...e->bde", x, x) if x.dim() > 1 else x,
    "einsum over rows": lambda x, n: torch.einsum("b...d,c...d->b", x, x) if x.dim() > 1 else x,
    "cdist": lambda x, n: torch.cdist(x, x) if x.dim() > 1 else x,
    "attention": lambda x, n: F.scaled_dot_product_attention(x, x, x, is_causal=n % 2 == 0) if x.dim() > 2 else x,
    "conv": lambda x, n: F.conv1d(x[:, :3], _KERNEL[:, : x.shape[1]], padding=1) if x.dim() == 3 else x,
    "layer norm": lambda x, n: F.layer_norm(x, x.shape[-1:]),
    "layer norm of two": lambda x, n: F.layer_norm(x, x.shape[-2:]) if x.dim() > 1 else x,
    "group norm": lambda x, n: F.group_norm(x, 1) if x.dim() > 2 else x,
    "instance norm": lambda x, n: F.instance_norm(x) if x.dim() == 3 else x,
    "batch norm": lambda x, n: F.batch_norm(x, None, None, training=True) if x.dim() > 1 else x,
    "fixed norm": lambda x, n: F.batch_norm(x, x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])) if x.dim() > 1 else x,
    "max pool": lambda x, n: F.max_pool1d(x, 2) if x.dim() == 3 else x,
    "mean pool": lambda x, n: F.adaptive_avg_pool1d(x, 2) if x.dim() == 3 else x,
    "upsample": lambda x, n: F.interpolate(x, scale_factor=2) if x.dim() == 3 else x,
    "singular values": lambda x, n: torch.linalg.svdvals(x.nan_to_num().clamp(-9, 9)) if x.dim() > 1 else x,
    "fft": lambda x, n: torch.fft.rfft(x, dim=_dim(x, n)).abs(),
    "cast": lambda x, n: x.float().double(),
    "clip by all": lambda x, n: x.clamp(max=x.mean()),
    "zeros": lambda x, n: x + torch.zeros(x.shape[0], *[1] * (x.dim() - 1)),
    "searchsorted": lambda x, n: torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype), x).double(),
    "tril": lambda x, n: x.tril() if x.dim() > 1 else x,
    "vmap": lambda x, n: torch.vmap(lambda row: row - row.mean())(x),
}
BINARY: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "add": lambda x, y, n: x + y,
    "multiply": lambda x, y, n: x * y,
    "outer": lambda x, y, n: x.unsqueeze(1) - y.unsqueeze(0),
    "cat": lambda x, y, n: torch.cat([x, y], n % x.dim()),
    "bmm": lambda x, y, n: x @ y.transpose(-1, -2),
    "cross attention": lambda x, y, n: F.scaled_dot_product_attention(x, y, y) if x.dim() > 2 else x,
    "write over": lambda x, y, n: _in_place(x, lambda made: made.copy_(y)),
    "add into": lambda x, y, n: _in_place(x, lambda made: made.add_(y)),
    "put": lambda x, y, n: _in_place(x, lambda made: made.__setitem__((slice(None), 0), y[:, 0])),
}
NAMES = (*UNARY, *BINARY)


def program(steps: Sequence[Step]) -> Callable[[Tensor], Tensor]:
    """Of one batch; the result is the last value that was made."""

    def run(x: Tensor) -> Tensor:
        values = [x]
        for name, number in steps:
            operand = values[-1 - number % min(2, len(values))]
            if operand.dim() > 7:
                continue
            if name in UNARY:
                values.append(UNARY[name](operand, number // 2))
            else:
                values.append(BINARY[name](operand, values[number % len(values)], number // 2))
        return values[-1]

    return run


def batches() -> list[Tensor]:
    """Ordinary, extreme, equal and tied."""
    ordinary = torch.randn(ROWS, TIME, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loud = ordinary * torch.tensor([1.0, 1e6, 1.0, 1e-6, 1.0, 0.0], dtype=torch.float64).view(-1, 1, 1)
    return [ordinary, loud, ordinary.round(), torch.zeros_like(ordinary)]


def depends(run: Callable[[Tensor], Tensor], pieces: Sequence[int], along: int) -> str:
    """How a row is seen to depend on others; empty where it is not: each piece alone gives what it gives in company,
    and goes on to do so when all others change."""
    for number, batch in enumerate(batches()):
        whole = run(batch)
        for count in pieces:
            for start in range(0, ROWS - count + 1):
                alone = run(batch[start : start + count])
                if alone.shape[along] != count or not _close(whole.narrow(along, start, count), alone):
                    return f"batch {number}: rows {start} to {start + count} alone give something else"
        for changed in _with_others_changed(batch):
            if not _close(run(changed).narrow(along, 0, 1), whole.narrow(along, 0, 1)):
                return f"batch {number}: the first row changes with the others"
    return ""


def _with_others_changed(batch: Tensor) -> list[Tensor]:
    found = []
    for value in (1e9, -1e9, float("nan"), float("inf"), 0.0):
        changed = batch.clone()
        changed[1:] = value
        found.append(changed)
    found.append(torch.cat([batch[:1], batch[1:].flip(0) * -3]))
    return found


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-7, atol=1e-9, equal_nan=True)
