"""Signatures that take some values alone."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from togi.subject import admitted_calls
from togi.subject.domain import Domain, extremes_together, refusals_on_device
from togi.subject.inputs import Inputs, Subject
from togi.subject.made_inputs import samples_from_signature
from togi.subject.prepare import prepare
from togi.subject.signature import Signature
from togi.torch_internals.deferred import Deferred
from togi.torch_internals.tensors import tree_flatten, tree_map_only


class Net(nn.Module):
    def forward(self, x: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + ids + mask


SAMPLE = (torch.randn(2, 4), torch.randint(0, 9, (2, 4)), torch.tensor([[True, True, False, True]] * 2))
DOMAINS = (Domain(low=3.0, high=4.0), Domain(low=100, high=2**40), Domain(empty_rows=False, full_rows=False))


@pytest.fixture
def signature() -> Signature:
    ready = prepare(Subject(Net(), Inputs(SAMPLE)))
    (sample,) = ready.samples
    return Signature.of(ready.module, ready.samples, [ready.module(*sample.args)]).within(DOMAINS)


def test_a_call_beyond_a_domain_is_refused_with_the_input_and_the_bound(signature: Signature) -> None:
    x, ids, mask = torch.full((2, 4), 3.5), torch.full((2, 4), 2**40), SAMPLE[2]
    signature.check([x, ids, mask])
    with pytest.raises(ValueError, match=r"x holds 9, but was proven for values from 3 to 4.*Call the original"):
        signature.check([x * 0 + 9, ids, mask])
    with pytest.raises(ValueError, match=r"ids holds 1,099,511,627,777"):
        signature.check([x, ids + 1, mask])
    with pytest.raises(ValueError, match="mask has a row of zeros alone"):
        signature.check([x, ids, mask & False])


def test_a_domain_is_stated_in_words(signature: Signature) -> None:
    assert signature.domains_in_words() == [
        "x holds values from 3 to 4",
        "ids holds values from 100 to 1,099,511,627,776",
        "no row of mask is all zero",
        "each row of mask has a zero",
    ]
    assert signature.unmet(Inputs(SAMPLE))[0].startswith("x holds")


def test_it_comes_back_from_a_manifest(signature: Signature) -> None:
    assert Signature.model_validate_json(signature.to_json()) == signature


def test_made_inputs_lie_inside(signature: Signature) -> None:
    (made,) = samples_from_signature(signature, 0)
    assert signature.unmet(made) == []


def test_as_many_domains_as_inputs(signature: Signature) -> None:
    with pytest.raises(ValueError, match="1 domains for 3 inputs"):
        signature.within([Domain()])


class Kept:
    """Where an engine keeps a tensor."""

    def __init__(self) -> None:
        self.lock, self.fetched = threading.RLock(), 0

    def fetch(self) -> torch.Tensor:
        self.fetched += 1
        return torch.full((2, 4), 99.0)


def test_what_a_program_keeps_is_not_fetched_to_be_looked_at(signature: Signature) -> None:
    kept = Kept()
    given = [Deferred((2, 4), torch.float32, kept), torch.full((2, 4), 200), SAMPLE[2]]
    signature.check(given, lambda at, tensor: at == 0 and tensor is given[0])
    assert not kept.fetched


@pytest.mark.parametrize("keeps", [None, lambda *_: False])
def test_what_another_program_keeps_is_looked_at_and_stays_with_it(signature: Signature, keeps: Any) -> None:
    kept = Kept()
    given = [Deferred((2, 4), torch.float32, kept), torch.full((2, 4), 200), SAMPLE[2]]
    for _ in range(2):
        with pytest.raises(ValueError, match="x holds 99, but was proven for values from 3 to 4"):
            signature.check(given, keeps)
    assert kept.fetched == 1
    assert given[0].place is kept, "its engine may go on from it without a copy"


LARGE = {
    "contiguous": torch.zeros(3, 200, 301),
    "channels last": torch.zeros(2, 3, 160, 160).to(memory_format=torch.channels_last),
    "one row": torch.zeros(1, 1, 100_001),
    "a view": torch.zeros(400, 401)[::2, 1:].T,
    "many rows": torch.zeros(100_001, 1),
    "a scalar": torch.tensor(0.0),
    "half as wide": torch.zeros(3, 200, 301, dtype=torch.bfloat16),
    "whole numbers": torch.zeros(70_000, dtype=torch.int64),
}


@pytest.mark.parametrize("layout", LARGE)
@pytest.mark.parametrize("place", [0, -1, "middle"])
def test_a_value_outside_is_found_wherever_it_stands(layout: str, place: int | str) -> None:
    x = LARGE[layout].clone()
    domain = Domain(low=-1, high=1)
    assert not domain.refusal(x)
    index = torch.unravel_index(torch.tensor(x.numel() // 2 if place == "middle" else place), x.shape)
    for value in (5, -5, *([math.nan] if x.is_floating_point() else [])):
        changed = x.clone()
        changed[index] = value
        assert "but was proven" in domain.refusal(changed)
        assert not Domain(constant=False).refusal(changed) or x.dim() == 0
    assert x.dim() == 0 or Domain(constant=False).refusal(x)


@pytest.mark.parametrize("shape", [(3, 4, 5000), (70_000, 2), (2, 1, 300, 300)])
def test_rows_of_a_large_mask(shape: tuple[int, ...]) -> None:
    mask = torch.ones(shape)
    mask[..., 0] = 0
    rows = Domain(empty_rows=False, full_rows=False)
    assert not rows.refusal(mask)
    for value, why in ((0, "zeros alone"), (1, "without a zero")):
        changed = mask.clone()
        changed.flatten(0, -2)[-1] = value
        assert why in rows.refusal(changed)


class _Largest(TorchDispatchMode):
    """The most elements that one operator is given and reduces."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in {torch.ops.aten.aminmax, torch.ops.aten.any, torch.ops.aten.all}:
            self.elements = max(self.elements, args[0].numel())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", LARGE)
def test_looking_at_values_wakes_none_of_torchs_threads(layout: str) -> None:
    """They would wait busily for milliseconds, on cores that an engine's own threads need."""
    x = LARGE[layout]
    rows = x.dim() > 1 and x.shape[-1] < 2**15
    for looked_at in (x, x.to(torch.float16)):  # NumPy, which has no threads, looks at the wider types
        with _Largest() as largest:
            Domain(low=-1, high=1, empty_rows=not rows).refusal(looked_at)
        assert largest.elements < 2**15  # as few as torch reduces on one thread
    assert largest.elements > 0


def test_what_lies_on_a_device_is_looked_at_together() -> None:
    """The same extremes as those of each alone, with one fetch for whole numbers and one for others."""
    floats = [torch.randn(3, 5), torch.tensor([1.0, math.nan]), torch.randn(4).to(torch.bfloat16)]
    whole = [torch.randint(-9, 9, (7,)), torch.tensor([2**62, -(2**62)]), torch.tensor([True, False]), torch.tensor(3)]
    tensors = [floats[0], whole[0], whole[1], floats[1], whole[2], floats[2], whole[3]]
    alone = [tuple(bound.item() for bound in tensor.aminmax()) for tensor in tensors]
    together = extremes_together(tensors)
    assert [str(tuple(map(float, pair))) for pair in together] == [str(tuple(map(float, pair))) for pair in alone]
    assert together[2] == (-(2**62), 2**62)  # not rounded to a float
    assert extremes_together([]) == []
    domains = [Domain(low=-1, high=1), Domain(), Domain(high=2**61), Domain(low=0), Domain(empty_rows=False)]
    asked = list(zip(domains, tensors, strict=False))
    assert refusals_on_device(asked) == [domain.refusal(tensor) for domain, tensor in asked]
    assert [bool(refusal) for refusal in refusals_on_device(asked)] == [True, False, True, True, False]


class Elsewhere(torch.Tensor):
    """A tensor of a device that this machine need not have. Operators refuse tensors of several devices, and each
    fetch is noted."""

    inner: torch.Tensor
    fetched: ClassVar[list[torch.device]] = []

    @staticmethod
    def __new__(cls, values: torch.Tensor, device: str) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype, device=torch.device(device))
        made.inner = values
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        leaves, _ = tree_flatten((args, kwargs or {}))
        (device,) = {str(leaf.device) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        args, kwargs = tree_map_only(Elsewhere, lambda leaf: leaf.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, lambda leaf: Elsewhere(leaf, device), func(*args, **kwargs))

    def tolist(self) -> Any:
        self.fetched.append(self.device)
        return self.inner.tolist()


def test_values_on_several_devices_are_looked_at_device_by_device() -> None:
    x = torch.tensor([1.0, 5.0])
    tensors = [x, Elsewhere(x, "cuda:0"), Elsewhere(x + 1, "cuda:1"), x.long(), Elsewhere(x - 5, "cuda:0")]
    Elsewhere.fetched.clear()
    found = refusals_on_device([(Domain(low=2), tensor) for tensor in tensors])
    assert [text.partition(",")[0] for text in found] == ["holds 1", "holds 1", "", "holds 1", "holds -4"]
    assert Elsewhere.fetched == [torch.device("cuda:0"), torch.device("cuda:1")], "one fetch for each device"


@pytest.mark.parametrize(("place", "grouped"), [(0, True), (1, False)])
def test_a_device_counts_where_its_values_are_looked_at(
    place: int, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an input on a device whose every value is taken, the others are looked at as quickly as ever."""
    ready = prepare(Subject(Net(), Inputs(SAMPLE)))
    outputs = [ready.module(*ready.samples[0].args)]
    devices = tuple("cuda" if at == place else "cpu" for at in range(3))
    made = Signature.of(ready.module, ready.samples, outputs).model_copy(update={"devices": devices})
    asked: list[int] = []

    def refusals(pairs: Sequence[tuple[Domain, torch.Tensor]]) -> list[str]:
        asked.append(len(pairs))
        return [""] * len(pairs)

    monkeypatch.setattr(admitted_calls, "refusals_on_device", refusals)
    signature = made.within((Domain(low=-99), Domain(), Domain(full_rows=False)))
    there = [Elsewhere(tensor, "cuda") if at == place else tensor for at, tensor in enumerate(SAMPLE)]
    signature.check(there)
    assert asked == ([2] if grouped else [])
