"""A training step runs as a loop would, on a copy; what it begins with can be put back, to the bit."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR

from togi.core.errors import SubjectError
from togi.lint.trace.compiled import prepared_run
from togi.subject.inputs import Subject
from togi.subject.training import Snapshot, TrainingStep
from togi.verify.step_truth import make_step_truth

SAMPLE = torch.linspace(-1, 1, 48).reshape(6, 8)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)).train()


def square(module: nn.Module, sample: Tensor) -> Tensor:
    return module(sample).square().mean()


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam([{"params": parameters[:1], "lr": 0.1}, {"params": parameters[1:]}], lr=0.01)


def step_of(**how: Any) -> TrainingStep:
    return TrainingStep.of(Subject(net(), SAMPLE, **({"step": square, "optimizer": adam} | how)))


def everything(step: TrainingStep) -> list[Tensor]:
    """Parameters, buffers, gradients and the optimizer's state."""
    optimizer = step.optimizer
    assert optimizer is not None
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    gradients = [p.grad for p in step.module.parameters() if p.grad is not None]
    return [t.clone() for t in (*step.module.parameters(), *step.module.buffers(), *gradients, *state)]


def test_it_is_the_loop_that_a_user_would_write() -> None:
    module = net()
    optimizer = adam(list(module.parameters()))
    step = step_of()
    torch.manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        square(module, SAMPLE).backward()
        optimizer.step()
    torch.manual_seed(1)
    losses: list[float] = []
    for _ in range(3):
        step.run(step.samples[0], lambda loss: losses.append(loss.item()))
    assert all(map(torch.equal, module.state_dict().values(), step.module.state_dict().values()))
    assert len(losses) == 3


def test_the_users_module_is_not_trained() -> None:
    module = net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    step = TrainingStep.of(Subject(module, SAMPLE, step=square, optimizer=adam))
    step.run(step.samples[0])
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module[0].weight.grad is None


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_runs_from_one_snapshot_are_equal_to_the_bit(steps: int) -> None:
    step = step_of()
    torch.manual_seed(2)
    for _ in range(steps):
        step.run(step.samples[0])
    start, states = Snapshot.of(step), []
    before = everything(step)
    for _ in range(2):
        start.restore(step)
        assert all(map(torch.equal, everything(step), before))
        drawn = torch.rand(3), random.random()
        step.run(step.samples[0])
        states.append((everything(step), drawn))
    (first, first_draws), (second, second_draws) = states
    assert all(map(torch.equal, first, second))
    assert torch.equal(first_draws[0], second_draws[0])
    assert first_draws[1] == second_draws[1]


def test_a_snapshot_is_put_into_a_copy_and_into_another_dtype() -> None:
    step = step_of()
    torch.manual_seed(2)
    for _ in range(3):
        step.run(step.samples[0])
    start = Snapshot.of(step)
    copied, wide = step.copy(), step.copy(lambda _: net().double())
    for other in (copied, wide):
        start.restore(other)
        for one, two in zip(everything(step), everything(other), strict=True):
            assert torch.equal(one.double(), two.double())
        assert other.optimizer is not step.optimizer
    counts = [entry["step"].dtype for entry in wide.optimizer.state.values()]  # type: ignore[union-attr]
    assert set(counts) == {torch.float32}, "fused kernels read it so"
    sums = [entry["exp_avg"].dtype for entry in wide.optimizer.state.values()]  # type: ignore[union-attr]
    assert set(sums) == {torch.float64}
    copied.run(copied.samples[0])
    assert not torch.equal(copied.module[0].weight, step.module[0].weight)  # type: ignore[index]


def test_settings_that_a_schedule_changed_are_put_back() -> None:
    def scheduled(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer: Any = torch.optim.SGD(parameters, lr=1.0)
        optimizer.schedule = ExponentialLR(optimizer, 0.5)
        return optimizer

    def train_step(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = square(module, sample)
        loss.backward()
        optimizer.step()
        optimizer.schedule.step()
        return loss

    step = step_of(step=None, train_step=train_step, optimizer=scheduled)
    step.run(step.samples[0])
    start = Snapshot.of(step)
    for _ in range(2):
        copied = step.copy()
        start.restore(copied)
        copied.run(copied.samples[0])
        assert copied.optimizer.param_groups[0]["lr"] == 0.25  # type: ignore[union-attr]
        assert copied.optimizer.schedule.last_epoch == 2  # type: ignore[union-attr]


def test_what_a_step_froze_is_frozen_where_it_is_put_back() -> None:
    def train_step(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = square(module, sample)
        loss.backward()
        optimizer.step()
        next(module.parameters()).requires_grad_(False)
        return loss

    step = step_of(step=None, train_step=train_step)
    before = Snapshot.of(step)
    step.run(step.samples[0])
    frozen, copied = Snapshot.of(step), step_of(step=None, train_step=train_step)
    for start, takes_a_gradient in ((frozen, False), (before, True)):
        start.restore(copied)
        first, *others = copied.module.parameters()
        assert first.requires_grad is takes_a_gradient
        assert all(parameter.requires_grad for parameter in others)


def test_groups_that_a_step_adds_are_explained() -> None:
    step = step_of()
    assert step.optimizer is not None
    step.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(SubjectError, match="make all groups there"):
        Snapshot.of(step).restore(step_of())


def test_an_optimizer_without_a_function_is_made_again_by_its_class() -> None:
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    step = TrainingStep(module=module, samples=(), loss=square, optimizer=optimizer)  # type: ignore[arg-type]
    copied = step.copy()
    assert copied.optimizer is not optimizer
    assert copied.optimizer.param_groups[0]["momentum"] == 0.9  # type: ignore[union-attr]
    trained = copied.optimizer.param_groups[0]["params"]  # type: ignore[union-attr]
    assert list(map(id, trained)) == list(map(id, copied.module.parameters()))


def test_modes_are_those_of_the_module_that_was_given() -> None:
    module = net()
    module[1].eval()
    step = TrainingStep.of(Subject(module, SAMPLE, step=square, optimizer=adam))
    assert step.module.training
    assert not step.module[1].training  # type: ignore[index]
    assert TrainingStep.of(Subject(net().eval(), SAMPLE, step=square)).module[1].training  # type: ignore[index]


@pytest.mark.parametrize("wrap", [nn.DataParallel, partial(torch.compile, backend="eager")])
def test_a_wrapper_hides_no_mode(wrap: Callable[[nn.Module], nn.Module]) -> None:
    module = net()
    wrapped = wrap(module)
    module[1].eval()
    subject = Subject(wrapped, SAMPLE, step=square, optimizer=adam)
    step = TrainingStep.of(subject)
    assert step.module.training
    assert not step.module[1].training  # type: ignore[index]
    assert not prepared_run(subject, "cpu").module[1].training  # type: ignore[index]
    module.eval()
    assert TrainingStep.of(subject).module[1].training, "a module in eval() is trained as a whole"  # type: ignore[index]


def test_what_can_be_taken_back_is_where_something_else_cannot() -> None:
    def fails() -> None:
        raise ValueError("no")

    undone: list[str] = []
    step = TrainingStep.of(Subject(net(), SAMPLE, step=square, optimizer=adam))
    step = step.changed(lambda: undone.append("first")).changed(fails).changed(lambda: undone.append("last"))
    with pytest.raises(ValueError, match="no"):
        step.undo()
    assert undone == ["last", "first"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"optimizer": torch.optim.SGD([torch.zeros(1)], lr=0.1)}, "optimizer is a SGD, and togi trains copies"),
        ({"train_step": square}, "train_step(module, optimizer, sample) needs an optimizer"),
        ({"train_step": square, "step": square, "optimizer": adam}, "step and train_step are two ways"),
    ],
)
def test_parts_that_do_not_go_together_are_explained(how: dict[str, Any], said: str) -> None:
    with pytest.raises(SubjectError, match=re.escape(said)):
        Subject(net(), SAMPLE, **how)


def test_an_optimizer_from_outside_would_train_another_module() -> None:
    module = net()
    other = torch.optim.SGD(module.parameters(), lr=0.1)

    def train_step(module: nn.Module, _: Any, sample: Tensor) -> Tensor:
        loss = square(module, sample)
        loss.backward()
        other.step()
        return loss

    with pytest.raises(SubjectError, match=r"uses an optimizer from outside \(other\)"):
        TrainingStep.of(Subject(module, SAMPLE, train_step=train_step, optimizer=adam))


def test_a_schedule_of_another_optimizer_is_explained() -> None:
    """Made outside, or by the first call: every run has an optimizer of its own."""
    made: dict[str, Any] = {}

    def train_step(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = square(module, sample)
        loss.backward()
        optimizer.step()
        made.setdefault("schedule", ExponentialLR(optimizer, 0.5)).step()
        return loss

    step = step_of(step=None, train_step=train_step)
    with pytest.raises(SubjectError, match=r"holds another optimizer \(made.schedule\)"):
        make_step_truth(step, seed=0)
    made["schedule"] = ExponentialLR(adam(list(net().parameters())), 0.5)
    with pytest.raises(SubjectError, match="Make the schedule in optimizer"):
        step_of(step=None, train_step=train_step)


def test_a_compiled_loop_body_is_explained() -> None:
    def train_step(module: nn.Module, _: Any, sample: Tensor) -> Tensor:
        return square(module, sample)

    with pytest.raises(SubjectError, match="give the function itself"):
        make_step_truth(step_of(step=None, train_step=torch.compile(train_step)), seed=0)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_parameters_which_a_copy_would_not_have_are_refused(register: str) -> None:
    module = net()
    handle = getattr(module[3].weight, register)(lambda _: None)
    with pytest.raises(SubjectError, match=r"3\.weight has hooks"):
        TrainingStep.of(Subject(module, SAMPLE, step=square, optimizer=adam))
    handle.remove()
    TrainingStep.of(Subject(module, SAMPLE, step=square, optimizer=adam))


def test_torchscript_which_no_copy_can_train_is_explained() -> None:
    scripted = torch.jit.script(nn.Linear(8, 8))
    with pytest.raises(SubjectError, match="give the module that it was made of"):
        TrainingStep.of(Subject(scripted, SAMPLE, step=square, optimizer=torch.optim.Adam))


def test_a_module_without_anything_to_train_is_refused() -> None:
    with pytest.raises(SubjectError, match="no parameter of the module takes a gradient"):
        TrainingStep.of(Subject(net().requires_grad_(False), SAMPLE, optimizer=adam))
