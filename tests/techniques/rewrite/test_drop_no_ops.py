"""What has no effect goes; what only looks so stays."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.small_modules import Computes
from togi.core.errors import Refused
from togi.techniques import conformance
from togi.techniques.rewrite.drop_no_ops import DropNoOps

DROP = DropNoOps()


def drop(function, *samples):
    original = conformance.candidate_of(Computes(function), list(samples) or [torch.randn(2, 3, 4)])
    return original, DROP.apply(original, {})


DROPPED = {
    "dropout": lambda x: F.dropout(x.tanh(), 0.5, training=False).relu(),
    "cast": lambda x: x.tanh().to(torch.float32).relu(),
    "plus zero": lambda x: (x.tanh() + 0).relu(),
    "minus zero": lambda x: (x.tanh() - 0.0).relu(),
    "times one": lambda x: (x.tanh() * 1.0).relu(),
    "by one": lambda x: (x.tanh() / 1).relu(),
    "to the first power": lambda x: (x.tanh() ** 1).relu(),
    "full slice": lambda x: x.tanh()[:, :].relu(),
    "same shape": lambda x: x.tanh().view(x.shape[0], 3, 4).relu(),
    "expanded to itself": lambda x: x.tanh().expand(2, 3, 4).relu(),
    "transposed twice": lambda x: x.tanh().transpose(1, 2).transpose(-1, 1).relu(),
    "permuted there and back": lambda x: x.tanh().permute(1, 2, 0).permute(2, 0, 1).relu(),
    "squeezed what was unsqueezed": lambda x: x.tanh().unsqueeze(1).squeeze(1).relu(),
    "copy": lambda x: x.tanh().clone().relu(),
    "unused": lambda x: (x.tanh().relu(), x.exp())[0],
    "unused, written in place": lambda x: (x.tanh().relu(), x.exp().add_(1.0).relu_())[0],
    "assertion": lambda x: (x.tanh().relu(), torch._assert_async((x == x).all()))[0],
}


@pytest.mark.parametrize("case", [name for name in DROPPED if name != "assertion"])
def test_only_what_computes_is_left(case, calls):
    original, result = drop(DROPPED[case])
    assert calls(result) == ["tanh", "relu"]
    sample = torch.randn(2, 3, 4)
    assert torch.equal(original.module(sample), result.module(sample))


def in_place_on_the_copy(x):
    y = x.tanh()
    z = y + 0
    z.mul_(2.0)
    return y, z


def in_place_on_the_source(x):
    y = x.tanh()
    z = y.clone()
    y.mul_(2.0)
    return z.relu()


KEPT = {
    "a copy is written": in_place_on_the_copy,
    "the copied is written": in_place_on_the_source,
    "a copy of the input is returned": lambda x: x.clone(),
    "the input plus zero is returned": lambda x: x + 0,
    "two copies are returned": lambda x: (lambda y: (y, y * 1))(x.tanh()),
    "a view of a copy of the input is returned": lambda x: x.clone().transpose(0, 1),
    "the dtype changes": lambda x: (x.tanh() + 0).to(torch.float64),
    "a square is transposed": lambda x: x[:, :3, :3].sum(0).transpose(0, 1),
    "a step of minus order": lambda x: x.tanh()[:, ::2],
    "an integer becomes a float": lambda x: x.argmax(-1) + 0.0,
    "a broadcast": lambda x: x[:1].tanh().expand(2, 3, 4) * 2.0,
}


@pytest.mark.parametrize("case", KEPT)
def test_what_only_looks_like_nothing_stays(case):
    sample = torch.randn(2, 3, 4)
    try:
        original, result = drop(KEPT[case])
    except Refused:
        return
    given = sample.clone()
    for want, got in zip(_list(original.module(sample)), _list(result.module(given)), strict=True):
        assert want.dtype == got.dtype
        assert torch.equal(want, got)
        assert got.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()
    assert torch.equal(given, sample)


def test_outputs_share_memory_only_where_they_did():
    _, result = drop(lambda x: (lambda y: (F.dropout(x.relu(), 0.1, False), y, y + 0, y * 1.0))(x.tanh()))
    pointers = [tensor.data_ptr() for tensor in result.module(torch.randn(2, 3, 4))]
    assert len(set(pointers)) == 4


def test_an_input_that_is_handed_through_stays_itself():
    original, result = drop(lambda x: (x, F.dropout(x.tanh(), 0.5, False).relu()))
    sample = torch.randn(2, 3, 4)
    assert result.module(sample)[0].data_ptr() == sample.data_ptr() == original.module(sample)[0].data_ptr()


def test_random_numbers_are_drawn_as_before():
    original, result = drop(lambda x: (torch.rand_like(x), x.tanh() * 1.0 + torch.rand_like(x))[1])
    sample = torch.randn(2, 3, 4)
    torch.manual_seed(3)
    wanted = original.module(sample)
    torch.manual_seed(3)
    assert torch.equal(result.module(sample), wanted)


def test_dropout_that_is_always_on_stays(calls):
    _, result = drop(lambda x: F.dropout(x.tanh() * 1.0, 0.5, training=True))
    assert calls(result) == ["tanh", "dropout"]


def test_it_refuses_where_everything_does_something():
    with pytest.raises(Refused, match="does something"):
        drop(lambda x: x.tanh())


def test_dynamic_sizes_stay_dynamic(calls):
    samples = [torch.randn(2, 3, 4), torch.randn(5, 3, 7)]
    original, result = drop(lambda x: (x.tanh()[:, :] + 0).reshape(x.shape[0], -1).relu(), *samples)
    assert calls(result).count("add") == 0
    other = torch.randn(3, 3, 9)
    assert torch.equal(original.module(other), result.module(other))


def test_the_result_can_be_copied_exported_traced_and_captured_again():
    original, result = drop(DROPPED["dropout"])
    sample = torch.randn(2, 3, 4)
    wanted = original.module(sample)
    assert torch.equal(copy.deepcopy(result.module)(sample), wanted)
    assert torch.equal(torch.jit.trace(result.module, (sample,))(sample), wanted)
    assert torch.equal(torch.export.export(result.module, (sample,)).module()(sample), wanted)
    with pytest.raises(Refused, match="does something"):
        DROP.apply(result, {})


def _list(value):
    return list(value) if isinstance(value, tuple) else [value]


def test_conformance():
    conformance.check(
        DROP,
        [
            lambda: conformance.candidate_of(nn.Sequential(nn.Linear(4, 4), nn.Dropout()), [torch.randn(2, 4)]),
            lambda: conformance.candidate_of(nn.Linear(4, 4), [torch.randn(2, 4)]),
        ],
    )
