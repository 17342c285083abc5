"""An optimizer under its fused kernel, and in another memory format, updates as a plain loop does, whatever happens to
the training in between: checkpoints, layouts, gradients of the user's own, parameters that are unfrozen or added."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer

from tests.techniques.test_techniques_of_steps import step_of
from togi.core.errors import Refused
from togi.subject.inputs import Subject
from togi.subject.training import TrainingStep
from togi.techniques import recipe, technique
from togi.techniques.build import build_step
from togi.techniques.optimizer_layout import is_dense

MAKERS: dict[str, Callable[..., Optimizer]] = {
    "AdamW": partial(AdamW, lr=1e-2),
    "momentum": partial(SGD, lr=1e-2, momentum=0.9),
    "dampening": partial(SGD, lr=1e-2, momentum=0.9, dampening=0.5),
    "Adagrad": partial(Adagrad, lr=1e-2),
}
RECIPES: dict[str, dict[str, Any]] = {
    "fused": {"fused": {}},
    "both": {"channels_last": {}, "fused": {}},
    "channels_last": {"channels_last": {}},
}
"""The last one with an optimizer that the user made a fused one."""


def made(recipe_name: str, optimizer: str) -> TrainingStep:
    """A step that has run once, with an optimizer of the user's own."""
    own: dict[str, Any] = {"fused": True} if recipe_name == "channels_last" else {}
    step = step_of(optimizer=partial(MAKERS[optimizer], **own))
    step.run(step.samples[0])
    return step


def run(step: TrainingStep, count: int = 2) -> None:
    for _ in range(count):
        step.run(step.samples[0])


def by_closure(step: TrainingStep) -> None:
    """As trainers of other libraries do: the gradients are made inside of the optimizer's step."""

    def closure() -> float:
        step.module.zero_grad()
        loss = step.loss(step.module, step.samples[0])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    the_optimizer(step).step(closure)
    the_optimizer(step).step(closure=closure)


def the_optimizer(step: TrainingStep) -> Optimizer:
    assert step.optimizer is not None
    return step.optimizer


def as_another_process_would(step: TrainingStep) -> dict[str, Any]:
    """A checkpoint of the optimizer that shares no memory with it, with all of it contiguous."""
    saved = copy.deepcopy(the_optimizer(step).state_dict())
    for state in saved["state"].values():
        state.update({key: value.contiguous() for key, value in state.items() if isinstance(value, Tensor)})
    return saved


def load_a_checkpoint(step: TrainingStep) -> None:
    the_optimizer(step).load_state_dict(as_another_process_would(step))
    run(step)


def convert_the_module(step: TrainingStep) -> None:
    step.module.to(memory_format=torch.channels_last)
    run(step)
    step.module.to(memory_format=torch.contiguous_format)
    run(step)


def assign_gradients(step: TrainingStep) -> None:
    for parameter in step.parameters.values():
        there = torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape)
        parameter.grad = there.transpose(0, -1).contiguous().transpose(0, -1)
    the_optimizer(step).step()


def unfreeze(step: TrainingStep, once: Callable[[TrainingStep], None] = run) -> None:
    first = next(iter(step.parameters.values()))
    first.requires_grad_(False)
    del the_optimizer(step).state[first]
    once(step)
    first.requires_grad_(True)
    once(step)


def unfreeze_by_closure(step: TrainingStep) -> None:
    unfreeze(step, by_closure)


def another_list(step: TrainingStep) -> None:
    """As who freezes by leaving parameters out of a group."""
    group = the_optimizer(step).param_groups[0]
    group["params"] = group["params"][1:]
    run(step)


def add_a_group(step: TrainingStep) -> None:
    layer = next(part for part in step.module.modules() if isinstance(part, nn.Linear))
    layer.register_parameter("scale", nn.Parameter(torch.ones(5)))
    layer.register_forward_hook(lambda module, _, answer: answer * module.scale)
    the_optimizer(step).add_param_group({"params": [layer.scale]})
    run(step)


HAPPENINGS = [run, by_closure, load_a_checkpoint, convert_the_module, assign_gradients, another_list, add_a_group]


def both_ways(name: str, optimizer: str, happen: Callable[[TrainingStep], None]) -> Iterator[TrainingStep]:
    """The plain step without the recipe, then the one under it."""
    plain = made("fused", optimizer)
    happen(plain)
    yield plain
    built = build_step(recipe(**RECIPES[name], plain_step={}), made(name, optimizer))
    happen(built)
    yield built


def equal(one: TrainingStep, other: TrainingStep) -> None:
    for (name, value), same in zip(one.parameters.items(), other.parameters.values(), strict=True):
        assert torch.allclose(value, same, rtol=1e-5, atol=1e-6), f"{name}: {(value - same).abs().max()}"


@pytest.mark.parametrize("happen", HAPPENINGS)
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("optimizer", MAKERS)
def test_it_trains_as_without_whatever_happens(
    name: str, optimizer: str, happen: Callable[[TrainingStep], None]
) -> None:
    plain, built = both_ways(name, optimizer, happen)
    equal(plain, built)
    built.undo()
    run(plain)
    run(built)
    equal(plain, built)
    assert not any(len(hooks) for name, hooks in vars(the_optimizer(built)).items() if name.endswith("_hooks"))


@pytest.mark.parametrize("happen", [unfreeze, unfreeze_by_closure])
@pytest.mark.parametrize("optimizer", MAKERS)
def test_a_parameter_may_be_unfrozen_while_it_is_fused(optimizer: str, happen: Callable[[TrainingStep], None]) -> None:
    plain, built = both_ways("both", optimizer, happen)
    equal(plain, built)
    run(built, 1)
    assert all(group["fused"] for group in the_optimizer(built).param_groups), (
        "the kernel is back once all have a state"
    )


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("optimizer", MAKERS)
def test_a_checkpoint_is_as_without_the_recipe(name: str, optimizer: str) -> None:
    plain = made(name, optimizer)
    expected = the_optimizer(plain).state_dict()
    built = build_step(recipe(**RECIPES[name], plain_step={}), made(name, optimizer))
    live = the_optimizer(built).state_dict()
    assert live["param_groups"] == expected["param_groups"]
    for key, state in expected["state"].items():
        for entry, value in state.items():
            saved = live["state"][key][entry]
            assert (saved.stride(), saved.dtype) == (value.stride(), value.dtype), entry
            assert torch.equal(saved, value), entry
    other = made(name, optimizer)
    run(other, 1)
    the_optimizer(other).load_state_dict(copy.deepcopy(live))
    other.module.load_state_dict(built.module.state_dict())
    run(other)
    run(built)
    equal(other, built)


def test_a_loaded_checkpoint_takes_no_gain_away_and_brings_its_own_settings() -> None:
    step = made("fused", "AdamW")
    built = technique("fused").apply_step(step, {})
    saved = as_another_process_would(step)
    saved["param_groups"][0] |= {"foreach": False, "lr": 0.5}
    optimizer = the_optimizer(built)
    optimizer.load_state_dict(saved)
    group = optimizer.param_groups[0]
    assert (group["fused"], group["foreach"], group["lr"]) == (True, None, 0.5)
    assert optimizer.state_dict()["param_groups"][0]["foreach"] is False
    built.undo()
    assert (group["fused"], group["foreach"]) == (None, False)


def test_a_parameter_that_is_not_dense_keeps_what_lies_between_its_elements() -> None:
    step = made("fused", "AdamW")
    weight = step.module[4].weight  # type: ignore[index]
    larger = torch.zeros(5, 100)

    def narrow() -> None:
        larger[:, :64] = weight.detach()
        weight.data = larger[:, :64]

    built = technique("fused").apply_step(step, {})
    narrow()
    run(built)
    assert not larger[:, 64:].any()
    assert not torch.equal(larger[:, :64], weight.detach() * 0)
    built.undo()
    with pytest.raises(Refused, match=r"shape \(5, 64\) is not dense"):
        technique("fused").apply_step(step, {})
    plain = made("fused", "AdamW")
    run(plain)
    equal(plain, built)


def test_a_group_of_later_keeps_its_settings() -> None:
    step = made("fused", "AdamW")
    built = technique("fused").apply_step(step, {})
    add_a_group(built)
    optimizer = the_optimizer(built)
    assert [group["fused"] for group in optimizer.param_groups] == [True, None]
    assert [group["fused"] for group in optimizer.state_dict()["param_groups"]] == [None, None]
    built.undo()
    assert [group["fused"] for group in optimizer.param_groups] == [None, None]


def test_a_group_with_another_list_has_its_own_settings_afterwards() -> None:
    built = technique("fused").apply_step(made("fused", "momentum"), {})
    another_list(built)
    (group,) = the_optimizer(built).param_groups
    assert group["fused"]
    built.undo()
    assert group["fused"] is None


def test_an_optimizer_whose_groups_have_no_foreach_gets_none() -> None:
    step = made("fused", "AdamW")
    (group,) = the_optimizer(step).param_groups
    del group["foreach"]
    built = technique("fused").apply_step(step, {})
    assert group["fused"]
    assert "foreach" not in group
    built.undo()
    assert "foreach" not in group


@pytest.mark.parametrize("make", [partial(SGD, lr=0.1), partial(Adagrad, lr=0.1)])
def test_sparse_gradients_are_stepped_as_without_the_kernel(make: Callable[..., Optimizer]) -> None:
    """The kernel takes none, and an embedding may have them."""
    results = []
    for fused in (False, True):
        torch.manual_seed(0)
        module = nn.Embedding(10, 4, sparse=True)
        subject = Subject(module, torch.tensor([1, 2, 2, 7]), step=mean_of_squares, optimizer=make)
        step = TrainingStep.of(subject)
        step = technique("fused").apply_step(step, {}) if fused else step
        run(step)
        results.append(step)
    equal(*results)


def mean_of_squares(module: nn.Module, sample: Tensor) -> Tensor:
    answer: Tensor = module(sample)
    return answer.square().mean()


def test_each_parameter_has_the_layout_that_it_had_before_a_memory_format() -> None:
    step = made("fused", "AdamW")
    first = step.parameters["0.weight"]
    first.data = first.data.contiguous(memory_format=torch.channels_last)
    run(step, 1)
    before = [parameter.stride() for parameter in step.parameters.values()]
    built = technique("channels_last").apply_step(step, {})
    run(built, 1)
    assert [parameter.stride() for parameter in step.parameters.values()] != before
    built.undo()
    assert [parameter.stride() for parameter in step.parameters.values()] == before
    assert the_optimizer(step).state[first]["exp_avg"].stride() == first.stride()
    plain = made("fused", "AdamW")
    run(plain, 2)
    equal(plain, step)


def test_a_module_in_another_memory_format_can_be_pickled() -> None:
    built = technique("channels_last").apply_step(made("fused", "AdamW"), {})
    again = pickle.loads(pickle.dumps(built.module))
    pictures = built.samples[0].args[0]
    assert torch.equal(again(pictures), built.module(pictures))


@pytest.mark.parametrize(
    ("tensor", "dense"),
    [
        (torch.ones(3, 4), True),
        (torch.ones(3, 4).t(), True),
        (torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), True),
        (torch.ones(3, 8)[:, :4], False),
        (torch.ones(3, 1).expand(3, 4), False),
        (torch.ones(8)[::2], False),
        (torch.ones(3, 8)[:, :1], False),
        (torch.ones(1, 8)[:, :4], True),
        (torch.ones(()), True),
        (torch.ones(3, 4).to_sparse(), False),
    ],
)
def test_dense_is_one_piece_of_memory(tensor: Tensor, dense: bool) -> None:
    assert is_dense(tensor) is dense
