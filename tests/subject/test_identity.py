"""What computes otherwise has another hash, also where only what it is bound to differs; what is made anew has the
same."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from togi.artifact.weights import weights_hash
from togi.subject.behaviour import same
from togi.subject.identity import code_hash, settings_hash, value_hash
from togi.techniques.build import fingerprint


class Scaler:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def apply(self, x: Any) -> Any:
        return x * self.factor


def adder(amount: Any) -> Callable[[Any], Any]:
    return lambda x: x + amount


def chosen(last: int) -> list[Any]:
    pair = [adder(1), adder(2)]
    return [*pair, pair[last]]


def of_bound(scaler: Scaler) -> type:
    return type("Net", (nn.Module,), {"act": scaler.apply, "later": functools.partialmethod(scaler.apply)})


def cached(amount: int) -> type:
    return type("Net", (nn.Module,), {"table": functools.cached_property(adder(amount))})


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "methods": (lambda: Scaler(2).apply, lambda: Scaler(3).apply),
    "methods of a mapping": (lambda: {"a": 1}.get, lambda: {"a": 2}.get),
    "methods of a number": (lambda: (1.0).__add__, lambda: (2.0).__add__),
    "closures": (lambda: adder(1), lambda: adder(2)),
    "closures over methods": (lambda: adder(Scaler(2).apply), lambda: adder(Scaler(3).apply)),
    "closures in a set": (lambda: {adder(1), adder(2)}, lambda: {adder(1), adder(3)}),
    "cached closures": (lambda: functools.lru_cache(adder(1)), lambda: functools.lru_cache(adder(2))),
    "partials": (lambda: functools.partial(Scaler(2).apply, 1), lambda: functools.partial(Scaler(3).apply, 1)),
    "which of them comes again": (lambda: chosen(0), lambda: chosen(1)),
    "methods in a class": (lambda: of_bound(Scaler(2)), lambda: of_bound(Scaler(3))),
    "properties that are computed once": (lambda: cached(1), lambda: cached(2)),
}


@pytest.mark.parametrize(("make", "other"), PAIRS.values(), ids=PAIRS)
def test_two_that_differ_in_what_they_are_bound_to(make: Callable[[], Any], other: Callable[[], Any]) -> None:
    assert value_hash(make()) == value_hash(make()) == value_hash(copy.deepcopy(make()))
    assert value_hash(make()) != value_hash(other())


def test_a_method_is_one_however_often_it_is_bound() -> None:
    scaler = Scaler(2)
    method = scaler.apply
    assert value_hash([method, method]) == value_hash([scaler.apply, scaler.apply])
    assert value_hash([scaler.apply, scaler.apply]) != value_hash([scaler.apply, Scaler(2).apply]), "two objects"


def test_classes_of_one_name_are_told_apart() -> None:
    def layer(factor: int) -> type[nn.Module]:
        class Layer(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * factor

        return Layer

    def net(*factors: int) -> nn.Module:
        layers = {factor: layer(factor) for factor in (1, 2)}
        return nn.Sequential(*(layers[factor]() for factor in factors))

    known = [code_hash(net(*factors)) for factors in ((1, 2, 1), (1, 2, 2), (2, 1, 2), (2, 1, 1))]
    assert len(set(known)) == len(known)
    assert known[0] == code_hash(net(1, 2, 1))


class TwoPaths(nn.Module):
    def __init__(self, used: str) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)
        self.path, self.own = getattr(self, used).forward, self.after

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_a_method_of_a_part_is_known_by_the_place_of_the_part() -> None:
    net = TwoPaths("one")
    before = settings_hash(net)
    assert before != settings_hash(TwoPaths("other"))
    assert before == settings_hash(TwoPaths("one")), "weights are no settings"
    assert before == settings_hash(copy.deepcopy(net))


def test_copying_an_object_changes_nothing() -> None:
    """Python notes in the class which slots were copied."""

    class Config:
        width = 1

    before = value_hash(Config())
    copy.copy(Config())
    assert "__slotnames__" in vars(Config)
    assert value_hash(Config()) == before


def test_a_single_number_is_known_whatever_its_stride() -> None:
    """Some converters make constants by broadcasting."""
    plain = torch.tensor([3.0])
    broadcast = torch.as_strided(torch.tensor([2.0, 3.0]), (1,), (0,), 1)
    assert broadcast.is_contiguous()
    assert value_hash(broadcast) == value_hash(plain)
    assert same([broadcast], [plain])


def holding(weight: torch.Tensor) -> nn.Module:
    net = nn.Module()
    net.register_buffer("adjacency", weight)
    return net


FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coordinates": torch.Tensor.to_sparse,
    "rows": torch.Tensor.to_sparse_csr,
    "columns": torch.Tensor.to_sparse_csc,
    "blocks": lambda x: x.to_sparse_bsr((2, 2)),
    "dense": torch.clone,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
def test_what_a_sparse_weight_holds_is_known(form: Callable[[torch.Tensor], torch.Tensor]) -> None:
    plain = torch.eye(4) + torch.eye(4).roll(1, 0)
    one, again, other = form(plain), form(plain.clone()), form(2 * plain)
    for known in (weights_hash, fingerprint):
        assert known(holding(one)) == known(holding(again)) != known(holding(other))
    assert same([one], [again])
    assert not same([one], [other])


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_a_quantized_tensor_holds_is_compared() -> None:
    one, other = (torch.quantize_per_tensor(torch.arange(4.0) * by, 0.1, 0, torch.quint8) for by in (1, 2))
    assert same([one], [one.clone()])
    assert not same([one], [other])
