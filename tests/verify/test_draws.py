"""Draws in float64 are those of float32: by every way to draw, and from the same state of the generator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from togi.verify.draws import NarrowDraws

Draw = Callable[[Tensor], Tensor]

DRAWS: dict[str, Draw] = {
    "rand": lambda like: torch.rand(like.shape, dtype=like.dtype),
    "randn": lambda like: torch.randn(like.shape, dtype=like.dtype),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "uniform_": lambda like: torch.empty_like(like).uniform_(-1, 2),
    "normal_": lambda like: torch.empty_like(like).normal_(1, 2),
    "exponential_": lambda like: torch.empty_like(like).exponential_(),
    "bernoulli_": lambda like: torch.empty_like(like).bernoulli_(0.3),
    "bernoulli": lambda like: torch.bernoulli(torch.full_like(like, 0.3)),
    "normal of tensors": lambda like: torch.normal(torch.zeros_like(like), torch.ones_like(like)),
    "dropout": lambda like: F.dropout(torch.ones_like(like), 0.5, training=True),
    "randint_like": lambda like: torch.randint_like(like, 10),
}


@pytest.mark.parametrize("name", DRAWS)
def test_float64_draws_what_float32_draws(name: str) -> None:
    draw = DRAWS[name]
    torch.manual_seed(4)
    narrow, after = draw(torch.zeros(7, 9)), torch.get_rng_state()
    torch.manual_seed(4)
    with NarrowDraws():
        wide = draw(torch.zeros(7, 9, dtype=torch.float64))
    assert wide.dtype is torch.float64
    assert torch.equal(wide, narrow.double())
    assert torch.equal(torch.get_rng_state(), after)


def test_without_it_some_draws_differ() -> None:
    torch.manual_seed(4)
    narrow = torch.randn(64)
    torch.manual_seed(4)
    assert not torch.equal(torch.randn(64, dtype=torch.float64), narrow.double())


def test_defaults_and_generators_are_followed() -> None:
    generator = torch.Generator().manual_seed(3)
    narrow = torch.rand(5, generator=generator)
    generator.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    try:
        with NarrowDraws():
            wide = torch.rand(5, generator=generator)
            alone = torch.rand(5, dtype=torch.float32)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(wide, narrow.double())
    assert alone.dtype is torch.float32


def test_gradients_pass_through_dropout_in_full() -> None:
    given = torch.linspace(0.1, 1, 40, dtype=torch.float64).requires_grad_()
    torch.manual_seed(0)
    with NarrowDraws():
        out = F.dropout(given, 0.25, training=True)
        out.sum().backward()
    kept = out != 0
    assert given.grad is not None
    assert torch.equal(out[kept], (given / 0.75)[kept]) or torch.allclose(out[kept], (given / 0.75)[kept], rtol=1e-15)
    assert torch.equal(given.grad != 0, kept)
