# ruff: noqa: ARG005 - all functions have one signature
"""A slice moves up through what computes row by row, and stays where somebody could tell."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from tests.small_modules import ComputesWith
from togi.core.errors import Refused
from togi.graph.edit import call_name, shape
from togi.techniques import conformance
from togi.techniques.base import Applies, Refuses
from togi.techniques.rewrite.drop_unused_rows import DropUnusedRows

DROP = DropUnusedRows()


class Calls(ComputesWith):
    """x is ``[batch, 6 tokens, 8]``."""

    def __init__(self, function):
        super().__init__(function)
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))
        self.plain = nn.Linear(8, 8, bias=False)
        self.norm = nn.LayerNorm(8)
        self.table, self.rows = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(6, 1))
        self.register_buffer("kept", torch.ones(6, 6).tril() > 0)
        self.register_buffer("state", torch.zeros(6, 8))


def dropped(function, *samples, dynamic=None):
    original = conformance.candidate_of(Calls(function), list(samples or [torch.randn(2, 6, 8)]), dynamic)
    return original, DROP.apply(original, {})


def rows_of(candidate, name):
    """What the calls of an operator return, as shapes."""
    return [tuple(shape(n)) for n in candidate.module.graph.graph.nodes if call_name(n).partition(".")[0] == name]


def heads(x):
    return x.view(x.shape[0], -1, 2, 4).transpose(1, 2)


def attention(m, x, **options):
    mixed = F.scaled_dot_product_attention(heads(m.first(x)), heads(m.second(x)), heads(m.third(x)), **options)
    return m.plain(mixed.transpose(1, 2).reshape(x.shape))


def by_hand(m, x):
    scores = heads(m.first(x)) @ heads(m.second(x)).mT
    return m.plain((scores.softmax(-1) @ heads(m.third(x))).transpose(1, 2).reshape(x.shape))


def block(m, x):
    x = x + attention(m, m.norm(x))
    return x + m.plain(F.gelu(m.first(m.norm(x))))


PICKED = {
    "the first token": (lambda m, x: m.second(m.first(x)[:, 0]), "linear", [(2, 1, 8), (2, 8)]),
    "the last token, kept as a dimension": (lambda m, x: m.first(x).relu()[:, -1:] * 2, "linear", [(2, 1, 8)]),
    "two tokens of the middle": (lambda m, x: m.first(x)[:, 2:4] * 2, "linear", [(2, 2, 8)]),
    "a linear layer without a bias, twice": (lambda m, x: m.plain(m.plain(x))[:, 1] + 1, "linear", [(2, 1, 8)] * 2),
    "the same token at two places": (
        lambda m, x: (lambda y: y[:, 0].relu() + y[:, 0].sin())(m.first(x)),
        "linear",
        [(2, 1, 8)],
    ),
    "one picture of the batch": (lambda m, x: m.first(x)[1] * 2, "linear", [(1, 6, 8)]),
    "a residual": (lambda m, x: m.norm(x + m.first(x))[:, 0] * 2, "linear", [(2, 1, 8)]),
    "a table for all tokens is added": (lambda m, x: m.first(x + m.table)[:, 0] * 2, "linear", [(2, 1, 8)]),
    "a factor for each token": (lambda m, x: (m.first(x) * m.rows)[:, 3] * 2, "linear", [(2, 1, 8)]),
    "a factor for each channel": (lambda m, x: (m.first(x) * m.table[0])[:, 3] * 2, "linear", [(2, 1, 8)]),
    "tokens are the last dimension": (lambda m, x: m.first(x).mT[..., 0] * 2, "linear", [(2, 1, 8)]),
    "through views of heads": (
        lambda m, x: m.first(x).view(2, 6, 2, 4).permute(2, 0, 1, 3)[:, :, 0] * 2,
        "linear",
        [(2, 1, 8)],
    ),
    "through one head of several": (lambda m, x: m.first(x).view(2, 6, 2, 4)[:, :, 1][:, 0] * 2, "linear", [(2, 1, 8)]),
    "through a new dimension and back": (
        lambda m, x: m.first(x).unsqueeze(1).unsqueeze(0).squeeze(2)[0, :, 0] * 2,
        "linear",
        [(2, 1, 8)],
    ),
    "a matrix product with another matrix": (lambda m, x: (x @ m.table.mT)[:, 0] * 2, "matmul", [(2, 1, 6)]),
    "columns of a matrix product": (lambda m, x: (x @ m.table.mT)[..., :2] * 2, "matmul", [(2, 6, 2)]),
    "bmm": (lambda m, x: torch.bmm(x, x.mT)[:, 0] * 2, "bmm", [(2, 1, 6)]),
    "one of the matrices": (lambda m, x: torch.bmm(x, x.mT)[0] * 2, "bmm", [(1, 6, 6)]),
    "addmm": (lambda m, x: torch.addmm(m.table, x[0], m.plain.weight)[0] * 2, "addmm", [(1, 8)]),
    "addmm with a bias for all": (lambda m, x: torch.addmm(m.table[1], x[0], m.plain.weight)[0] * 2, "addmm", [(1, 8)]),
    "mm": (lambda m, x: torch.mm(x[0], m.plain.weight)[-1] * 2, "mm", [(1, 8)]),
    "queries of an attention": (
        lambda m, x: attention(m, x)[:, 0] * 2,
        "scaled_dot_product_attention",
        [(2, 2, 1, 4)],
    ),
    "queries of an attention with a mask": (
        lambda m, x: attention(m, x, attn_mask=m.kept)[:, 2] * 2,
        "scaled_dot_product_attention",
        [(2, 2, 1, 4)],
    ),
    "queries with a mask for all of them": (
        lambda m, x: attention(m, x, attn_mask=(x[:, :, 0] > -9)[:, None, None])[:, 0] * 2,
        "scaled_dot_product_attention",
        [(2, 2, 1, 4)],
    ),
    "the last query of a causal attention": (
        lambda m, x: attention(m, x, is_causal=True)[:, -1] * 2,
        "scaled_dot_product_attention",
        [(2, 2, 1, 4)],
    ),
    "attention by hand": (lambda m, x: by_hand(m, x)[:, 0] * 2, "softmax", [(2, 2, 1, 6)]),
    "a block": (lambda m, x: block(m, x)[:, 0] * 2, "gelu", [(2, 1, 8)]),
}


@pytest.mark.parametrize("case", PICKED)
def test_what_is_above_computes_the_rows_that_are_used(case, error_units):
    function, operator, shapes = PICKED[case]
    original, result = dropped(function)
    assert rows_of(result, operator) == shapes
    error_units(original, result, [torch.randn(2, 6, 8), 3 * torch.randn(2, 6, 8)])


def test_only_keys_and_values_see_all_tokens_of_the_last_block(error_units):
    original, result = dropped(lambda m, x: block(m, block(m, x))[:, 0] * 2)
    whole, one = (2, 6, 8), (2, 1, 8)
    assert sorted(rows_of(result, "linear")) == sorted([whole] * 6 + [whole] * 2 + [one] * 4)
    error_units(original, result, [torch.randn(2, 6, 8)])


@pytest.mark.parametrize("causal", [False, True])
def test_any_number_of_tokens(causal, error_units):
    def last(m, x):
        return (x + attention(m, m.norm(x), is_causal=causal))[:, -1] * 2

    original, result = dropped(last, torch.randn(2, 6, 8), torch.randn(2, 9, 8))
    assert rows_of(result, "scaled_dot_product_attention") == [(2, 2, 1, 4)]
    error_units(original, result, [torch.randn(2, size, 8) for size in (1, 2, 6, 9, 13)])


def test_a_returned_pick_has_memory_of_its_own_and_stays_contiguous(error_units):
    sample = torch.randn(1, 6, 8)
    original, result = dropped(lambda m, x: m.first(x)[:, 0], sample)
    assert rows_of(result, "linear") == [(1, 1, 8)]
    with torch.no_grad():
        one, other = result.module(sample), result.module(sample)
    assert one.is_contiguous()
    assert one.data_ptr() != other.data_ptr()
    error_units(original, result, [sample])


def test_other_dtypes():
    sample = torch.randn(2, 6, 8, dtype=torch.float64)
    original = conformance.candidate_of(Calls(lambda m, x: block(m, x)[:, 0] * 2).double(), [sample])
    result = DROP.apply(original, {})
    torch.testing.assert_close(result.module(sample), original.module(sample), rtol=1e-12, atol=1e-12)


def written(m, x):
    y = m.first(x)
    picked = y[:, 0]
    y.add_(1)
    return picked * 2


LEFT_ALONE = {
    "the other rows are used": lambda m, x: (lambda y: y[:, 0] + y.sum(1))(m.first(x)),
    "other rows are picked": lambda m, x: (lambda y: y[:, 0] + y[:, 1])(m.first(x)),
    "all is returned": lambda m, x: (lambda y: (y, y[:, 0] * 2))(m.first(x)),
    "most rows are kept": lambda m, x: m.first(x)[:, 1:] * 2,
    "every second row is kept": lambda m, x: m.first(x)[:, ::2] * 2,
    "channels are picked": lambda m, x: m.first(x)[..., 0] * 2,
    "rows are mixed": lambda m, x: m.first(x).cumsum(1)[:, 0] * 2,
    "rows are normalised over": lambda m, x: m.first(x).softmax(1)[:, 0] * 2,
    "a norm over the rows": lambda m, x: F.layer_norm(m.first(x), [6, 8])[:, 0] * 2,
    "rows are joined": lambda m, x: m.first(x).reshape(2, 48)[:, 0] * 2,
    "heads lie between": lambda m, x: m.first(x).view(2, 12, 4)[:, 0] * 2,
    "it is written in place": written,
    "what is picked is written": lambda m, x: m.first(x)[:, 0].add_(1),
    "an early query of a causal attention": lambda m, x: (
        F.scaled_dot_product_attention(m.table[None], m.table[None], m.first(x), is_causal=True)[:, 0] * 2
    ),
    "the last but one query of a causal attention": lambda m, x: (
        F.scaled_dot_product_attention(x, x, x, is_causal=True)[:, -2] * 2
    ),
    "a view of several rows is returned": lambda m, x: m.first(x)[:, 0],
    "two returned views": lambda m, x: (lambda y: (y[0], y[0]))(m.first(x)),
    "the attention is random": lambda m, x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)[:, 0] * 2,
    "nothing is left out but a sum": lambda m, x: (x + 1)[:, 0],
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_it_is_left_alone_where(case):
    with pytest.raises(Refused, match="unused"):
        dropped(LEFT_ALONE[case])


def test_a_buffer_that_the_pass_writes_is_read_when_it_was():
    def count(m, x):
        m.state.add_(1)
        return (m.first(x) + m.state)[:, 0] * 2

    sample = torch.randn(2, 6, 8)
    original, result = dropped(count, sample)
    assert rows_of(result, "linear") == [(2, 1, 8)]
    for _ in range(2):
        torch.testing.assert_close(result.module(sample), original.module(sample))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["vit", "bert", "gpt2"])
def test_models_as_they_are_written(kind):
    if kind == "vit":
        model, sample = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=64), torch.randn(1, 3, 64, 64)
        operator, wanted = "gelu", [(1, 17, 768), (1, 1, 768)]
    else:
        transformers = pytest.importorskip("transformers")
        tokens = torch.randint(5, 50, (1, 9))
        if kind == "bert":
            config = transformers.BertConfig(
                num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=50
            )
            model, sample = transformers.BertForSequenceClassification(config), {"input_ids": tokens}
            operator, wanted = "gelu", [(1, 9, 64), (1, 1, 64)]
        else:
            config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, use_cache=False)
            model = LastLogits(transformers.GPT2LMHeadModel(config))
            sample, operator, wanted = tokens, "tanh", [(1, 9, 128), (1, 1, 128)]
    result = conformance.check_application(DROP, conformance.candidate_of(model.eval(), [sample]), {})
    assert result is not None
    assert rows_of(result, operator)[:2] == wanted


class LastLogits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens, logits_to_keep=1).logits


def test_it_conforms():
    functions = [PICKED[case][0] for case in ("a block", "a residual", "the first token")]
    conformance.check(
        DROP,
        [
            lambda function=function: conformance.candidate_of(Calls(function), [torch.randn(2, 6, 8)])
            for function in functions
        ],
    )


def test_a_model_without_slices_or_products_is_refused_without_capture():
    def facts(function):
        return conformance.candidate_of(Calls(function), [torch.randn(2, 6, 8)]).facts

    assert isinstance(DROP.applies(facts(lambda m, x: m.first(x))), Refuses)
    assert isinstance(DROP.applies(facts(lambda m, x: x[:, 0] * 2)), Refuses)
    for function, _, _ in PICKED.values():
        assert DROP.applies(facts(function)) == Applies()
