"""handwritten-attention: found however it is written, silent where the fused function has no place for it."""

from __future__ import annotations

import math

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from tests.lint.rules.module_findings import findings

RULE = "handwritten-attention"
SAMPLE = torch.randn(1, 64, 96)


class Attention(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.qkv, self.form = nn.Linear(96, 288), form
        self.mix = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> object:
        q, k, v = self.qkv(x).view(1, 64, 3, 3, 32).permute(2, 0, 3, 1, 4)
        return getattr(self, self.form)(q, k, v)

    def plain(self, q, k, v):
        return (q @ k.transpose(-2, -1) / math.sqrt(32)).softmax(-1) @ v

    def scaled_first(self, q, k, v):
        return F.softmax(torch.matmul(q * 32**-0.5, k.transpose(-2, -1)), dim=-1).matmul(v)

    def einsum(self, q, k, v):
        weights = torch.einsum("bhqd,bhkd->bhqk", q, k).mul(32**-0.5).softmax(dim=-1)
        return torch.einsum("bhqk,bhkd->bqhd", weights, v)

    def masked(self, q, k, v):
        scores = q @ k.transpose(-2, -1) * 32**-0.5
        scores = scores.masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), float("-inf"))
        return scores.softmax(-1) @ v

    def in_float32(self, q, k, v):
        q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
        return F.softmax(q @ k.transpose(-2, -1), dim=-1, dtype=torch.float32).to(q.dtype) @ v

    def baddbmm(self, q, k, v):
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        return torch.bmm(torch.baddbmm(torch.zeros(3, 64, 64), q, k.mT).softmax(-1), v)

    def fused(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def fused_without_kernel(self, q, k, v):
        """A mask that needs a gradient and dropout: torch takes the fused function apart."""
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)

    def returned(self, q, k, v):
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return weights @ v, weights

    def used_twice(self, q, k, v):
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return weights @ v + weights.mean()

    def softcapped(self, q, k, v):
        return (30 * torch.tanh(q @ k.transpose(-2, -1) / 30)).softmax(-1) @ v

    def heads_mixed(self, q, k, v):
        scores = self.mix((q @ k.transpose(-2, -1)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return scores.softmax(-1) @ v

    def other_dimension(self, q, k, v):
        return (q @ k.transpose(-2, -1)).softmax(-2) @ v

    def no_product_before(self, q, k, v):
        return q.softmax(-1) @ k.transpose(-2, -1)


@pytest.mark.parametrize("form", ["plain", "scaled_first", "einsum", "masked", "in_float32", "baddbmm"])
def test_attention_is_found_however_it_is_written(form: str) -> None:
    (finding,) = findings(RULE, Attention(form), SAMPLE)
    assert finding.place is not None
    assert finding.place.path.endswith("test_module_handwritten_attention.py")
    source = open(finding.place.path, encoding="utf-8").read().splitlines()  # noqa: SIM115
    assert "softmax" in source[finding.place.line - 1]
    assert "scaled_dot_product_attention" in finding.remedy


@pytest.mark.parametrize(
    "form",
    [
        "fused",
        "fused_without_kernel",
        "returned",
        "used_twice",
        "softcapped",
        "heads_mixed",
        "other_dimension",
        "no_product_before",
    ],
)
def test_attention_that_the_fused_function_cannot_serve_is_left_alone(form: str) -> None:
    assert not findings(RULE, Attention(form), SAMPLE)


def test_a_softmax_between_linear_layers_is_not_attention() -> None:
    module = nn.Sequential(nn.Linear(96, 96), nn.Softmax(-1), nn.Linear(96, 96))
    assert not findings(RULE, module, SAMPLE)


def bert(implementation: str) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=100
    )
    config._attn_implementation = implementation
    return BertModel(config)


def test_transformers_eager_attention_has_its_own_remedy() -> None:
    tokens = {"input_ids": torch.zeros(1, 64, dtype=torch.long)}
    (finding,) = findings(RULE, bert("eager"), tokens)
    assert finding.count == 2
    assert "sdpa" in finding.remedy
    assert not findings(RULE, bert("sdpa"), tokens)


def test_the_fused_attention_of_timm_is_left_alone() -> None:
    assert not findings(RULE, timm.create_model("vit_tiny_patch16_224", img_size=64), torch.randn(1, 3, 64, 64))


class WithWeights(nn.Module):
    """In a module whose own mode keeps the fast path of torch out, as in a decoder."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.attention, self.options = nn.MultiheadAttention(64, 4, batch_first=True), options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x + 1, x, **self.options)[0]


def test_multihead_attention_with_weights_nobody_reads() -> None:
    sample = torch.randn(1, 64, 64)
    assert not findings(RULE, WithWeights(need_weights=False), sample)
