"""What stands for a module in a script changes nothing but the time: answers, gradients, copies, files, traces."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.artifact.artifact_maker import ArtifactMaker
from togi.artifact.installed import Installed
from togi.artifact.load import put_in_place
from togi.script.switch import ScriptSwitch
from togi.subject.inputs import Subject
from togi.subject.nested import tensors_in
from togi.techniques import recipe


@dataclass
class Answer:
    y: Tensor
    best: Tensor
    pair: tuple[Tensor, Tensor]


class Net(nn.Module):
    """Several outputs: one of integers, and two views of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = nn.Linear(8, 4), nn.Parameter(torch.ones(()))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Answer:
        y = self.frozen(self.linear(x).tanh()) * (1.0 if scale is None else scale)
        return Answer(y, y.argmax(-1), (y[:, :2], y[:, 2:]))


X = torch.linspace(-1, 1, 24).reshape(3, 8)


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact") / "net.togi"
    ArtifactMaker.of(Subject(net(), [(X,), (torch.cat([X, X]),)]), "Net").make(folder, recipe(eager={}, no_grad={}))
    return folder


@pytest.fixture
def pair(artifact: Path) -> Iterator[tuple[Net, Net, Installed]]:
    """The original, and one with the artifact in it, whose first call with gradients was made."""
    served = net()
    with put_in_place(artifact, served, ScriptSwitch) as installed:
        served(X)
        installed.switches[0].original_calls = 0
        yield net(), served, installed


def of_engine(installed: Installed) -> int:
    ((engine, original),) = installed.counts.values()
    assert original == 0
    return engine


def losses(model: Net) -> Tensor:
    answer = model(X)
    return answer.y.square().sum() + (answer.pair[0] * 2).sum()


def gradients(model: Net) -> dict[str, Tensor | None]:
    return {name: weight.grad for name, weight in model.named_parameters()}


def assert_equal_gradients(one: Net, other: Net) -> None:
    assert gradients(one).keys() == gradients(other).keys()
    for name, gradient in gradients(one).items():
        torch.testing.assert_close(gradients(other)[name], gradient, msg=name)


def test_answers_and_their_histories_are_those_of_the_original(pair: tuple[Net, Net, Installed]) -> None:
    original, served, installed = pair
    for around in (torch.no_grad, torch.enable_grad):
        with around():
            expected, answer = original(X), served(X)
        assert type(answer) is Answer
        for one, other in zip(
            (answer.y, answer.best, *answer.pair), (expected.y, expected.best, *expected.pair), strict=True
        ):
            torch.testing.assert_close(one, other)
            assert one.requires_grad == other.requires_grad
    assert of_engine(installed) == 2


def test_gradients_are_those_of_the_original(pair: tuple[Net, Net, Installed]) -> None:
    original, served, installed = pair
    for model in (original, served):
        losses(model).backward()
    assert_equal_gradients(original, served)
    assert original.linear.weight.grad is not None
    assert of_engine(installed) == 1


def test_gradients_of_gradients_are_those_of_the_original(pair: tuple[Net, Net, Installed]) -> None:
    original, served, installed = pair
    for model in (original, served):
        (slope,) = torch.autograd.grad(losses(model), model.linear.weight, create_graph=True)
        slope.square().sum().backward()
    assert_equal_gradients(original, served)
    assert of_engine(installed) == 1


def test_an_output_may_be_written_to(pair: tuple[Net, Net, Installed]) -> None:
    original, served, _ = pair
    for model in (original, served):
        y = model(X).y
        y += 1
        y.clamp_(min=0.9)
        y.square().sum().backward()
    assert_equal_gradients(original, served)


def test_only_some_outputs_may_be_used(pair: tuple[Net, Net, Installed]) -> None:
    original, served, _ = pair
    for model in (original, served):
        model(X).pair[1].sum().backward()
    assert_equal_gradients(original, served)


def test_what_is_written_to_before_its_gradients_are_asked_for_raises(pair: tuple[Net, Net, Installed]) -> None:
    for model in pair[:2]:
        x = X.clone()
        loss = model(x).y.sum()
        x.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_training_in_eval_mode_trains(pair: tuple[Net, Net, Installed]) -> None:
    """The artifact serves the first step; then the weights are others, and the original does."""
    original, served, installed = pair
    seen = []
    for model in (original, served):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = losses(model)
            loss.backward()
            optimizer.step()
            seen.append(loss.detach())
    torch.testing.assert_close(seen[:3], seen[3:])
    assert installed.counts == {"": (1, 2)}


def test_calls_that_an_engine_does_not_serve_have_gradients(pair: tuple[Net, Net, Installed]) -> None:
    original, served, installed = pair
    for model in (original, served):
        x = X.clone().requires_grad_()
        model(x).y.sum().backward()
        assert x.grad is not None
        model(X, scale=torch.ones(4)).y.sum().backward()  # another form
    assert_equal_gradients(original, served)
    assert installed.counts == {"": (0, 2)}


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_hold_the_original(copied: Callable[[Net], Net], pair: tuple[Net, Net, Installed]) -> None:
    original, served, installed = pair
    other = copied(served)
    with torch.no_grad():
        expected = original(X).y
        torch.testing.assert_close(other(X).y, expected)
        if copied is not copy.copy:  # which shares everything, as ever
            assert of_engine(installed) == 0
            other.linear.weight.zero_()
            assert not torch.allclose(other(X).y, expected)
        torch.testing.assert_close(served(X).y, expected)


def test_a_saved_model_is_the_original(pair: tuple[Net, Net, Installed]) -> None:
    _, served, _ = pair
    file = io.BytesIO()
    torch.save(served, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert not isinstance(loaded.forward, ScriptSwitch)
    assert served.state_dict().keys() == loaded.state_dict().keys()


def test_what_traces_compiles_or_observes_it_sees_the_original(pair: tuple[Net, Net, Installed]) -> None:
    original, served, installed = pair
    served.requires_grad_(False)

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = served

        def forward(self, x: Tensor) -> Any:
            return self.inner(x).y

    other = torch.linspace(2, 3, 24).reshape(3, 8)
    with torch.no_grad():
        expected = original(other).y
        torch.testing.assert_close(torch.jit.trace(First(), (X,), check_trace=False)(other), expected)
        exported = torch.export.export(First(), (X,)).module()
        torch.testing.assert_close(exported(other), expected)
        compiled = torch.compile(First(), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(other), expected)
        with FlopCounterMode(display=False) as counter:
            served(X)
        assert counter.get_total_flops() > 0
    assert of_engine(installed) == 0


class Mixed(nn.Module):
    """Answers with a history and without one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 4), nn.Linear(8, 4)
        self.register_buffer("shift", torch.ones(4))
        self.scale = torch.ones(4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        first, second = self.first(x), self.second(x)
        with torch.no_grad():
            unrecorded = self.first(x) + 1
        return {
            "both": first + second,
            "unrecorded": unrecorded,
            "detached": second.detach()[:, :2],
            "of inputs": x * 2,
            "numbers": second.argmax(-1),
            "pair": (first * self.shift, (second * self.scale)[:, 1:]),
        }


def mixed() -> Mixed:
    torch.manual_seed(0)
    return Mixed().eval()


@pytest.fixture(scope="module")
def mixed_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed") / "mixed.togi"
    subject = Subject(mixed(), [(X,), (torch.cat([X, X]),)])
    ArtifactMaker.of(subject, "Mixed").make(folder, recipe(eager={}, no_grad={}))
    return folder


@pytest.fixture
def two(mixed_artifact: Path) -> Iterator[tuple[Mixed, Mixed, Installed]]:
    """The original, and one with the artifact in it."""
    served = mixed()
    with put_in_place(mixed_artifact, served, ScriptSwitch) as installed:
        yield mixed(), served, installed


def assert_alike(answer: dict[str, Any], expected: dict[str, Any]) -> None:
    assert answer.keys() == expected.keys()
    for one, other in zip(tensors_in(answer), tensors_in(expected), strict=True):
        torch.testing.assert_close(one, other)
        assert one.requires_grad == other.requires_grad


def frozen(model: Mixed) -> None:
    model.first.requires_grad_(False)


def of_a_buffer(model: Mixed) -> None:
    model.requires_grad_(False)
    model.shift.requires_grad_()


def of_an_attribute(model: Mixed) -> None:
    model.requires_grad_(False)
    model.scale.requires_grad_()


def without_any(model: Mixed) -> None:
    model.requires_grad_(False)


CHANGES = [frozen, of_a_buffer, of_an_attribute, without_any]


def test_each_answer_requires_gradients_where_the_originals_does(two: tuple[Mixed, Mixed, Installed]) -> None:
    original, served, installed = two
    for _ in range(3):
        for x in (X, torch.cat([X, X])):
            answer = served(x)
            assert_alike(answer, original(x))
            answer["unrecorded"].numpy()
            answer["detached"].numpy()
    assert installed.counts == {"": (5, 1)}


@pytest.mark.parametrize("change", CHANGES)
def test_what_requires_gradients_may_change(
    change: Callable[[Mixed], None], two: tuple[Mixed, Mixed, Installed]
) -> None:
    original, served, installed = two
    for _ in range(2):
        assert_alike(served(X), original(X))
    for model in (original, served):
        change(model)
    for _ in range(3):
        assert_alike(served(X), original(X))
        with torch.no_grad():
            assert_alike(served(X), original(X))
        with torch.inference_mode(), torch.enable_grad():
            assert_alike(served(X), original(X))
    for model in (original, served):
        model.requires_grad_()
        model.shift.requires_grad_(False)
        model.scale.requires_grad_(False)
    for _ in range(2):
        assert_alike(served(X), original(X))
    assert sum(installed.counts[""]) == 13
    assert installed.counts[""][1] <= 3


@pytest.mark.parametrize("change", CHANGES[:3])
def test_gradients_reach_all_that_requires_them(
    change: Callable[[Mixed], None], two: tuple[Mixed, Mixed, Installed]
) -> None:
    found = []
    for model in two[:2]:
        change(model)
        for _ in range(3):  # the first is the original's
            answer = model(X)
            (answer["both"].sum() * 2 + answer["pair"][0].sum() + answer["pair"][1].square().sum()).backward()
        found.append([t.grad for t in (*model.parameters(), model.shift, model.scale)])
    assert any(gradient is not None for gradient in found[0])
    for expected, gradient in zip(*found, strict=True):
        torch.testing.assert_close(gradient, expected)


def test_weights_that_are_frozen_before_gradients_are_asked_for_get_none(two: tuple[Mixed, Mixed, Installed]) -> None:
    found = []
    for model in two[:2]:
        model(X)
        answer = model(X)
        model.first.requires_grad_(False)
        answer["both"].sum().backward()
        found.append([weight.grad for weight in model.parameters()])
        model.first.requires_grad_()
    assert found[0][0] is None
    for expected, gradient in zip(*found, strict=True):
        torch.testing.assert_close(gradient, expected)


def test_inputs_of_inference_mode_meet_the_original(two: tuple[Mixed, Mixed, Installed]) -> None:
    with torch.inference_mode():
        x = X.clone()
    for model in two[:2]:
        model(X)
        with pytest.raises(RuntimeError, match=r"[Ii]nference tensors"):
            model(x)


def test_what_may_decide_by_values_is_left_to_the_original(two: tuple[Mixed, Mixed, Installed]) -> None:
    original, served, installed = two
    installed.switches[0].forms[0].in_place = True  # compiled where it stands
    for _ in range(2):
        assert_alike(served(X), original(X))
    assert installed.counts == {"": (0, 2)}
    assert "torch.no_grad()" in installed.switches[0].last_reason
    with torch.no_grad():
        served(X)
    assert installed.counts == {"": (1, 2)}
