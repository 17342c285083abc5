"""What a call changes: returned by the pure form of a module, and made in the caller's own objects afterwards."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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
