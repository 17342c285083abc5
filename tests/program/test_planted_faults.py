"""Faults of an engine in one part of a program, planted: each is caught on the calls that the program made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.subject.effects import Effects
from togi.subject.inputs import Inputs
from togi.subject.pure import Pure
from togi.subject.signature import Signature
from togi.verify.derived_inputs import variants
from togi.verify.reference import make_truth
from togi.verify.truth import Truth
from togi.verify.verdict import verify

SEEDS = range(15)
Call = Callable[..., Any]


class Cache:
    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class Decoder(nn.Module):
    """One step of two layers with a cache and a mask, as decoders of transformers are called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.out = nn.Linear(8, 5)

    def forward(self, x: Tensor, cache: Cache, mask: Tensor) -> dict[str, Any]:
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        cache.keys = torch.cat([cache.keys, x], 1)
        scores = (x @ cache.keys.transpose(1, 2) / 8).masked_fill(~mask[:, None], float("-inf"))
        return {"logits": self.out(scores.softmax(-1) @ cache.keys), "cache": cache}


def call(length: int, generator: torch.Generator) -> Inputs:
    mask = torch.rand(1, length + 1, generator=generator) > 0.3
    mask[:, -1] = True
    keys = torch.randn(1, length, 8, generator=generator)
    return Inputs((torch.randn(1, 1, 8, generator=generator), Cache(keys), mask))


@pytest.fixture(scope="module", params=SEEDS, ids=lambda seed: f"seed {seed}")
def part(request: pytest.FixtureRequest) -> tuple[Pure, list[Inputs], Signature, Truth]:
    seed = request.param
    torch.manual_seed(seed)
    module, generator = Decoder().eval(), torch.Generator().manual_seed(seed)
    samples = [call(length, generator) for length in (4 + seed, 6 + seed, 9 + seed)]
    with torch.no_grad():
        effects = Effects.of(module, samples[0].clone())
        pure = Pure(module, effects)
        signature = Signature.of(pure, samples, [pure(*sample.clone().args) for sample in samples])
        truth = make_truth(pure, variants(samples, signature, seed), signature, seed=seed, samples=len(samples))
    return pure, samples, signature, truth


def as_it_is(pure: Pure, _: list[Inputs]) -> Call:
    return pure


def stale_cache(pure: Pure, _: list[Inputs]) -> Call:
    held: list[Any] = []

    def faulty(*args: Any) -> Any:
        output, new = pure(*args)
        held.append(new)
        before = held[max(0, len(held) - 2)]
        return output, [old if old.shape == now.shape else now for old, now in zip(before, new, strict=True)]

    return faulty


def swapped_layers(pure: Pure, _: list[Inputs]) -> Call:
    faulty = copy.deepcopy(pure)
    layers = faulty.module.layers
    layers[0], layers[1] = layers[1], layers[0]
    return faulty


def no_mask_at_one_size(pure: Pure, samples: list[Inputs]) -> Call:
    size = samples[1].args[2].shape[1]

    def faulty(x: Tensor, cache: Cache, mask: Tensor) -> Any:
        return pure(x, cache, torch.ones_like(mask) if mask.shape[1] == size else mask)

    return faulty


def state_between_calls(pure: Pure, _: list[Inputs]) -> Call:
    held = [torch.zeros(1, 1, 8)]

    def faulty(x: Tensor, cache: Cache, mask: Tensor) -> Any:
        output = pure(x + 0.01 * held[0], cache, mask)
        held[0] = x
        return output

    return faulty


Part = tuple[Pure, list[Inputs], Signature, Truth]


def faithful(make: Callable[[Pure, list[Inputs]], Call], part: Part, seed: int) -> bool:
    pure, samples, signature, truth = part
    with torch.no_grad():
        return verify(make(pure, samples), truth, variants(samples, signature, seed), signature, seed=seed).faithful


@pytest.mark.parametrize("fault", [stale_cache, swapped_layers, no_mask_at_one_size, state_between_calls])
def test_a_planted_fault_is_caught(
    fault: Callable[[Pure, list[Inputs]], Call], part: Part, request: pytest.FixtureRequest
) -> None:
    seed = request.node.callspec.params["part"]
    assert not faithful(fault, part, seed)


def test_the_part_itself_is_faithful(part: Part, request: pytest.FixtureRequest) -> None:
    assert faithful(as_it_is, part, request.node.callspec.params["part"])
