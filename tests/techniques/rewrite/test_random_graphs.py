# ruff: noqa: ARG005 - all steps have one signature
"""All rewrites, one after the other, on random graphs with writes in place, views, shared inputs and several outputs.

In float64, so that any difference beyond rounding is a wrong edit and not noise.
"""

from __future__ import annotations

import random

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from togi.core.errors import Refused
from togi.techniques import conformance, technique

REWRITES = ("drop_no_ops", "compute_once", "fuse_formulas", "fold_batch_norm", "merge_branches", "pad_channels")
CHANNELS = 6


class RandomGraph(nn.Module):
    """``steps`` random calls on values ``[batch, 6, size, size]``; every step reads what a random earlier one made."""

    def __init__(self, seed, steps=14):
        super().__init__()
        self.choices = random.Random(seed)
        kinds = list(_STEPS)
        self.plan = [(self.choices.choice(kinds), self.choices.random(), self.choices.random()) for _ in range(steps)]
        self.layers = nn.ModuleList(_layer(kind, self.choices) for kind, _, _ in self.plan)
        self.factor = nn.Parameter(torch.randn(CHANNELS, 1, 1))
        self.results = [self.choices.random() for _ in range(2)]

    def forward(self, x):
        values = [x * 0.5]
        for (kind, first, second), layer in zip(self.plan, self.layers, strict=True):
            recent = values[-4:]
            a, b = recent[int(first * len(recent))], recent[int(second * len(recent))]
            values.append(_STEPS[kind](self, layer, a, b))
        return [values[-1], *(values[int(place * len(values))] for place in self.results)]


def _layer(kind, choices):
    if kind == "norm":
        return nn.BatchNorm2d(CHANNELS)
    size = {"conv": 3, "point": 1, "wide": (1, 3), "tall": (3, 1), "depthwise": 3}.get(kind)
    if size is None:
        return nn.Identity()
    padding = tuple(s // 2 for s in size) if isinstance(size, tuple) else size // 2
    groups = CHANNELS if kind == "depthwise" else 1
    return nn.Conv2d(CHANNELS, CHANNELS, size, padding=padding, groups=groups, bias=choices.random() < 0.5)


def _apply(_module, layer, a, _b):
    return layer(a)


_STEPS = {
    "conv": _apply,
    "point": _apply,
    "wide": _apply,
    "tall": _apply,
    "depthwise": _apply,
    "norm": _apply,
    "sum": lambda m, layer, a, b: a + b,
    "difference": lambda m, layer, a, b: torch.sub(a, b, alpha=0.5),
    "sum in place": lambda m, layer, a, b: a.add_(b),
    "both": lambda m, layer, a, b: m.layers[0](a) + b if isinstance(m.layers[0], nn.Conv2d) else a + 0,
    "ReLU": lambda m, layer, a, b: a.relu(),
    "ReLU in place": lambda m, layer, a, b: a.relu_(),
    "factor": lambda m, layer, a, b: a * m.factor,
    "factor in place": lambda m, layer, a, b: a.mul_(m.factor),
    "number": lambda m, layer, a, b: a * 1 + 0,
    "copy": lambda m, layer, a, b: a.clone(),
    "view": lambda m, layer, a, b: a.transpose(2, 3).transpose(2, 3),
    "write to a part": lambda m, layer, a, b: (a[:, :2].mul_(0.5), a)[1],
    "pool": lambda m, layer, a, b: F.avg_pool2d(a, 3, 1, 1),
    "constant": lambda m, layer, a, b: a + m.factor.sigmoid(),
    "constant in place": lambda m, layer, a, b: a.add_(m.factor.sigmoid()),
    "twice": lambda m, layer, a, b: a.sin() * b.sin(),
    "SiLU": lambda m, layer, a, b: a * a.sigmoid(),
    "GELU": lambda m, layer, a, b: 0.5 * a * (1 + (a * 0.5**0.5).erf()),
    "dropout": lambda m, layer, a, b: F.dropout(a, 0.5, m.training),
}


def rewritten(candidate):
    applied = []
    for id in REWRITES:
        try:
            candidate = technique(id).apply(candidate, {"multiple": 8} if id == "pad_channels" else {})
            applied.append(id)
        except Refused:
            continue
    return candidate, applied


def _storages(values):
    places = [value.untyped_storage().data_ptr() for value in values]
    return [[one == other for other in places] for one in places]


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_compute_the_same(seed, randomise):
    torch.manual_seed(seed)
    module = randomise(RandomGraph(seed).double())
    sample = torch.randn(2, CHANNELS, 7, 7, dtype=torch.float64)
    original = conformance.candidate_of(module, [sample])
    result, _ = rewritten(original)
    with torch.no_grad():
        given, again = sample.clone(), sample.clone()
        wanted, got = original.module(given), result.module(again)
    assert torch.equal(given, again)
    for want, found in zip(wanted, got, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)
    for wanted_row, got_row in zip(_storages([*wanted, given]), _storages([*got, again]), strict=True):
        assert all(w or not g for w, g in zip(wanted_row, got_row, strict=True)), "outputs share memory that did not"


def test_the_random_graphs_do_exercise_every_rewrite(randomise):
    seen = set()
    for seed in range(30):
        torch.manual_seed(seed)
        sample = torch.randn(2, CHANNELS, 7, 7, dtype=torch.float64)
        seen |= set(rewritten(conformance.candidate_of(randomise(RandomGraph(seed).double()), [sample]))[1])
        if seen == set(REWRITES):
            break
    assert seen == set(REWRITES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["repvgg_a0", pytest.param("mobilenetv3_small_050", marks=pytest.mark.thorough)])
def test_a_whole_recipe_stays_faithful_and_can_be_built_upon(name, randomise, error_units):
    torch.manual_seed(0)
    sample = torch.randn(1, 3, 32, 32)
    original = conformance.candidate_of(randomise(timm.create_model(name)), [sample])
    result, applied = rewritten(original)
    assert "fold_batch_norm" in applied
    result = technique("channels_last").apply(result, {})
    error_units(original, result, [sample])
    with torch.no_grad():
        wanted = result.module(sample)
        torch.testing.assert_close(torch.jit.trace(result.module, (sample,))(sample), wanted)
        torch.testing.assert_close(torch.compile(result.module, backend="aot_eager")(sample), wanted)
    torch._dynamo.reset()
