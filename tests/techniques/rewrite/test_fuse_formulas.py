# ruff: noqa: ARG001, ARG005 - all functions have one signature
"""Formulas are found however they are written, and what only looks like one is left alone."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.small_modules import ComputesWith
from togi.core.errors import Refused
from togi.techniques import conformance
from togi.techniques.base import Applies, Refuses
from togi.techniques.rewrite.fuse_formulas import FuseFormulas

FUSE = FuseFormulas()
TANH = math.sqrt(2 / math.pi)


class Calls(ComputesWith):
    """x is ``[batch, tokens, 8]``."""

    def __init__(self, function):
        super().__init__(function)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.weight, self.bias = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.register_buffer("causal", torch.ones(16, 16).tril())
        self.register_buffer("distances", torch.randn(1, 2, 5, 5))


def fused(function, *samples):
    original = conformance.candidate_of(Calls(function), list(samples or [torch.randn(2, 5, 8)]))
    return original, FUSE.apply(original, {})


ACTIVATIONS = {
    "GELU as in BERT": (lambda m, x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "gelu"),
    "GELU by the normal distribution": (lambda m, x: x * (0.5 * (1 + torch.erf(x * 0.7071067811865476))), "gelu"),
    "GELU, multiplied out": (lambda m, x: x / 2 + torch.erf(x * 2**-0.5) * x / 2, "gelu"),
    "GELU with constants as tensors": (
        lambda m, x: x * torch.tensor(0.5) * (torch.erf(x / torch.tensor(2.0).sqrt()) + 1),
        "gelu",
    ),
    "GELU by tanh, as in GPT-2": (
        lambda m, x: 0.5 * x * (1.0 + torch.tanh(TANH * (x + 0.044715 * torch.pow(x, 3.0)))),
        "gelu",
    ),
    "GELU by tanh, factored out": (
        lambda m, x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))),
        "gelu",
    ),
    "GELU by sigmoid": (lambda m, x: x * torch.sigmoid(2 * TANH * (x + 0.044715 * x**3)), "gelu"),
    "SiLU": (lambda m, x: x * torch.sigmoid(x), "silu"),
    "hard swish": (lambda m, x: x * F.relu6(x + 3) / 6, "hardswish"),
    "hard swish, divided first": (lambda m, x: x * (F.relu6(x + 3.0) / 6.0), "hardswish"),
}


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_an_activation_is_found_however_it_is_written(case, calls, error_units):
    function, operator = ACTIVATIONS[case]
    original, result = fused(function)
    assert calls(result) == [operator]
    error_units(original, result, [torch.randn(2, 5, 8), 4 * torch.randn(2, 5, 8)])


def layer_norm(m, x):
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)


def by_squares(m, x):
    centred = x - x.mean(-1, True)
    return m.weight * (centred * torch.rsqrt(centred.pow(2).mean(-1, True) + 1e-6)) + m.bias


def over_two(m, x):
    centred = x - x.mean((-2, -1), True)
    return centred / ((centred * centred).mean((1, 2), True) + 1e-5).sqrt()


NORMS = {
    "by the variance": layer_norm,
    "with weight and bias": lambda m, x: layer_norm(m, x) * m.weight + m.bias,
    "with a weight": lambda m, x: layer_norm(m, x) * m.weight,
    "with a bias": lambda m, x: m.bias + layer_norm(m, x),
    "by squares": by_squares,
    "over two dimensions": over_two,
}


@pytest.mark.parametrize("case", NORMS)
def test_a_layer_norm_is_found_however_it_is_written(case, calls, error_units):
    original, result = fused(NORMS[case])
    assert calls(result) == ["layer_norm"]
    error_units(original, result, [torch.randn(2, 5, 8), torch.randn(2, 5, 8) + 3])


def test_what_follows_a_norm_and_is_not_a_constant_stays(calls, error_units):
    original, result = fused(lambda m, x: layer_norm(m, x) * x.sum(1, True) + m.bias)
    assert calls(result) == ["layer_norm", "sum", "mul", "add"]
    error_units(original, result, [torch.randn(2, 5, 8)])


def heads(x):
    return x.view(*x.shape[:-1], 2, 4).transpose(1, 2)


def attention(scores_of, m, x, join=True):
    query, key, value = heads(m.query(x)), heads(m.key(x)), heads(m.value(x))
    mixed = scores_of(query @ key.transpose(-1, -2)).softmax(-1) @ value
    return mixed.transpose(1, 2).reshape(x.shape) if join else mixed


def causal(m, x):
    return m.causal[: x.shape[1], : x.shape[1]] == 0


ATTENTIONS = {
    "scaled": lambda m, x: attention(lambda s: s / math.sqrt(4), m, x),
    "not scaled": lambda m, x: attention(lambda s: s, m, x),
    "a bias": lambda m, x: attention(lambda s: s * 0.5 + m.distances, m, x),
    "masked with minus infinity": lambda m, x: attention(
        lambda s: (s * 0.5).masked_fill(causal(m, x), -math.inf), m, x
    ),
    "masked with a large number, then scaled by hand": lambda m, x: attention(
        lambda s: torch.where(~causal(m, x), 0.5 * s, torch.tensor(-1e10)), m, x
    ),
    "added to with large numbers from the input": lambda m, x: attention(
        lambda s: (x[:, :, 0] < 0)[:, None, None].float() * torch.finfo(s.dtype).min + s * 0.5, m, x
    ),
    "a bias that is a product of the input": lambda m, x: attention(lambda s: s + m.query(x)[:, None, :, :5], m, x),
    "its layout is given on": lambda m, x: attention(lambda s: s * 0.5, m, x, join=False),
    "one head": lambda m, x: torch.bmm(
        F.softmax(torch.bmm(m.query(x), m.key(x).permute(0, 2, 1)) / 8**0.5, dim=2), m.value(x)
    ),
    "one head, a mask of three dimensions": lambda m, x: (
        (m.query(x) @ m.key(x).mT + m.distances[:, 0].expand(x.shape[0], 5, 5)).softmax(-1) @ m.value(x)
    ),
    "dropout that is off": lambda m, x: attention(lambda s: F.dropout(s, 0.5, training=False), m, x),
    "casts to the same type": lambda m, x: attention(lambda s: s.float().type_as(x), m, x),
}


@pytest.mark.parametrize("case", ATTENTIONS)
def test_attention_is_found_however_it_is_written(case, calls, error_units):
    original, result = fused(ATTENTIONS[case])
    assert "scaled_dot_product_attention" in calls(result)
    assert not {"softmax", "matmul", "bmm"} & set(calls(result))
    sample = torch.randn(2, 5, 8)
    error_units(original, result, [sample, 3 * sample])
    with torch.no_grad():
        assert original.module(sample).stride() == result.module(sample).stride()


def test_attention_over_any_number_of_tokens(calls, error_units):
    def biased(m, x):
        positions = torch.arange(x.shape[1])
        return attention(lambda s: s * 0.5 + m.weight[0] * (positions[:, None] - positions).abs(), m, x)

    original, result = fused(biased, torch.randn(2, 5, 8), torch.randn(2, 9, 8))
    assert "scaled_dot_product_attention" in calls(result)
    error_units(original, result, [torch.randn(2, size, 8) for size in (2, 5, 9, 13)])


def hand_mask(m, x, fill):
    return attention(lambda s: s.masked_fill(x[:, None, None, :, 0] < 0, fill), m, x)


def written_between(m, x):
    centred = x - x.mean(-1, True)
    deviation = (centred.pow(2).mean(-1, True) + 1e-5).sqrt()
    centred.add_(1)
    return centred / deviation


LEFT_ALONE = {
    "GELU with other constants": lambda m, x: 0.5 * x * (1 + torch.erf(x / 1.41421)),
    "sigmoid of something steeper": lambda m, x: x * torch.sigmoid(1.702 * x),
    "another value is gated": lambda m, x: m.query(x) * torch.sigmoid(x),
    "the gate is used elsewhere": lambda m, x: (lambda t: x * t + t.sum())(torch.sigmoid(x)),
    "a gate in place": lambda m, x: torch.sigmoid(x).mul_(x),
    "hard swish, not divided": lambda m, x: x * F.relu6(x + 3),
    "an unbiased variance": lambda m, x: (x - x.mean(-1, True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5),
    "eps outside of the root": lambda m, x: (
        (x - x.mean(-1, True)) / (x.var(-1, keepdim=True, unbiased=False).sqrt() + 1e-5)
    ),
    "a norm over the tokens": lambda m, x: (
        (x - x.mean(1, True)) / torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
    ),
    "the mean of something else": lambda m, x: (
        (x - m.query(x).mean(-1, True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
    ),
    "what is centred is written between": written_between,
    "RMS norm (the operator is as slow)": lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-5),
    "probabilities are returned": lambda m, x: (lambda p: (p @ m.value(x), p))((m.query(x) @ m.key(x).mT).softmax(-1)),
    "softmax over the queries": lambda m, x: (m.query(x) @ m.key(x).mT).softmax(1) @ m.value(x),
    "scores are capped": lambda m, x: attention(lambda s: 5 * torch.tanh(s / 5), m, x),
    "a number is added to the scores": lambda m, x: attention(lambda s: s * 0.3 + 1e-6, m, x),
    "masked, then scaled": lambda m, x: attention(lambda s: (s + m.distances) * 0.5, m, x),
    "a mask may hide all keys": lambda m, x: hand_mask(m, x, -math.inf),
    "a mask may hide all keys with a number": lambda m, x: hand_mask(m, x, -1e9),
    "a constant mask hides all keys": lambda m, x: attention(
        lambda s: s.masked_fill(m.causal[None, None, :5, :5] > -1, -math.inf), m, x
    ),
    "a mask is computed with infinity": lambda m, x: attention(
        lambda s: s + torch.where(x[:, None, None, :, 0] < 0, -math.inf, 0.0), m, x
    ),
    "a mask is computed with a logarithm": lambda m, x: attention(
        lambda s: s + (x[:, None, None, :, 0] > 0).float().log(), m, x
    ),
    "a mask is given, and scaled": lambda m, x: attention(lambda s: s + x[:, None, :, :5] * 1.0, m, x),
    "a mask is given, and a bias added": lambda m, x: attention(lambda s: s + (m.distances + x[:, None, :, :5]), m, x),
    "a mask is given": lambda m, x: (m.query(x) @ m.key(x).mT + x[:, :, :5]).softmax(-1) @ m.value(x),
    "values of fewer heads": lambda m, x: (heads(x) @ heads(x).mT).softmax(-1) @ m.value(x)[:, None],
    "keys are written between": lambda m, x: (lambda k, v: ((m.query(x) @ k.mT).softmax(-1) + k.mul_(2).sum() * 0) @ v)(
        m.key(x), m.value(x)
    ),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_it_is_left_alone_where(case):
    with pytest.raises(Refused, match="written out by hand"):
        fused(LEFT_ALONE[case])


def test_a_value_that_is_written_in_place_afterwards(calls, error_units):
    """The formula reads before the write, the operator would stand after it."""

    def late(m, x):
        y = m.query(x)
        half = 0.5 * y
        t = torch.erf(y * math.sqrt(0.5))
        kept = half * (1 + t)
        y.add_(1)
        return kept + y

    original, result = fused(late)
    assert "gelu" in calls(result)  # the write comes after all of it
    error_units(original, result, [torch.randn(2, 5, 8)])


def test_other_dtypes(calls):
    module = Calls(lambda m, x: attention(lambda s: s * 0.5, m, F.silu(x) + x * torch.sigmoid(x))).double()
    sample = torch.randn(2, 5, 8, dtype=torch.float64)
    original = conformance.candidate_of(module, [sample])
    result = FUSE.apply(original, {})
    assert {"silu", "scaled_dot_product_attention"} <= set(calls(result))
    torch.testing.assert_close(result.module(sample), original.module(sample), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_transformers_as_they_write_it(calls):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=50, use_cache=False, attn_implementation="eager"
    )
    tokens = torch.randint(0, 50, (1, 9))
    original = conformance.candidate_of(transformers.GPT2LMHeadModel(config).eval(), [{"input_ids": tokens}])
    result = conformance.check_application(FUSE, original, {})
    assert result is not None
    assert calls(result).count("gelu") == calls(result).count("scaled_dot_product_attention") == 2


def test_it_conforms():
    functions = [ACTIVATIONS["SiLU"][0], NORMS["with weight and bias"], ATTENTIONS["a bias"]]
    conformance.check(
        FUSE,
        [
            lambda function=function: conformance.candidate_of(Calls(function), [torch.randn(2, 5, 8)])
            for function in functions
        ],
    )


def test_a_model_without_the_operators_of_a_formula_is_refused_without_capture():
    def facts(function):
        return conformance.candidate_of(Calls(function), [torch.randn(2, 5, 8)]).facts

    fused_already = facts(lambda m, x: F.scaled_dot_product_attention(m.query(x), F.gelu(m.key(x)), m.value(x)) * 2)
    assert isinstance(FUSE.applies(fused_already), Refuses)
    one_gate = facts(lambda m, x: m.key(m.key(m.key(m.query(m.query(x))))) * torch.sigmoid(x))
    assert isinstance(FUSE.applies(one_gate), Refuses)
    made = [*(function for function, _ in ACTIVATIONS.values()), *NORMS.values(), *ATTENTIONS.values()]
    for function in made:
        assert FUSE.applies(facts(lambda m, x, function=function: function(m, m.query(x)))) == Applies()
