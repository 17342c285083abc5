"""``togi.compare``: two live objects are the same up to eager's own error, or it says how they differ."""

from __future__ import annotations

import copy
import itertools
import math
import random
import time
from collections import deque
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import togi
from tests.artifact.artifact_maker import ArtifactMaker
from tests.small_modules import Computes, ComputesWith, Counts
from togi.core.errors import SubjectError, TogiError
from togi.core.records import REFERENCE_RECIPE
from togi.subject.inputs import Inputs, Subject

X = torch.linspace(-2, 2, 64 * 16).reshape(64, 16)


def layers(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)).eval()


NET = layers()


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def own_softmax(x: Tensor) -> Tensor:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def test_the_same_in_another_order_of_sums_is_the_same() -> None:
    def one_by_one(x: Tensor) -> Tensor:
        return torch.cat([NET(row[None]) for row in x])

    for other in (NET, copy.deepcopy(NET), one_by_one, torch.no_grad()(NET.forward)):
        found = togi.compare(NET, other, X)
        assert found, str(found)
        assert repr(found) == f"<{found}>"
        assert found.units < 3
        assert found.precision == "float64"
        assert found.derived >= 2
        found.assert_equal()
    assert "Sequential (2) is the same as Sequential, up to rounding" in str(togi.compare(NET, NET, X))
    said = str(togi.compare(softmax, own_softmax, X))
    assert said.startswith("own_softmax is the same as softmax, up to rounding: the error of its worst output (output)")
    assert said.endswith("8.0 x is the limit).")


@settings(max_examples=20, deadline=None)
@given(st.floats(-9, -1), st.sampled_from(["all", "one"]))
def test_what_rounding_does_not_explain_is_a_difference(exponent: float, where: str) -> None:
    """An error of one part in a million of all, or of the largest element, is found; one below a rounding is not."""
    size = 10.0**exponent

    def off(x: Tensor) -> Tensor:
        y = softmax(x)
        if where == "all":
            return y * (1 + size)
        return torch.where(y == y.max(), y * (1 + size), y)

    found = togi.compare(softmax, off, X)
    if exponent < -8:
        assert found, str(found)
    elif exponent > -5:
        assert not found, str(found)
        assert "off differs from softmax in output: its error is" in str(found)
        with pytest.raises(AssertionError, match="off differs from softmax"):
            found.assert_equal()


def test_the_worst_output_is_named_and_the_sample_may_be_any_form_of_a_call() -> None:
    def both(x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"first": x * scale, "second": (x + scale).sin()}

    def wrong(x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"first": x * scale, "second": (x + scale).sin() * 1.001}

    scale = torch.full((16,), 3.0)
    forms: list[Any] = [
        (X, scale),
        {"x": X, "scale": scale},
        [(X, scale), (X[:10], scale)],
        Inputs((X,), {"scale": scale}),
    ]
    for inputs in forms:
        assert togi.compare(both, both, inputs)
        found = togi.compare(both, wrong, inputs)
        assert not found
        assert found.worst is not None
        assert "second" in found.worst.name
        assert found.units == found.worst.units > 100
        assert math.isclose(found.worst.rmse, 1e-3, rel_tol=0.01)


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x + 1


def changes(x: Tensor) -> Tensor:
    return x.mul_(2)


def draws(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


def refuses_float64(x: Tensor) -> Tensor:
    if x.dtype is not torch.float32:
        raise TypeError("float32 only")
    return x.softmax(-1)


def raises(x: Tensor) -> Tensor:
    if x.numel():
        raise ValueError("not today")
    return x


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (pair, lambda x: list(pair(x)), "output is a list.*, the original returns a tuple"),
        (pair, lambda x: (x, x + 1, x), "output has 3 items, the original 2"),
        (softmax, lambda x: x.softmax(-1)[:, :3], r"output has shape \(64, 3\), the original \(64, 16\)"),
        (softmax, lambda x: x.softmax(-1).double(), "output has dtype float64, the original float32"),
        (lambda x: x * 2, changes, "the input x is modified, the original leaves it as it is"),
        (changes, lambda x: x * 2, "the input x is left as it is, the original modifies it"),
        (softmax, lambda x: x.softmax(-1) + torch.rand(()), "draws random numbers: with another seed"),
        (softmax, raises, "raises differs from softmax: it raises where softmax answers: .*ValueError: not today"),
        (softmax, lambda x: x.softmax(-1).where(x > 0, math.nan), "is not finite"),
    ],
)
def test_what_else_may_differ_is_said(a: Callable[..., Any], b: Callable[..., Any], said: str) -> None:
    found = togi.compare(a, b, X)
    assert not found
    with pytest.raises(AssertionError, match=said):
        found.assert_equal()


def test_in_place_changes_that_both_make_are_compared() -> None:
    found = togi.compare(changes, lambda x: x.add_(x), X)
    assert found, str(found)
    assert any("changes x in place" in note for note in found.notes)

    def returns_the_same_and_leaves_something_else(x: Tensor) -> Tensor:
        y = x * 2
        x.mul_(3)
        return y

    assert not togi.compare(lambda x: (x.mul_(2), x.clone())[1], returns_the_same_and_leaves_something_else, X)


def test_random_answers_are_compared_under_one_seed() -> None:
    dropout = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).train()
    for a, b in ((draws, draws), (dropout, copy.deepcopy(dropout))):
        found = togi.compare(a, b, X)
        assert found, str(found)
        assert "Not float64 decides" in str(found)
        assert "it draws random numbers" in str(found)
    assert not togi.compare(draws, lambda x: x + torch.rand_like(x).flip(0), X)


def test_without_float64_the_original_as_it_is_decides() -> None:
    found = togi.compare(refuses_float64, own_softmax, X)
    assert found, str(found)
    assert found.precision == "eager"
    assert "Not float64 decides, but refuses_float64 as it is: it does not run in float64" in str(found)
    assert not togi.compare(refuses_float64, lambda x: own_softmax(x) * 1.001, X)


def test_an_original_that_does_not_repeat_itself_is_compared_with_nothing() -> None:
    noise = random.Random(0)
    found = togi.compare(lambda x: x * noise.random(), lambda x: x, X)
    assert not found
    assert "cannot be compared" in str(found)
    assert "not repeatable" in str(found)


def test_a_constant_is_found_on_inputs_derived_from_the_sample() -> None:
    answer = softmax(X)

    def constant(x: Tensor) -> Tensor:
        return answer.clone().to(x.device)

    found = togi.compare(softmax, constant, X)
    assert not found
    assert "On the samples they are the same" in str(found)
    assert togi.compare(softmax, constant, X, derived=False)


def test_an_original_that_is_inexact_itself_shows_little() -> None:
    """Given the other way round, what computes in 16 bits would be the measure of what does not."""

    def half(x: Tensor) -> Tensor:
        return (x.to(torch.bfloat16).float() * 3).sin()

    def full(x: Tensor) -> Tensor:
        return (x * 3).sin()

    assert not togi.compare(full, half, X)
    other = togi.compare(half, full, X)
    assert not other or "That shows little: half itself is off by" in str(other)
    assert "shows little" not in str(togi.compare(full, full, X))


def test_an_original_that_is_off_by_itself_is_compared_with_nothing_but_itself() -> None:
    def chaos(x: Tensor) -> Tensor:
        for _ in range(80):
            x = 3.9 * x * (1 - x)
        return x

    x = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    found = togi.compare(chaos, lambda x: torch.full_like(x, 0.5), x)
    assert not found
    assert "cannot be compared with chaos: plain eager itself is off by" in str(found)
    assert togi.compare(chaos, copy.deepcopy(chaos), x)


def test_an_error_that_is_allowed() -> None:
    def near(x: Tensor) -> Tensor:
        return softmax(x) * 1.001

    assert not togi.compare(softmax, near, X)
    found = togi.compare(softmax, near, X, max_error="1%")
    assert found
    assert "near is as close to softmax as was allowed" in str(found)
    assert not togi.compare(softmax, near, X, max_error=1e-4)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: togi.compare(raises, softmax, X), r"raises does not run on sample 1, \(x: float32 \(64, 16\)\)"),
        (lambda: togi.compare(softmax, nn.Linear, X), "a subject is a type"),
        (lambda: togi.compare("timm:resnet18", softmax, X), "'timm:resnet18' is not the folder of an artifact"),
        (lambda: togi.compare(Subject(NET, X), NET, X), r"give its \.module here"),
        (lambda: togi.compare(NET, NET, "text"), "a sample is a str"),
        (lambda: togi.compare(NET, NET, []), "the list of samples is empty"),
        (lambda: togi.compare(NET, NET, X, max_error="much"), "max_error='much'"),
    ],
)
def test_bad_input_is_one_sentence(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(TogiError, match=said):
        call()


def test_live_objects_stay_as_they_are() -> None:
    norm = nn.BatchNorm1d(16).train()
    before = copy.deepcopy(norm.state_dict())
    counted, other = Counts(), Counts()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    x = X.clone()
    assert togi.compare(norm, norm, x)
    assert togi.compare(counted, other, x)
    assert torch.equal(torch.rand(1), expected), "the random generator was moved"
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())
    assert counted.calls == other.calls == 0
    assert torch.equal(x, X)
    assert not norm.weight.grad


def test_answers_that_depend_on_earlier_calls_are_compared_in_order() -> None:
    other = Counts()
    other(X)
    assert not togi.compare(Counts(), other, X), "one call further"
    found = togi.compare(Counts(), Counts(), X)
    assert found
    assert any("earlier calls" in note for note in found.notes)


def test_functions_of_modules_and_of_tensors_that_they_close_over() -> None:
    weight = torch.linspace(-1, 1, 16 * 8).reshape(16, 8)
    found = togi.compare(lambda x: x @ weight, lambda x: (weight.T @ x.T).T.contiguous(), X)
    assert found, str(found)
    assert found.precision == "float64"
    inner = layers(1)
    assert togi.compare(lambda x: inner(x), inner, X)
    assert not togi.compare(ComputesWith(lambda m, x: m.net(x), net=inner), NET, X)
    assert togi.compare(torch.relu, Computes(lambda x: x.clamp(min=0)), X)


def test_compiled_ones_are_called_compiled_and_their_float64_is_the_originals() -> None:
    calls = []

    def backend(graph: Any, _: Any) -> Any:
        calls.append(graph)
        return graph.forward

    compiled = torch.compile(layers(2), backend=backend)
    for a, b in ((layers(2), compiled), (compiled, layers(2)), (torch.compile(softmax, backend=backend), softmax)):
        found = togi.compare(a, b, X)
        assert found, str(found)
        assert found.precision == "float64"
    assert calls
    eager, in_place = (ComputesWith(lambda m, x: m.net(x).tanh(), net=layers(2)) for _ in range(2))
    in_place.compile(backend=lambda graph, _: lambda *given: [out * 1.01 for out in graph.forward(*given)])
    assert not togi.compare(eager, in_place, X), "a copy of it would be eager"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifacts") / "net.togi"
    ArtifactMaker.of(Subject(NET, [X, X[:40]]), "net").make(folder, REFERENCE_RECIPE)
    return folder


def test_an_artifact_and_the_module_in_any_order(artifact: Path) -> None:
    loaded = togi.load(artifact)
    for a, b in ((NET, artifact), (str(artifact), NET), (NET, loaded), (loaded, NET)):
        found = togi.compare(a, b, [X, X[:40]])
        assert found, str(found)
        assert found.precision == "float64", "the module is the original"
    assert "net.togi is the same as Sequential" in str(togi.compare(artifact, NET, X))
    assert not togi.compare(layers(5), artifact, X)
    assert togi.compare(artifact, loaded, X), "neither has a float64 twin"
    refused = togi.compare(NET, artifact, X[None])
    assert not refused
    assert "it raises where Sequential answers" in str(refused)


def test_a_missing_artifact_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TogiError, match="nothing"):
        togi.compare(NET, tmp_path / "nothing.togi", X)
    assert issubclass(SubjectError, TogiError)


def grows(x: Tensor, cache: list[Tensor]) -> Tensor:
    cache.append(x * 2)
    return x + 1


def keeps(x: Tensor, _: Any) -> Tensor:
    return x + 1


def grows_otherwise(x: Tensor, cache: list[Tensor]) -> Tensor:
    cache.append(x * 2.01)
    return x + 1


def counts_up(x: Tensor, state: dict[str, Any]) -> Tensor:
    state["n"] += 1
    return x + 1


def counts_by_two(x: Tensor, state: dict[str, Any]) -> Tensor:
    state["n"] += 2
    return x + 1


def sums_up(x: Tensor, state: dict[str, Any]) -> Tensor:
    state["n"] += float(x.square().sum())
    return x + 1


def sums_up_backwards(x: Tensor, state: dict[str, Any]) -> Tensor:
    state["n"] += float(x.square().cumsum(0)[-1].sum())
    return x + 1


class Holder:
    """An object of the program's own, known to no container."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: list[Any] = []


def holds(x: Tensor, holder: Holder) -> Tensor:
    holder.kept.append(x.shape[0])
    return x + 1


@pytest.mark.parametrize(
    ("original", "other", "left", "said"),
    [
        (grows, grows, [], ""),
        (grows, keeps, [], "the input cache is left as it is, the original modifies it"),
        (keeps, grows, [], "the input _ is modified, the original leaves it as it is"),
        (grows, grows_otherwise, [], "in cache[0] after the call"),
        (grows, grows, [X], ""),
        (grows, keeps, [X], "the input cache is left as it is"),
        (grows, grows_otherwise, [X], "in cache[1] after the call"),
        (counts_up, counts_up, {"n": 0}, ""),
        (counts_up, keeps, {"n": 0}, "the input state is left as it is"),
        (counts_up, counts_by_two, {"n": 0}, "state after the call['n'] is 2, the original returns 1"),
        (sums_up, sums_up_backwards, {"n": 0.0}, ""),
        (sums_up, counts_up, {"n": 0.0}, "in state['n'].number after the call"),
        (holds, holds, Holder(), ""),
        (holds, keeps, Holder(), "the input holder is left as it is"),
    ],
)
def test_what_a_call_leaves_in_its_arguments_is_compared(
    original: Callable[..., Any], other: Callable[..., Any], left: Any, said: str
) -> None:
    found = togi.compare(original, other, togi.Inputs((X, left)))
    assert bool(found) is (not said), str(found)
    assert said in str(found)
    assert isinstance(left, Holder) or len(left) in (0, 1), "what was given stays"
    assert not isinstance(left, dict) or left["n"] == 0


def test_buffers_that_a_call_changes_are_changed_by_both() -> None:
    norm = nn.BatchNorm1d(16).train()

    def forgets(x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, None, None, norm.weight, norm.bias, True)

    def updates(x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, True)

    assert togi.compare(norm, norm, X)
    assert togi.compare(norm, updates, X)
    found = togi.compare(norm, forgets, X)
    assert not found
    assert "it changes no buffer, and BatchNorm1d changes running_mean" in str(found)
    assert torch.equal(norm.running_mean, torch.zeros(16))


CALLS = itertools.count()


class Found:
    def __init__(self, boxes: Tensor, **more: Any) -> None:
        self.boxes = boxes
        self.__dict__.update(more)


def found_with(**more: Any) -> Callable[[Tensor], Found]:
    class Local(Found):  # of a function, and so of no known form
        pass

    return lambda x: Local(x + 1, **{name: value(x) if callable(value) else value for name, value in more.items()})


@pytest.mark.parametrize(
    ("original", "other", "said"),
    [
        ({"n": 3, "label": "cat"}, {"n": 3, "label": "cat"}, ""),
        ({"n": 3}, {"n": 4}, "output['n'] is 4, the original returns 3"),
        ({"label": "cat"}, {"label": "dog"}, "output['label'] is 'dog'"),
        ({"score": lambda x: x.norm().item()}, {"score": lambda x: x.flip(0).norm().item()}, ""),
        ({"score": lambda x: x.norm().item()}, {"score": lambda x: x.norm().item() * 1.01}, "in output.score.number"),
        ({"inner": Holder()}, {"inner": Found(X)}, "output['inner']"),
        ({"took": lambda _: time.perf_counter()}, {"took": lambda _: time.perf_counter()}, ""),
        ({"number": lambda _: next(CALLS)}, {"number": 0}, ""),
        ({"day": date(2026, 1, 1)}, {"day": date(2026, 1, 1)}, ""),
        ({"day": date(2026, 1, 1)}, {"day": date(2026, 1, 2)}, "datetime.date(2026, 1, 2)"),
        ({"kept": deque([1, 2])}, {"kept": deque([1, 3])}, "is 3, the original returns 2"),
        ({"function": print}, {"function": print}, ""),
    ],
)
def test_what_objects_hold_is_compared(original: dict[str, Any], other: dict[str, Any], said: str) -> None:
    found = togi.compare(found_with(**original), found_with(**other), X)
    assert bool(found) is (not said), str(found)
    assert said in str(found)


def test_what_differs_in_each_call_of_the_original_is_said_and_left_out() -> None:
    found = togi.compare(found_with(took=lambda _: time.perf_counter()), found_with(took=0.5), X)
    assert found
    assert "output.took is another one in each call of the original, and is not compared" in found.notes


@pytest.mark.parametrize(
    ("original", "other", "said"),
    [
        (lambda _: {(1, 2), (0, 5)}, lambda _: {(0, 5), (1, 2)}, ""),
        (lambda _: {(1, 2)}, lambda _: {(3, 4)}, "is 3, the original returns 1"),
        (lambda x: {float(x.norm()), 7.0}, lambda x: {7.0, float(x.flip(0).norm())}, ""),
        (lambda _: frozenset({1}), lambda _: {1}, "output['kind'] is a builtins:set"),
        (lambda x: (x, torch.float32), lambda x: (x, torch.float16), "is 'float16', the original returns 'float32'"),
        (
            lambda x: x.double().sum().item(),
            lambda x: x.double().sum(),
            "output is a tensor, the original returns a float",
        ),
        (
            lambda x: x.double().sum(),
            lambda x: x.double().sum().item(),
            "output is a float, the original returns a tensor",
        ),
        (lambda x: x.sum().item(), lambda x: np.float64(x.sum().item()), "is a numpy:float64"),
        (lambda x: x.clone().as_subclass(Marked), lambda x: x.clone().as_subclass(Marked), ""),
        (lambda x: x.clone().as_subclass(Marked), lambda x: x.clone(), "output is a torch:Tensor, the original's is a"),
        (lambda x: iter([x + 1]), lambda x: iter([x + 1]), "cannot be compared with"),
    ],
)
def test_kinds_of_answers_are_told_apart(original: Any, other: Any, said: str) -> None:
    found = togi.compare(original, other, X)
    assert bool(found) is (not said), str(found)
    assert said in str(found)


class Marked(Tensor):
    pass


def test_a_parameter_that_comes_back_as_a_tensor_is_noted() -> None:
    """Engines return plain tensors: what a caller computes with one is the same."""
    found = togi.compare(lambda x: nn.Parameter(x.clone()), lambda x: x.clone(), X)
    assert found
    assert "output is a torch:Tensor, the original's is a torch.nn.parameter:Parameter" in found.notes
