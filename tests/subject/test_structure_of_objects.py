"""Caches, objects with tensors inside, enums and registered classes: taken apart, written down and built again."""

from __future__ import annotations

import enum
import threading
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils import _pytree

from togi.subject.inputs import Inputs
from togi.subject.nested import put_back
from togi.subject.structure import Structure


class Mode(enum.Enum):
    FAST = "fast"


class State:
    """Attributes and nothing else."""

    def __init__(self, hidden: torch.Tensor, mode: Mode = Mode.FAST) -> None:
        self.hidden = hidden
        self.layers = [SimpleState(hidden + 1), SimpleState(None)]
        self.mode = mode
        self.dtype = hidden.dtype
        self.device = hidden.device
        self.layer_class = SimpleState
        self.seen = {0: True}


class SimpleState:
    def __init__(self, value: torch.Tensor | None) -> None:
        self.value = value


class Registered:
    """Slots: only torch's registry knows how to take it apart."""

    __slots__ = ("first", "name")

    def __init__(self, first: torch.Tensor, name: str) -> None:
        self.first, self.name = first, name


_pytree.register_pytree_node(
    Registered,
    lambda value: ([value.first], value.name),
    lambda children, name: Registered(next(iter(children)), name),
    serialized_type_name="test.Registered",
)


def tensors(value: Any) -> list[torch.Tensor]:
    return [item for _, leaf, item in Structure.of(value).walk(value) if leaf.kind == "tensor"]


def rebuilt(value: Any) -> Any:
    structure = Structure.of(value)
    stored = Structure.from_json(structure.to_json())
    assert stored == structure
    return stored.build(iter(tensors(value)))


def test_an_object_comes_back_with_what_it_held() -> None:
    given = State(torch.arange(3.0))
    found = rebuilt(given)
    assert type(found) is State
    assert found.hidden is given.hidden
    assert torch.equal(found.layers[0].value, given.hidden + 1)
    assert found.layers[1].value is None
    assert (found.mode, found.dtype, found.device) == (Mode.FAST, torch.float32, torch.device("cpu"))
    assert found.layer_class is SimpleState
    assert found.seen == {0: True}
    assert found.layers is not given.layers


def test_caches_of_transformers_come_back() -> None:
    from transformers import DynamicCache, EncoderDecoderCache

    cache = DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)
    both = EncoderDecoderCache(cache, DynamicCache())
    found = rebuilt(both)
    assert isinstance(found, EncoderDecoderCache)
    assert found.self_attention_cache.get_seq_length() == 3
    keys, _ = found.self_attention_cache.update(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4), 0)
    assert keys.shape == (1, 2, 4, 4)
    assert cache.get_seq_length() == 3


def test_a_registered_class_comes_back() -> None:
    found = rebuilt((Registered(torch.ones(2), "left"), 3))
    assert isinstance(found[0], Registered)
    assert found[0].name == "left"
    assert torch.equal(found[0].first, torch.ones(2))
    assert Structure.of(Registered(torch.ones(2), "right")) != Structure.of(Registered(torch.ones(2), "left"))


@pytest.mark.parametrize(
    "value", [threading.Lock(), open, SimpleNamespace(x=1), lambda: 0], ids=["lock", "builtin", "namespace", "function"]
)
def test_what_cannot_be_built_again_is_opaque(value: Any) -> None:
    assert Structure.of(value).kind == "opaque"
    holder = SimpleState(value)
    assert Structure.of(holder).kind == "opaque"


def test_an_object_that_holds_itself_is_opaque() -> None:
    ring = SimpleState(None)
    ring.value = [ring]  # type: ignore[assignment]
    assert Structure.of(ring).kind == "opaque"
    assert Inputs((ring,)).clone().args[0] is ring


def test_a_class_of_this_function_is_opaque_since_no_other_process_finds_it() -> None:
    class Local:
        def __init__(self) -> None:
            self.x = torch.ones(1)

    assert Structure.of(Local()).kind == "opaque"


def test_a_clone_shares_no_container_and_no_memory() -> None:
    given = Inputs((State(torch.zeros(2)),), {"again": Registered(torch.zeros(2), "left")})
    copied = given.clone()
    copied.args[0].hidden += 1
    copied.args[0].layers.append(None)
    copied.kwargs["again"].first += 1
    assert torch.equal(given.args[0].hidden, torch.zeros(2))
    assert len(given.args[0].layers) == 2
    assert torch.equal(given.kwargs["again"].first, torch.zeros(2))


def test_another_constant_inside_is_another_form() -> None:
    one, other = State(torch.zeros(2)), State(torch.zeros(2))
    other.seen[0] = False
    structure = Structure.of(one)
    with pytest.raises(ValueError, match="x"):
        list(structure.walk(SimpleState(None), "x"))
    leaves = [leaf.admits(item) for _, leaf, item in structure.walk(other) if leaf.kind != "tensor"]
    assert leaves.count(False) == 1


class Point(NamedTuple):
    x: torch.Tensor
    name: str


def changed_state(**attributes: Any) -> State:
    state = State(torch.zeros(2))
    vars(state).update(attributes)
    return state


VALUES: list[Any] = [
    State(torch.zeros(2)),
    State(torch.ones(3)),
    changed_state(mode="fast"),
    changed_state(dtype=torch.float64),
    changed_state(device=torch.device("meta")),
    changed_state(layers=[SimpleState(None)]),
    changed_state(layer_class=State),
    changed_state(more=1),
    SimpleState(None),
    SimpleState(torch.zeros(1)),
    Registered(torch.zeros(2), "left"),
    Registered(torch.zeros(2), "right"),
    Point(torch.zeros(1), "a"),
    (torch.zeros(1), "a"),
    [torch.zeros(1), "a"],
    {"x": torch.zeros(1), "name": "a"},
    {"name": "a", "x": torch.zeros(1)},
    torch.zeros(1),
    Mode.FAST,
    1,
    True,
    None,
]


def test_reading_the_tensors_of_a_value_agrees_with_walking_through_it() -> None:
    def walked(structure: Structure, value: Any) -> list[int] | None:
        try:
            leaves = list(structure.walk(value))
        except ValueError:
            return None
        right = all(leaf.kind == "tensor" or leaf.admits(item) for _, leaf, item in leaves)
        return [id(item) for _, leaf, item in leaves if leaf.kind == "tensor"] if right else None

    agreed = 0
    for known in VALUES:
        structure = Structure.of(known)
        for value in (known, *VALUES, known):  # from the second value on its class is known
            found: list[torch.Tensor] = []
            whole = structure.read(value, found)
            assert ([id(tensor) for tensor in found] if whole else None) == walked(structure, value)
            agreed += whole
    assert len(VALUES) < agreed < len(VALUES) ** 2 / 2


def test_what_was_named_is_put_back_and_dicts_stay_where_they_stand() -> None:
    store, hidden = State(torch.ones(2)), torch.zeros(3)
    inner: dict[str, Any] = {"cache": "given", "kept": "other"}
    value = (hidden, [inner, "given"], {"text": "no name"})
    found = put_back(value, {"given": store})
    assert found[0] is hidden
    assert found[1][0] is inner
    assert inner == {"cache": store, "kept": "other"}
    assert found[1][1] is store
    assert found[2] is value[2]
