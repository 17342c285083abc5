"""A recipe that is applied: the loops that people write around it train as they do without togi, on whatever their
loader returns."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import togi
from togi.core.errors import TogiError
from togi.core.recipe import PLAIN_STEP_RECIPE
from togi.core.records import Outcome, Trial
from togi.machine.describe import machine
from togi.study.result import Best
from togi.subject.inputs import Inputs, Subject, as_given, samples_of_step, step_sample, with_own_containers
from togi.subject.micro_batches import backward, split
from togi.subject.training import TrainingStep
from togi.techniques import recipe
from togi.techniques.build import build_step
from togi.techniques.registry import technique
from togi.verify.step_truth import make_step_truth
from togi.verify.training import verify_step
from togi.worker.training_survey import survey_step


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclasses.dataclass
class Data:
    x: Tensor
    y: Tensor


class Encoding(UserDict[str, Any]):
    """As transformers' BatchEncoding: a mapping whose values are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def pair() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator)


def error(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(module(x), y)


def of_two(module: nn.Module, sample: Any) -> Tensor:
    x, y = sample
    return error(module, x, y)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def recorded(step: Callable[..., Any], sample: Any, **choices: Any) -> togi.TrainingRecipe:
    subject = TrainingStep.of(Subject(network(), [sample], step=step, optimizer=adam))
    facts = survey_step(subject, seed=0, machine=machine("cpu")).facts
    return togi.TrainingRecipe.of(recipe(**choices, plain_step={}), subject, facts)


def zero_after_the_loss(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> None:
    value = loss()
    optimizer.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def logs_and_accumulates(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss().item()
    for _ in range(2):
        (loss() / 2).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@pytest.mark.parametrize("loop", [zero_after_the_loss, logs_and_accumulates])
def test_a_loop_around_micro_batches_trains_as_without_togi(loop: Callable[..., None]) -> None:
    module = network()
    other = copy.deepcopy(module)
    own, others = adam(module.parameters()), adam(other.parameters())
    with recorded(of_two, pair(), micro_batches={"parts": 4}).apply(module, own, of_two) as applied:
        for _ in range(2):
            loop(lambda: applied.loss(pair()), own)
            loop(lambda: of_two(other, pair()), others)
    for one, two, before in zip(module.parameters(), other.parameters(), network().parameters(), strict=True):
        torch.testing.assert_close(one, two)
        assert not torch.equal(one, before)


def test_where_nothing_was_faster_the_step_is_applied_as_it_is() -> None:
    module = network()
    other = copy.deepcopy(module)
    own, others = adam(module.parameters()), adam(other.parameters())
    plain = Trial(recipe=PLAIN_STEP_RECIPE, outcome=Outcome.OK)
    with Best(plain.recipe, plain, None).apply(module, own, step=of_two) as applied:
        applied.step(pair())
        zero_after_the_loss(lambda: applied.loss(pair()), own)
    for _ in range(2):
        zero_after_the_loss(lambda: of_two(other, pair()), others)
    for one, two, before in zip(module.parameters(), other.parameters(), network().parameters(), strict=True):
        assert torch.equal(one, two)
        assert not torch.equal(one, before)
    with pytest.raises(TogiError, match="in a loop body of your own"):
        Best(plain.recipe, plain, None, own_loop=True).apply(module, own, step=of_two).step(pair())


def test_an_epoch_of_a_default_loader_runs_to_its_end() -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(19, 4), torch.randn(19, 1))
    module, other = network(), network()
    own, others = adam(module.parameters()), adam(other.parameters())
    with recorded(of_two, pair(), micro_batches={"parts": 4}).apply(module, own, of_two) as applied:
        for batch in DataLoader(data, batch_size=8):
            applied.step(batch)
    for batch in DataLoader(data, batch_size=8):
        others.zero_grad()
        of_two(other, batch).backward()  # type: ignore[no-untyped-call]
        others.step()
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def forms() -> dict[str, Any]:
    x, y = pair()
    encoding = {"x": x, "y": y}
    return {
        "tensor": x,
        "pair": (x, y),
        "dict": encoding,
        "one-tuple": (x,),
        "list": [x, y],
        "list of one": [x],
        "nested": [{"x": x}, (y,)],
        "named": Pair(x, y),
        "dataclass": Data(x, y),
        "ordered": OrderedDict(encoding),
        "encoding": Encoding(encoding),
        "integer keys": {0: x, 1: y},
        "arguments": Inputs((x,), {"y": y}),
    }


@pytest.mark.parametrize("form", forms())
def test_a_step_is_given_what_it_would_be_given_without_togi(form: str) -> None:
    sample = forms()[form]
    seen: list[Any] = []

    def step(module: nn.Module, given: Any) -> Tensor:
        seen.append(given)
        return error(module, *pair())

    kind = (type(sample), len(sample) if hasattr(sample, "__len__") and form != "tensor" else None)
    normal = step_sample(sample)
    for copied in (normal, normal.clone(), normal.to("cpu"), with_own_containers(normal)):
        given = as_given(copied)
        assert (type(given), len(given) if kind[1] is not None else None) == kind
    recorded(step, sample).apply(network(), adam(network().parameters()), step).step(sample)
    backward(network(), sample, step, 2)
    assert {type(given) for given in seen} == {type(sample)}
    assert [len(piece.tensors()[0]) for piece in split(normal, 2)] == [4, 4]
    if form == "one-tuple":
        assert all(len(given) == 1 and given[0].shape[1:] == (4,) for given in seen)


def test_lists_hold_samples_and_a_list_in_them_is_a_batch() -> None:
    x, y = pair()
    several = Subject(network(), [(x, y), (x[:3], y[:3])], step=of_two)
    assert [len(sample.args[0]) for sample in samples_of_step(several)] == [8, 3]
    (batch,) = samples_of_step(Subject(network(), [[x, y]], step=of_two))
    assert as_given(batch) == [x, y]
    (call,) = samples_of_step(Subject(network(), (x,)))
    assert call.args == (x,)


def test_a_step_that_takes_its_batch_apart_can_be_repeated() -> None:
    def popping(module: nn.Module, batch: Any) -> Tensor:
        labels = batch.pop("y")
        return error(module, batch.x, labels)

    x, y = pair()
    assert recorded(popping, Encoding({"x": x, "y": y})).recipe.trains


def test_micro_batches_of_a_list_are_proven() -> None:
    step = TrainingStep.of(Subject(network(), [list(pair())], step=of_two, optimizer=adam))
    report = verify_step(
        lambda one: technique("micro_batches").apply_step(one, {"parts": 4}), make_step_truth(step, seed=1)
    )
    assert report.faithful, report.problems
    built = build_step(recipe(micro_batches={"parts": 2}, plain_step={}), step)
    built.run(step.samples[0])


def test_what_was_proven_in_an_own_loop_is_put_on_the_live_module_alone() -> None:
    """The loop computes its loss as before, so none is asked for."""

    def loop(module: nn.Module, optimizer: torch.optim.Optimizer, sample: Any) -> Tensor:
        optimizer.zero_grad()
        loss = of_two(module, sample)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    subject = Subject(network(), [pair()], train_step=loop, optimizer=adam)
    facts = survey_step(TrainingStep.of(subject), seed=0, machine=machine("cpu")).facts
    choices = recipe(bf16={"how": "autocast"}, fused={}, plain_step={})
    record = togi.TrainingRecipe.of(choices, TrainingStep.of(subject), facts)
    module, other = network(), network()
    own, others = adam(module.parameters()), adam(other.parameters())
    with record.apply(module, own) as applied:
        first, plain = loop(module, own, pair()), loop(other, others, pair())
        with pytest.raises(togi.TogiError, match="applied without a loss"):
            applied.step(pair())
    assert first.dtype is torch.float32
    assert 0 < abs(first - plain) < 0.1 * plain
    assert "forward" not in vars(module)
    with record.apply(module, own, of_two) as applied:
        assert applied.loss(pair()).requires_grad
        with pytest.raises(togi.TogiError, match=r"a loop body of your own .* take applied\.loss"):
            applied.step(pair())
