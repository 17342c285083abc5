"""Training steps that are unusual: each works, or is explained in a sentence that names what to do."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.small_modules import ComputesWith, Counts
from togi.core.errors import SubjectError
from togi.decide.faithful import MAX_UNITS
from togi.machine.describe import machine
from togi.subject.inputs import Inputs, Subject
from togi.subject.training import Snapshot, TrainingStep, checked_loss
from togi.techniques import technique
from togi.verify.step_truth import complete_step_truth, make_step_truth
from togi.verify.training import StepTruth, verify_step
from togi.worker.training_survey import survey_step

SAMPLE = torch.linspace(-1, 1, 48).reshape(6, 8)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2)


def square(module: nn.Module, sample: Any) -> Tensor:
    return module(sample).square().mean()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).train()


def truth_of(module: nn.Module, samples: Any = SAMPLE, **how: Any) -> StepTruth:
    return make_step_truth(TrainingStep.of(Subject(module, samples, optimizer=adam, **how)), seed=0)


def test_a_part_of_the_truth_proves_what_is_equal_to_the_bit_and_nothing_else(tmp_path: Path) -> None:
    step = TrainingStep.of(Subject(net(), SAMPLE, optimizer=adam))
    part = make_step_truth(step, seed=0, whole=False)
    assert not part.complete
    assert verify_step(lambda given: given, part, to_the_bit=True).faithful
    fused = technique("fused")
    for to_the_bit in (True, False):
        report = verify_step(lambda given: fused.apply_step(given, {}), part, to_the_bit=to_the_bit)
        assert not report.faithful
        assert "equal to the bit" in report.problems[0]

    part.save(tmp_path / "step.pt")
    whole = complete_step_truth(StepTruth.load(tmp_path / "step.pt", step), seed=0)
    assert whole.complete
    assert verify_step(lambda given: fused.apply_step(given, {}), whole).faithful
    known = make_step_truth(step, seed=0)
    assert whole.exact is not None
    assert known.exact is not None
    assert not whole.exact.differing(known.exact)
    assert (whole.units, whole.units_with_tips, whole.exact_units) == (
        known.units,
        known.units_with_tips,
        known.exact_units,
    )


def test_what_never_repeats_to_the_bit_has_its_whole_truth_at_once() -> None:
    def loses_bits(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        order = torch.randperm(len(sample), generator=torch.Generator().manual_seed(time.perf_counter_ns() % 2**31))
        return body(module, optimizer, sample[order])

    many = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
    step = TrainingStep.of(Subject(net(), many, optimizer=adam, train_step=loses_bits))
    truth = make_step_truth(step, seed=0, whole=False)
    assert not truth.unrepeatable
    assert not truth.repeats_to_the_bit
    assert truth.complete


def test_a_single_run_that_differs_is_enough_to_prove_nothing() -> None:
    """The sixth is the one that repeats the proven one."""
    weights = itertools.chain([1.0] * 5, [3.0], itertools.repeat(1.0))

    def weighted(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        return body(module, optimizer, sample * next(weights))

    step = TrainingStep.of(Subject(net(), SAMPLE, optimizer=adam, train_step=weighted))
    assert "differ in loss" in make_step_truth(step, seed=0).unrepeatable


def body(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
    """A loop body without anything unusual."""
    optimizer.zero_grad()
    loss = square(module, sample)
    loss.backward()
    optimizer.step()
    return loss.detach()


def without_backward(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = square(module, sample)
    optimizer.step()
    return loss


def without_optimizer(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = square(module, sample)
    loss.backward()
    return loss


def not_a_number(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
    return body(module, optimizer, sample) * float("nan")


def of_the_clock(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
    return body(module, optimizer, sample * (1 + time.perf_counter_ns() % 1_000_003 / 1e6))


def grown(module: Any, optimizer: Any, sample: Tensor) -> Tensor:
    module.register_buffer(f"seen{len(list(module.buffers()))}", torch.zeros(1))
    return body(module, optimizer, sample)


def of_no_loss(module: nn.Module, optimizer: Any, sample: Tensor) -> None:
    body(module, optimizer, sample)


LEFT = iter([1, 2])


def of_data_that_ends(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
    return body(module, optimizer, sample * next(LEFT))


def on_another_module(other: nn.Module) -> Callable[..., Tensor]:
    return lambda _, optimizer, sample: body(other, optimizer, sample)


@pytest.mark.parametrize(
    ("train_step", "said"),
    [
        (without_backward, "does it call backward"),
        (without_optimizer, "does train_step call step"),
        (not_a_number, "the loss is nan after 3 steps"),
        (of_no_loss, "returned a NoneType; it must return the loss"),
        (of_data_that_ends, "StopIteration"),
        (grown, "changes the module's structure: seen"),
        (on_another_module(net()), "togi trains a copy"),
    ],
)
def test_a_step_of_ones_own_that_cannot_be_proven_is_explained(train_step: Any, said: str) -> None:
    with pytest.raises(SubjectError, match=said):
        truth_of(net(), train_step=train_step)


def backward_inside(module: nn.Module, sample: Tensor) -> Tensor:
    loss = square(module, sample)
    loss.backward()
    return loss


def backward_that_keeps_the_graph(module: nn.Module, sample: Tensor) -> Tensor:
    loss = square(module, sample)
    loss.backward(retain_graph=True)
    return loss


def backward_of_a_part(module: nn.Module, sample: Tensor) -> Tensor:
    """Nothing is saved for it, so it could run twice."""
    sum(parameter.sum() for parameter in module.parameters()).backward()  # type: ignore[union-attr]
    return square(module, sample)


def backward_and_detached(module: nn.Module, sample: Tensor) -> Tensor:
    return backward_inside(module, sample).detach()


def detached(module: nn.Module, sample: Tensor) -> Tensor:
    return square(module, sample).detach()


def of_nothing(_: nn.Module, __: Tensor) -> Tensor:
    return torch.ones((), requires_grad=True)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (backward_inside, "calls backward.. by itself.* as train_step"),
        (backward_that_keeps_the_graph, "calls backward.. by itself"),
        (backward_of_a_part, "calls backward.. by itself"),
        (backward_and_detached, "calls backward.. by itself"),
        (detached, "requires_grad=False; it must return the loss: one floating-point value that depends on"),
        (of_nothing, "no parameter of the module has a gradient"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_loss_that_is_none_is_explained(step: Any, said: str) -> None:
    with pytest.raises(SubjectError, match=said):
        truth_of(net(), step=step)


def test_gradients_that_a_loop_adds_up_are_not_those_of_the_loss() -> None:
    module, loss = net(), checked_loss(square)
    square(module, SAMPLE).backward()
    loss(module, Inputs((SAMPLE,))).backward()
    checked_loss(square)(module, Inputs((SAMPLE,))).backward()
    with pytest.raises(SubjectError, match="by itself"):
        checked_loss(backward_inside)(module, Inputs((SAMPLE,)))


def times_zero(module: nn.Module, sample: Tensor) -> Tensor:
    return square(module, sample) * 0 + 1


def adamw_that_decays(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


def test_a_loss_that_is_constant_is_proven_by_what_decay_does_and_by_its_gradients() -> None:
    truth = make_step_truth(
        TrainingStep.of(Subject(net(), SAMPLE, step=times_zero, optimizer=adamw_that_decays)), seed=0
    )
    assert float(truth.eager.tensors["loss"]) == 1.0
    assert all(not truth.eager.tensors[name].any() for name in truth.eager.tensors if name.startswith("gradient "))
    assert verify_step(lambda step: technique("fused").apply_step(step, {}), truth).faithful

    def without_decay(step: TrainingStep) -> TrainingStep:
        assert step.optimizer is not None
        step.optimizer.param_groups[0]["weight_decay"] = 0.0
        return step

    def with_a_gradient(step: TrainingStep) -> TrainingStep:
        def loss(module: nn.Module, sample: Inputs) -> Tensor:
            return step.loss(module, sample) + 1e-6 * square(module, sample.args[0])

        return dataclasses.replace(step, loss=loss)

    for wrong in (without_decay, with_a_gradient):
        report = verify_step(wrong, truth)
        assert not report.faithful, wrong.__name__
        assert not any("raise" in problem for problem in report.problems), report.problems


def test_a_step_that_reads_a_file_is_proven_unless_it_reads_on_in_it(tmp_path: Path) -> None:
    (tmp_path / "scale.txt").write_text("0.5\n" * 6 + "0.25\n" * 200, encoding="utf-8")

    def from_the_start(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        with open(tmp_path / "scale.txt", encoding="utf-8") as file:
            return body(module, optimizer, sample * float(file.readline()))

    truth = truth_of(net(), train_step=from_the_start)
    assert not truth.unrepeatable
    assert verify_step(lambda step: technique("fused").apply_step(step, {}), truth).faithful

    with open(tmp_path / "scale.txt", encoding="utf-8") as open_file:

        def further(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
            return body(module, optimizer, sample * (1 + float(open_file.readline()) * open_file.tell()))

        truth = truth_of(net(), train_step=further)
    assert "reads what cannot be put back (the clock, a file," in truth.unrepeatable
    assert verify_step(lambda step: step, truth).problems == (truth.unrepeatable,)


def test_numpys_global_state_belongs_to_the_step() -> None:
    def noisy(module: nn.Module, sample: Tensor) -> Tensor:
        return square(module, sample * float(np.random.rand()))

    before = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    truth = truth_of(net(), step=noisy)
    assert not truth.unrepeatable
    assert np.array_equal(before, np.random.get_state()[1])  # type: ignore[index]
    assert verify_step(lambda step: technique("fused").apply_step(step, {}), truth).faithful

    def draws_once_more(step: TrainingStep) -> TrainingStep:
        def loss(module: nn.Module, sample: Any) -> Tensor:
            found = step.loss(module, sample)
            np.random.rand()
            return found

        return dataclasses.replace(step, loss=loss)

    assert not verify_step(draws_once_more, truth).faithful
    facts = survey_step(truth.step.copy(), seed=0, machine=machine("cpu")).facts
    assert facts.random, "micro-batches would draw once each"


def test_a_step_that_reads_the_clock_is_not_repeatable() -> None:
    truth = truth_of(net(), train_step=of_the_clock)
    assert "two runs of the original's step from the same state differ in" in truth.unrepeatable
    report = verify_step(lambda step: step, truth)
    assert not report.faithful
    assert report.problems == (truth.unrepeatable,)


class HoldsItsGraph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.hidden: Any = None

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.layer(given)
        self.hidden = hidden if self.hidden is None else hidden + self.hidden
        return self.hidden


def test_a_module_that_keeps_its_graph_is_named() -> None:
    with pytest.raises(SubjectError, match="hidden, with the graph"):
        truth_of(HoldsItsGraph().train(), step=square)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (lambda parameters: torch.optim.LBFGS(parameters), "LBFGS needs a closure"),
        (lambda parameters: parameters, "returned a list; it must return one torch.optim.Optimizer"),
        (
            lambda parameters: torch.optim.SGD([{"params": parameters}, {"params": parameters[:1]}], lr=0.1),
            "in one group at most",
        ),
        (
            lambda parameters: torch.optim.SGD([*parameters, nn.Parameter(torch.zeros(2))], lr=0.1),
            "trains 1 tensors that are not parameters of the module",
        ),
        (lambda parameters: torch.optim.SGD(parameters, lr=-1), "Invalid learning rate"),
    ],
)
def test_an_optimizer_that_cannot_be_used_is_explained(optimizer: Any, said: str) -> None:
    with pytest.raises(SubjectError, match=said):
        TrainingStep.of(Subject(net(), SAMPLE, step=square, optimizer=optimizer))


def twice(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
    body(module, optimizer, sample)
    return body(module, optimizer, sample)


def test_a_step_that_trains_twice_is_proven_and_told() -> None:
    truth = truth_of(net(), train_step=twice)
    assert "The optimizer runs 2 times in the step that is proven." in truth.notes
    assert verify_step(lambda step: dataclasses.replace(step, train_step=twice), truth).faithful
    report = verify_step(lambda step: dataclasses.replace(step, train_step=body), truth)
    assert not report.faithful


def first_layer(module: Any, given: Tensor) -> Tensor:
    return module.first(given)


def tied(module: Any, given: Tensor) -> Tensor:
    return module.first(module.second(given))


def sharing() -> nn.Module:
    module = ComputesWith(tied, first=nn.Linear(8, 8), second=nn.Linear(8, 8))
    module.second.weight = module.first.weight  # type: ignore[union-attr]
    return module


def frozen() -> nn.Module:
    module = net()
    module[0].requires_grad_(False)
    return module


UNUSUAL: dict[str, Callable[[], nn.Module]] = {
    "some parameters get no gradient": lambda: ComputesWith(first_layer, first=nn.Linear(8, 8), unused=nn.Linear(8, 8)),
    "tied": sharing,
    "frozen": frozen,
    "parametrized": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 4)),
    "spectral": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 4)),
    "half precision": lambda: net().to(torch.bfloat16),
    "counts its calls": lambda: nn.Sequential(nn.Linear(8, 8), Counts(in_buffer=False)),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_modules_are_proven(name: str) -> None:
    torch.manual_seed(0)
    module = UNUSUAL[name]().train()
    dtype = next(module.parameters()).dtype
    truth = truth_of(module, SAMPLE.to(dtype), step=square)
    assert truth.exact is not None, truth.fallback
    same = verify_step(lambda step: step, truth)
    assert same.faithful, same.problems
    assert same.units == 0

    def foreach(step: TrainingStep) -> TrainingStep:
        step.optimizer.param_groups[0]["foreach"] = True  # type: ignore[union-attr]
        return step

    honest = verify_step(foreach, truth)
    assert honest.faithful, (honest.problems, [leaf for leaf in honest.leaves if leaf.units > MAX_UNITS])

    def slower(step: TrainingStep) -> TrainingStep:
        step.optimizer.param_groups[0]["lr"] *= 0.999  # type: ignore[union-attr]
        return step

    assert not verify_step(slower, truth).faithful


def test_parameters_without_a_gradient_or_a_group_are_told() -> None:
    torch.manual_seed(0)
    module = ComputesWith(first_layer, first=nn.Linear(8, 8), unused=nn.Linear(8, 8)).train()
    subject = Subject(module, SAMPLE, step=square, optimizer=lambda parameters: adam(parameters[:1]))
    truth = make_step_truth(TrainingStep.of(subject), seed=0)
    assert "2 of 4 parameters get no gradient (unused.weight, unused.bias)." in truth.notes
    assert "3 parameters are in no group of the optimizer (first.bias, unused.weight, unused.bias)." in truth.notes


def test_a_scaler_and_its_scale_belong_to_the_step() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)

    def train_step(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = square(module, sample)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    truth = truth_of(net(), train_step=train_step)
    assert scaler.get_scale() == 256.0, "as it was"
    assert float(truth.eager.tensors["kept scaler.scale"]) == 1024.0, "it grew in the fourth step"
    assert truth.exact is not None, truth.fallback
    assert verify_step(lambda step: step, truth).faithful

    def unscaled(step: TrainingStep) -> TrainingStep:
        return dataclasses.replace(step, train_step=body)

    report = verify_step(unscaled, truth)
    assert not report.faithful
    assert scaler.get_scale() == 256.0


def test_the_proven_step_is_one_in_which_the_optimizer_runs() -> None:
    """A loop that adds gradients up over five batches, and a scale that overflows at first."""
    calls = {"made": 0}

    def accumulating(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        loss = square(module, sample)
        (loss / 5).backward()
        calls["made"] += 1
        if calls["made"] % 5 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)  # too large for float16 until it was halved some times

    def scaled(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = module(sample).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    for train_step in (accumulating, scaled):
        truth = truth_of(net(), train_step=train_step)
        assert truth.eager.optimizer_steps == 1
        assert truth.start.optimizer._state, "it has run before"
        assert truth.eager.tensors["update 0.weight"].any()
        assert truth.exact is not None, truth.fallback
        assert verify_step(lambda step: step, truth).faithful

        def twice_the_rate(step: TrainingStep) -> TrainingStep:
            assert step.optimizer is not None
            step.optimizer.param_groups[0]["lr"] *= 2
            return step

        assert not verify_step(twice_the_rate, truth).faithful
    assert calls == {"made": 0}, "as it was"


def accumulating_over(count: int) -> Callable[..., Tensor]:
    calls = 0

    def train_step(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        nonlocal calls
        loss = square(module, sample)
        (loss / count).backward()
        calls += 1
        if calls % count == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return train_step


def test_a_state_that_the_proven_step_makes_may_be_a_fused_optimizers() -> None:
    """It counts in float32, where the twin of the original counts in float64."""
    truth = truth_of(net(), train_step=accumulating_over(20))
    assert truth.eager.optimizer_steps == 1
    assert any("runs for the first time in the step that is proven (20)" in note for note in truth.notes)
    report = verify_step(lambda step: technique("fused").apply_step(step, {}), truth)
    assert report.faithful, report.problems


def test_more_accumulation_than_togi_waits_for_is_explained() -> None:
    with pytest.raises(SubjectError, match="more than 35 batches runs it later: let it add up fewer"):
        truth_of(net(), train_step=accumulating_over(40))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_under_autocast_is_proven_in_float64(dtype: torch.dtype) -> None:
    """Its loss is as far from float64's as its own precision explains, and not another function."""

    def loss(module: nn.Module, sample: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype):
            return module(sample).float().square().mean()

    def in_other_order(module: nn.Module, sample: Tensor) -> Tensor:
        return loss(module, sample.flip(0))

    def a_thousandth_more(module: nn.Module, sample: Tensor) -> Tensor:
        return loss(module, sample) * 1.001

    truth = truth_of(net(), step=loss)
    assert truth.exact is not None, truth.fallback
    for other, right in ((in_other_order, True), (a_thousandth_more, False)):
        step_of = functools.partial(dataclasses.replace, loss=checked_loss(other))
        report = verify_step(step_of, truth)
        assert report.faithful is right, report.problems


def test_an_averaged_model_is_proven_in_float64_too() -> None:
    module = net()
    average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def train_step(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        loss = body(module, optimizer, sample)
        average.update_parameters(module)
        return loss

    def forgetting(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        loss = body(module, optimizer, sample)
        average.update_parameters(module)
        with torch.no_grad():
            average.module[0].weight.mul_(1.0001)
        return loss

    before = {name: tensor.clone() for name, tensor in average.state_dict().items()}
    truth = truth_of(module, train_step=train_step)
    assert truth.exact is not None, truth.fallback
    report = verify_step(lambda step: dataclasses.replace(step, train_step=forgetting), truth)
    wrong = {leaf.name for leaf in report.leaves if leaf.units > MAX_UNITS}
    assert wrong == {"kept average.module.0.weight"}
    after = average.state_dict()
    assert all(
        torch.equal(tensor, after[name]) and tensor.dtype is after[name].dtype for name, tensor in before.items()
    )


def test_numbers_that_a_step_keeps_and_that_never_repeat_are_left_out() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.steps = 0
            self.took_s = 0.0

        def step(self, module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
            began = time.perf_counter()
            self.steps += 1
            loss = body(module, optimizer, sample)
            self.took_s = time.perf_counter() - began
            return loss

    trainer = Trainer()
    truth = truth_of(net(), train_step=trainer.step)
    assert truth.unrepeatable == ""
    assert truth.ignored == {"kept took_s"}
    assert float(truth.eager.tensors["kept steps"]) == 4.0
    assert trainer.steps == 0, "as it was"
    assert verify_step(lambda step: step, truth).faithful


def test_a_loop_that_keeps_its_losses_can_be_proven() -> None:
    losses: list[Tensor] = []

    def train_step(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        loss = body(module, optimizer, sample)
        losses.append(loss)
        return loss

    truth = truth_of(net(), train_step=train_step)
    assert losses == [], "as it was"
    report = verify_step(lambda step: step, truth)
    assert report.faithful, report.problems


class Rows(nn.Module):
    """Counts its calls or its rows, or writes down how many there were last."""

    def __init__(self, counted: str) -> None:
        super().__init__()
        self.layer, self.counted = nn.Linear(8, 8), counted
        self.calls = self.rows = self.last = 0

    def forward(self, given: Tensor) -> Tensor:
        self.calls += self.counted == "calls"
        self.rows += len(given) if self.counted == "rows" else 0
        self.last = len(given)
        return self.layer(given)


@pytest.mark.parametrize("counted", ["calls", "rows", "nothing"])
def test_numbers_that_a_module_counts_belong_to_the_step(counted: str) -> None:
    """Parts of a batch are more calls with fewer rows: a schedule by calls would run ahead."""
    truth = truth_of(Rows(counted).train(), step=square)
    assert truth.start.numbers["calls"] == (3 if counted == "calls" else 0)
    assert truth.start.numbers["rows"] == (18 if counted == "rows" else 0)
    report = verify_step(lambda step: technique("micro_batches").apply_step(step, {"parts": 2}), truth)
    wrong = {leaf.name for leaf in report.leaves if leaf.units > MAX_UNITS}
    assert wrong == ({"kept module.calls"} if counted == "calls" else set()), (report.problems, wrong)
    assert report.faithful is not bool(wrong), report.problems


def test_a_snapshot_holds_the_numbers_of_modules() -> None:
    step = TrainingStep.of(Subject(Rows("calls").train(), SAMPLE, step=square, optimizer=adam))
    step.run(step.samples[0])
    start = Snapshot.of(step)
    step.run(step.samples[0])
    start.restore(step)
    assert step.module.calls == 1


class Criterion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, answer: Tensor) -> Tensor:
        self.calls += 1
        return answer.square().mean() * (2.0 if self.calls % 16 == 0 else 1.0)


def regularised_at_times() -> Callable[..., Tensor]:
    calls = 0

    def loss(module: nn.Module, sample: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        plain = square(module, sample)
        return plain + next(module.parameters()).square().sum() if calls % 16 == 0 else plain

    return loss


def with_a_criterion() -> Callable[..., Tensor]:
    criterion = Criterion()
    return lambda module, sample: criterion(module(sample))


@pytest.mark.parametrize("make", [regularised_at_times, with_a_criterion])
def test_what_a_loss_counts_belongs_to_the_step(make: Callable[[], Callable[..., Tensor]]) -> None:
    """In parts of a batch it would count on faster, and do more often what it does at times."""
    truth = truth_of(net(), step=make())
    assert truth.unrepeatable == ""
    assert verify_step(lambda step: step, truth).faithful
    report = verify_step(lambda step: technique("micro_batches").apply_step(step, {"parts": 2}), truth)
    (wrong,) = [leaf.name for leaf in report.leaves if leaf.units > MAX_UNITS]
    assert wrong.startswith("kept step.")
    assert wrong.endswith("calls")
