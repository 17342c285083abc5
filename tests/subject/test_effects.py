"""What a call changes: returned by the pure form of a module, and made in the caller's own objects afterwards."""

from __future__ import annotations

import json
import math
import operator
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.core.errors import Refused
from togi.subject.effects import Effects
from togi.subject.inputs import Inputs
from togi.subject.pure import Pure


class Store:
    """A cache that grows."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.fixed = torch.arange(3.0)
        self.filled = False

    def add(self, new: Tensor) -> Tensor:
        self.keys = new if self.keys is None else torch.cat([self.keys, new], 0)
        self.filled = True
        return self.keys


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor, store: Store, *, scratch: Tensor | None = None, seen: list[Any] | None = None) -> Any:
        keys = store.add(self.inner(x))
        if scratch is not None:
            scratch += x.sum()
        if seen is not None:
            seen.append(x + 1)
        return {"sum": keys.sum(0) + store.fixed, "store": store}


def twice(call: Any, given: list[Inputs]) -> tuple[list[Any], list[Any]]:
    outputs = [call(*one.args, **one.kwargs) for one in given]
    return outputs, [[*one.args, *one.kwargs.values()] for one in given]


def filled(length: int) -> Store:
    store = Store()
    store.add(torch.rand(length, 3))
    return store


@pytest.mark.parametrize(
    "given",
    [
        Inputs((torch.rand(2, 3), Store())),
        Inputs((torch.rand(2, 3), filled(4))),
        Inputs((torch.rand(2, 3),), {"store": filled(1), "scratch": torch.zeros(2)}),
        Inputs((torch.rand(1, 3), filled(2)), {"seen": [torch.zeros(1)]}),
    ],
    ids=["empty", "filled", "keyword and overwritten tensor", "list"],
)
def test_the_pure_form_and_finish_do_what_the_module_does(given: Inputs) -> None:
    torch.manual_seed(0)
    module = Step().eval()
    plain, pure_given = given.clone(), given.clone()
    with torch.no_grad():
        effects = Effects.of(module, given.clone())
        expected = module(*plain.args, **plain.kwargs)
        before = [tensor.clone() for tensor in pure_given.tensors()]
        result = Pure(module, effects)(*pure_given.args, **pure_given.kwargs)
    assert all(map(torch.equal, before, pure_given.tensors()))
    found = effects.finish(result, pure_given.args, pure_given.kwargs)
    store = pure_given.kwargs.get("store", pure_given.args[-1])
    assert found["store"] is store
    assert torch.equal(found["sum"], expected["sum"])
    assert [t.shape for t in plain.tensors()] == [t.shape for t in pure_given.tensors()]
    assert all(map(torch.equal, plain.tensors(), pure_given.tensors()))
    assert store.filled


def test_what_is_only_read_is_no_further_output() -> None:
    module = Step().eval()
    effects = Effects.of(module, Inputs((torch.rand(2, 3), filled(4))))
    (change,) = effects.changes
    assert change.argument == 1
    assert change.kept == (None, 1)
    result = Pure(module, effects)(torch.rand(2, 3), filled(4))
    assert len(result[1]) == 1


def test_a_call_that_changes_nothing_has_no_effects() -> None:
    assert Effects.of(nn.Linear(2, 2), Inputs((torch.ones(1, 2),))) == Effects()


@pytest.mark.parametrize(("before", "after"), [(math.nan, 0.0), (math.inf, torch.finfo().max)])
def test_a_tensor_whose_numbers_are_put_right_is_overwritten(before: float, after: float) -> None:
    class Repair(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.nan_to_num_().sum()

    effects = Effects.of(Repair(), Inputs((torch.tensor([before, 1.0]),)))
    (change,) = effects.changes
    assert change.written == (0,)
    given = torch.tensor([before, 1.0])
    effects.finish(Pure(Repair(), effects)(given), (given,), {})
    assert given.tolist() == [after, 1.0]


def test_effects_are_written_and_read() -> None:
    effects = Effects.of(Step(), Inputs((torch.rand(2, 3), Store()), {"scratch": torch.zeros(1)}))
    assert Effects.from_json(effects.to_json()) == effects


class Layered(nn.Module):
    """Changes containers inside of its arguments, and replaces one."""

    def forward(self, x: Tensor, states: list[Any], store: Store | None = None) -> Tensor:
        states[0]["h"] = states[0]["h"] + x
        states[1][0].append(x)
        states[2] = {"new": x}
        states[3].update(h=x * 2)
        if store is not None:
            store.seen = [*getattr(store, "seen", []), x]  # type: ignore[attr-defined]
        return x + 1


def states_of(x: Tensor) -> list[Any]:
    """Tensors of their own: which of them stay is known by what they are."""
    return [{"h": x.clone(), "n": 1}, ([x.clone()], "t"), {"new": x.clone()}, OrderedDict(h=x.clone()), Store()]


def test_containers_inside_of_an_argument_stay_the_objects_that_they_are() -> None:
    x = torch.rand(2)
    module = Layered().eval()
    effects = Effects.of(module, Inputs((x, states_of(x), Store())), Inputs((x + 1, states_of(x), Store())))
    effects = Effects.from_json(effects.to_json())
    for finished in (True, False):
        states, store = states_of(x), Store()
        own = [states[0], states[1], states[1][0], states[2], states[3], states[4]]
        if finished:
            effects.finish(Pure(module, effects)(x, states, store), (x, states, store), {})
        else:
            module(x, states, store)
        dict_0, pair, inner, replaced, ordered, untouched = own
        assert states[0] is dict_0
        assert states[1] is pair
        assert states[1][0] is inner
        assert states[2] is not replaced
        assert states[3] is ordered
        assert states[4] is untouched
        assert torch.equal(dict_0["h"], 2 * x)
        assert list(dict_0) == ["h", "n"]
        assert torch.equal(inner[1], x)
        assert torch.equal(replaced["new"], x)
        assert torch.equal(ordered["h"], 2 * x)
        assert len(store.seen) == 1  # type: ignore[attr-defined]


@dataclass(slots=True, frozen=True)
class Slotted:
    hidden: Tensor
    read: Tensor


class WritesSlots(nn.Module):
    def forward(self, x: Tensor, kept: dict[str, Slotted]) -> Tensor:
        object.__setattr__(kept["one"], "hidden", kept["one"].hidden + x)
        return x * kept["other"].read


def test_dataclasses_with_slots_inside_of_an_argument_stay_the_objects_that_they_are() -> None:
    x, module = torch.rand(2), WritesSlots()

    def kept() -> dict[str, Slotted]:
        return {name: Slotted(torch.ones(2), torch.ones(2)) for name in ("one", "other")}

    effects = Effects.of(module, Inputs((x, kept())))
    given = kept()
    before = list(given.values())
    effects.finish(Pure(module, effects)(x, given), (x, given), {})
    assert all(map(operator.is_, given.values(), before))
    assert torch.equal(before[0].hidden, 1 + x)


def test_effects_of_before_replace_what_is_inside() -> None:
    x = torch.rand(2)
    effects = Effects.of(Layered(), Inputs((x, states_of(x))))
    before = json.loads(effects.to_json())
    for change in before["changes"]:
        del change["stays"]
    states = states_of(x)
    Effects.from_json(json.dumps(before)).finish(Pure(Layered(), effects)(x, states), (x, states), {})
    assert torch.equal(states[0]["h"], 2 * x)
    assert len(states[1][0]) == 2


def test_caches_inside_of_a_cache_are_filled_where_they_stand() -> None:
    from transformers import DynamicCache, EncoderDecoderCache

    class Fills(nn.Module):
        def forward(self, x: Tensor, cache: Any) -> Tensor:
            cache.self_attention_cache.update(x, x, 0)
            return x

    def filled_cache() -> Any:
        cache = DynamicCache()
        cache.update(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)
        return EncoderDecoderCache(cache, DynamicCache())

    x, module = torch.rand(1, 2, 1, 4), Fills()
    effects = Effects.of(module, Inputs((x, filled_cache())))
    cache = filled_cache()
    own, layer = cache.self_attention_cache, cache.self_attention_cache.layers[0]
    effects.finish(Pure(module, effects)(x, cache), (x, cache), {})
    assert cache.self_attention_cache is own
    assert own.layers[0] is layer
    assert own.get_seq_length() == 4


class Own(list[Tensor]):
    def __init__(self, items: list[Tensor], limit: int) -> None:
        super().__init__(items)
        self.limit = limit


def test_a_new_list_of_a_class_of_its_own_in_an_argument_is_refused_and_one_that_stays_is_not() -> None:
    class Replaces(nn.Module):
        def forward(self, x: Tensor, kept: dict[str, Any]) -> Tensor:
            kept["own"] = Own([x], 2)
            return x

    class Adds(nn.Module):
        def forward(self, x: Tensor, kept: dict[str, Any]) -> Tensor:
            kept["own"].append(x)
            return x

    x = torch.rand(2)
    with pytest.raises(Refused, match=r"a new .*:Own in the argument 1, which only its own class can make"):
        Effects.of(Replaces(), Inputs((x, {"own": Own([], 1)})))
    effects = Effects.of(Adds(), Inputs((x, {"own": Own([], 1)})))
    given = {"own": (own := Own([], 1))}
    effects.finish(Pure(Adds(), effects)(x, given), (x, given), {})
    assert given["own"] is own
    assert (len(own), own.limit) == (1, 1)
