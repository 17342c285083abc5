# ruff: noqa: ARG005 - all functions have one signature
"""What no input can change is computed beforehand, to the bit; what is written, returned, random or dynamic is not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.small_modules import ComputesWith
from togi.core.errors import Refused
from togi.graph import repeated
from togi.techniques import compatible, conformance, technique
from togi.techniques.base import Applies, Refuses
from togi.techniques.rewrite.compute_once import ComputeOnce

ONCE = ComputeOnce()


class Calls(ComputesWith):
    def __init__(self, function):
        table, state = nn.Parameter(torch.randn(9, 6)), torch.zeros(6)
        super().__init__(function, linear=nn.Linear(6, 6), table=table, state=state)


def once(function, *samples, dynamic=None):
    original = conformance.candidate_of(Calls(function), list(samples or [torch.randn(4, 6)]), dynamic)
    return original, ONCE.apply(original, {})


def same(original, result, *samples):
    for sample in samples or [tensors[0] for tensors in original.flat_samples()]:
        with torch.no_grad():
            wanted, got = original.module(sample.clone()), result.module(sample.clone())
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


STANDARDISED = {
    "weights standardised at each call": lambda m, x: F.linear(x, (m.table - m.table.mean(1, True)) / m.table.std()),
    "a table looked up with fixed positions": lambda m, x: (
        x + m.table[torch.arange(4).flip(0)].view(2, 2, 6).permute(1, 0, 2).contiguous().view(4, 6)
    ),
    "a mask of a fixed size": lambda m, x: x.masked_fill(torch.ones(4, 6).tril() == 0, 0.5),
    "what depends on the shape alone": lambda m, x: x + torch.ones_like(x).cumsum(0),
}


@pytest.mark.parametrize("case", STANDARDISED)
def test_what_no_input_can_change_is_a_constant(case, calls):
    original, result = once(STANDARDISED[case])
    left = set(calls(result))
    assert left <= {"linear", "add", "masked_fill", "view", "reshape"}, left
    same(original, result, torch.randn(4, 6), torch.zeros(4, 6))


def test_constants_take_the_place_of_what_they_are_made_of():
    _, result = once(lambda m, x: F.linear(x, m.table * 2))
    assert [tuple(p.shape) for p in result.module.parameters()] == [(9, 6)]


def test_the_original_may_be_changed_afterwards_without_effect_on_the_result():
    original, result = once(lambda m, x: x + m.table[:4].exp())
    sample = torch.randn(4, 6)
    wanted = result.module(sample)
    original.module.table.data.zero_()
    assert torch.equal(result.module(sample), wanted)


def test_equal_calls_become_one(calls):
    original, result = once(lambda m, x: torch.sin(m.linear(x)) * torch.cos(m.linear(x)))
    assert calls(result).count("linear") == 1
    same(original, result)


def test_equal_numbers_of_other_types_are_other_calls():
    original, result = once(lambda m, x: ((x > 0).long() * 2 + (x > 0).long() * 2.0, x * 2, x * 2))
    same(original, result)


LEFT_ALONE = {
    "two outputs would become one object": lambda m, x: (x * 2, x * 2),
    "a returned constant would be the same object at each call": lambda m, x: (x, m.table.exp()),
    "a view of a returned constant": lambda m, x: (x, m.table.exp().view(-1)[3:]),
    "a view of a parameter costs nothing": lambda m, x: F.linear(x, m.table[2:5]),
    "nothing is computed twice": lambda m, x: m.linear(x).relu(),
    "it is written in place": lambda m, x: x + torch.zeros(6).add_(x[0]),
    "one of two copies is written": lambda m, x: (x * 2).add_(1) + x * 2,
    "the source is written between": lambda m, x: (lambda y: (y * 3, y.add_(1), y * 3)[0] + y)(x + 1),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_it_is_left_alone_where(case):
    with pytest.raises(Refused, match="what is known"):
        once(LEFT_ALONE[case])


def test_random_numbers_are_drawn_at_each_call():
    with pytest.raises(Refused):
        once(lambda m, x: x + torch.rand(6) - torch.rand(6))


def test_a_buffer_that_the_pass_writes_is_not_a_constant(calls):
    def count(m, x):
        m.state.add_(1)
        return x + m.state.exp() + m.table[0].exp()

    _, result = once(count)
    sample = torch.zeros(4, 6)
    first, second = result.module(sample), result.module(sample)
    assert not torch.equal(first, second)
    assert calls(result).count("exp") == 1


def test_a_dynamic_size_is_asked_at_each_call(calls):
    def positions(m, x):
        return x + m.table[torch.arange(x.shape[0]) % 9] * m.table[0].exp()

    original, result = once(positions, torch.randn(4, 6), torch.randn(7, 6))
    assert {"arange", "index"} <= set(calls(result))
    assert "exp" not in calls(result)
    same(original, result, torch.randn(4, 6), torch.randn(7, 6), torch.randn(5, 6))


def test_a_large_constant_that_is_made_of_a_small_one_stays_computed(calls, monkeypatch):
    monkeypatch.setattr(repeated, "LARGEST_BYTES", 50)
    original, result = once(lambda m, x: x + m.table[0].exp() * torch.ones(4, 1) + m.table[0].exp())
    assert calls(result).count("mul") == 1
    same(original, result)


def test_shared_layers_stay_shared():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))

        def forward(self, x):
            return self.layer(self.layer(x))

    original = conformance.candidate_of(Twice(), [torch.randn(4, 6)])
    result = ONCE.apply(original, {})
    assert sorted(tuple(p.shape) for p in result.module.parameters()) == [(6,), (6, 6)]
    same(original, result)


def test_it_conforms():
    builders = [
        lambda function=function: conformance.candidate_of(Calls(function), [torch.randn(4, 6)])
        for function in STANDARDISED.values()
    ]
    conformance.check(ONCE, builders)


def test_a_model_without_signs_of_it_is_refused_before_anything_is_captured():
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    facts = conformance.candidate_of(plain, [torch.randn(1, 3, 8, 8)]).facts
    assert isinstance(ONCE.applies(facts), Refuses)

    def standardised(m, x):
        weight = F.batch_norm(m.table[None], None, None, training=True)
        return F.linear(x, weight[0])

    original, result = once(standardised)
    assert ONCE.applies(original.facts) == Applies()
    same(original, result)


@pytest.mark.parametrize(("engine", "tried"), [("openvino", False), ("onnxruntime", False), ("torch_compile", True)])
def test_it_is_not_tried_before_an_engine_that_folds_constants(engine, tried):
    assert compatible([ONCE, technique(engine)]) is tried
