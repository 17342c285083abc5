"""A training step is proven: planted faults are caught, honest ways are not refused, and both are explained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.small_modules import ComputesWith
from tests.verify.planted_faults import PICTURES_FAULTS, TEXT_FAULTS, Plant
from tests.verify.training_loops import pictures, text
from togi.core.records import ErrorReport
from togi.decide.faithful import MAX_UNITS
from togi.subject.inputs import Subject
from togi.subject.training import TrainingStep
from togi.verify.step_truth import make_step_truth
from togi.verify.training import StepTruth, verify_step


@pytest.fixture(scope="module")
def truth_of_pictures() -> StepTruth:
    return make_step_truth(pictures(), seed=1)


@pytest.fixture(scope="module")
def truth_of_text() -> StepTruth:
    return make_step_truth(text(), seed=1)


def worst(report: ErrorReport) -> str:
    leaf = max(report.leaves, key=lambda leaf: leaf.units, default=None)
    return f"{report.problems} {leaf} {report.notes}"


@pytest.mark.parametrize("name", PICTURES_FAULTS)
def test_faults_in_a_loop_over_pictures_are_caught(name: str, truth_of_pictures: StepTruth) -> None:
    report = verify_step(PICTURES_FAULTS[name], truth_of_pictures)
    assert not report.faithful, worst(report)
    assert report.problems or report.units > 10 * MAX_UNITS, "with room"


@pytest.mark.parametrize("name", TEXT_FAULTS)
def test_faults_in_a_loop_over_text_are_caught(name: str, truth_of_text: StepTruth) -> None:
    report = verify_step(TEXT_FAULTS[name], truth_of_text)
    assert not report.faithful, worst(report)
    assert report.problems or report.units > 10 * MAX_UNITS, "with room"


def test_there_are_as_many_faults_as_were_promised() -> None:
    assert len(PICTURES_FAULTS) + len(TEXT_FAULTS) >= 60


def as_it_is(step: TrainingStep) -> TrainingStep:
    return step


def optimizer_with(**options: Any) -> Plant:
    def build(step: TrainingStep) -> TrainingStep:
        for group in step.optimizer.param_groups:  # type: ignore[union-attr]
            group.update(options)
        return step

    return build


def channels_last(step: TrainingStep) -> TrainingStep:
    """Module, inputs and the optimizer's state, all of whose memory a fused optimizer walks through alike."""
    step.module.to(memory_format=torch.channels_last)
    for state in step.optimizer.state.values():  # type: ignore[union-attr]
        for key, value in state.items():
            if value.dim() == 4:
                state[key] = value.to(memory_format=torch.channels_last)
    step.module.register_forward_pre_hook(
        lambda _, args: tuple(a.to(memory_format=torch.channels_last) if a.dim() == 4 else a for a in args)
    )
    return step


def recomputed(step: TrainingStep) -> TrainingStep:
    step.module.recomputed = lambda function, *args: checkpoint(function, *args, use_reentrant=False)
    return step


def gradients_kept_as_zeros(step: TrainingStep) -> TrainingStep:
    assert dataclasses.is_dataclass(step.train_step)
    loop: Any = dataclasses.replace(step.train_step, dropped=lambda optimizer: optimizer.zero_grad(set_to_none=False))
    return dataclasses.replace(step, train_step=loop)


HONEST: dict[str, Plant] = {
    "as it is": as_it_is,
    "fused optimizer": optimizer_with(fused=True, foreach=None),
    "foreach optimizer": optimizer_with(foreach=True),
    "one by one": optimizer_with(foreach=False),
    "gradients kept as zeros": gradients_kept_as_zeros,
}


LAYOUTS: dict[str, Plant] = {
    "channels_last": channels_last,
    "channels_last, fused": lambda step: channels_last(HONEST["fused optimizer"](step)),
}


@pytest.mark.parametrize("name", [*HONEST, *LAYOUTS])
def test_honest_ways_through_pictures_are_faithful(name: str, truth_of_pictures: StepTruth) -> None:
    report = verify_step((HONEST | LAYOUTS)[name], truth_of_pictures)
    assert report.faithful, worst(report)


@pytest.mark.parametrize("name", [*HONEST, "recomputed"])
def test_honest_ways_through_text_are_faithful(name: str, truth_of_text: StepTruth) -> None:
    report = verify_step({**HONEST, "recomputed": recomputed}[name], truth_of_text)
    assert report.faithful, worst(report)


@pytest.mark.thorough
@pytest.mark.parametrize("make", [pictures, text])
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_no_honest_way_is_refused_from_any_start(make: Callable[[], TrainingStep], seed: int) -> None:
    truth = make_step_truth(make(), seed=seed)
    ways = {**HONEST, **LAYOUTS} if make is pictures else {**HONEST, "again": recomputed}
    for name, way in ways.items():
        report = verify_step(way, truth)
        assert report.faithful, f"{name}: {worst(report)}"


def test_what_claims_to_be_equal_to_the_bit_has_to_be(truth_of_text: StepTruth) -> None:
    report = verify_step(recomputed, truth_of_text, to_the_bit=True)
    assert report.faithful, worst(report)
    assert report.units == 0.0
    assert "to the bit" in report.notes[-1]
    report = verify_step(optimizer_with(nesterov=True), truth_of_text, to_the_bit=True)
    assert "claims to be equal to the bit" in report.problems[0]


def test_the_proof_is_made_in_float64(truth_of_pictures: StepTruth) -> None:
    assert truth_of_pictures.exact is not None
    assert truth_of_pictures.fallback == ""
    report = verify_step(PICTURES_FAULTS["all gradients a millionth off"], truth_of_pictures)
    note = next(note for note in report.notes if note.startswith("In float64"))
    assert "agree with the original's to" in note
    names = [leaf.name for leaf in report.leaves]
    for name in ("loss", "gradient conv1.weight", "update conv1.weight", "buffer norm1.running_var"):
        assert name in names
    assert "state head.weight.exp_avg" in names
    assert "setting lr of group 0" in names
    assert "update conv1.weight after 2 steps" in names
    assert any(name.startswith("kept optimizer.schedule.") for name in names)


def test_gradients_are_compared_before_clipping_hides_them(truth_of_pictures: StepTruth) -> None:
    report = verify_step(PICTURES_FAULTS["all gradients doubled"], truth_of_pictures)
    assert {leaf.name.partition(" ")[0] for leaf in report.leaves if leaf.units > 1e6} == {"gradient"}


def test_the_step_and_what_it_keeps_stay_as_they_were() -> None:
    step = text()
    before = {name: value.clone() for name, value in step.module.state_dict().items()}
    torch.manual_seed(3)
    drawn = torch.get_rng_state()
    truth = make_step_truth(step, seed=1)
    verify_step(TEXT_FAULTS["a gradient is missing"], truth)
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in step.module.state_dict().items())
    assert step.optimizer is not None
    assert not step.optimizer.state
    assert step.optimizer.schedule.last_epoch == 0  # type: ignore[attr-defined]
    assert all(parameter.grad is None for parameter in step.module.parameters())


class Noise(nn.Module):
    """Draws what float64 draws otherwise: a uniform and a normal number for each element, by several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.layer(given) + 0.1 * torch.randn_like(given) + torch.rand(8) * 0.1
        return hidden * torch.empty_like(hidden).uniform_(0.9, 1.1) + torch.normal(0.0, 0.1, (8,))


def square(module: nn.Module, sample: Any) -> Tensor:
    return module(sample).square().mean()


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2)


def truth_of(module: nn.Module, sample: Any, **how: Any) -> StepTruth:
    how = {"step": square, "optimizer": adam} | how
    return make_step_truth(TrainingStep.of(Subject(module.train(), sample, **how)), seed=0)


def test_the_twin_draws_the_noise_that_float32_draws() -> None:
    torch.manual_seed(0)
    truth = truth_of(Noise(), torch.randn(4, 8))
    assert truth.exact is not None, truth.fallback
    report = verify_step(optimizer_with(foreach=False), truth)
    assert report.faithful, worst(report)
    scaled = verify_step(
        lambda step: dataclasses.replace(step, loss=lambda module, sample: step.loss(module, sample) * 1.00001), truth
    )
    assert not scaled.faithful


class OnlyFloat32(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, given: Tensor) -> Tensor:
        if given.dtype is not torch.float32:
            raise TypeError("float32 only")
        return self.layer(given).relu()


def test_a_step_that_cannot_run_in_float64_reports_what_was_proven_instead() -> None:
    torch.manual_seed(0)
    truth = truth_of(OnlyFloat32(), torch.randn(4, 8))
    assert truth.exact is None
    report = verify_step(optimizer_with(foreach=False, eps=1.0001e-8), truth)
    assert any("in float32 alone" in note and "float32 only" in note for note in report.notes)
    report = verify_step(optimizer_with(weight_decay=0.01), truth)
    assert not report.faithful
    report = verify_step(
        lambda step: dataclasses.replace(step, loss=lambda module, sample: step.loss(module, sample) * 0.999), truth
    )
    assert not report.faithful


def cast_in_the_middle(module: Any, given: Tensor) -> Tensor:
    return module.second(module.first(given).float()).float()


def test_parts_that_insist_on_float32_are_widened() -> None:
    torch.manual_seed(0)
    module = ComputesWith(cast_in_the_middle, first=nn.Linear(8, 8), second=nn.Linear(8, 8))
    truth = truth_of(module, torch.randn(4, 8))
    assert truth.exact is not None
    assert all(t.dtype is torch.float64 for name, t in truth.exact.tensors.items() if name.startswith("gradient"))
    assert verify_step(as_it_is, truth).faithful


def in_micro_batches(step: TrainingStep) -> TrainingStep:
    def train_step(module: nn.Module, optimizer: Any, sample: Tensor) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for piece in sample.chunk(4):
            loss = square(module, piece) / 4
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    return dataclasses.replace(step, train_step=train_step)


def test_micro_batches_are_faithful_where_rows_are_apart() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))
    sample = torch.randn(16, 8)
    report = verify_step(in_micro_batches, truth_of(plain, sample))
    assert report.faithful, worst(report)
    with_statistics = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    report = verify_step(in_micro_batches, truth_of(with_statistics, sample))
    assert not report.faithful
    with_noise = ComputesWith(lambda module, x: module.layer(x) + torch.randn(x.shape), layer=nn.Linear(8, 8))
    report = verify_step(in_micro_batches, truth_of(with_noise, torch.randn(18, 8)))
    assert not report.faithful, "other draws"


@pytest.mark.thorough
def test_compiled_forward_and_loss_are_faithful() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))
    truth = truth_of(module, torch.randn(16, 8))

    def compiled(step: TrainingStep) -> TrainingStep:
        return dataclasses.replace(step, loss=torch.compile(step.loss))

    report = verify_step(compiled, truth)
    assert report.faithful, worst(report)
    whole = verify_step(lambda step: dataclasses.replace(step, module=torch.compile(step.module)), truth)
    assert whole.faithful, worst(whole)


def test_a_change_that_comes_with_another_size_is_caught() -> None:
    torch.manual_seed(0)
    truth = truth_of(nn.Linear(8, 4), [torch.randn(16, 8)] * 9 + [torch.randn(5, 8)])
    assert [len(sample.args[0]) for sample in truth.samples] == [16, 16, 5]

    def wrong_for_small(module: nn.Module, sample: Any) -> Tensor:
        given = sample.args[0]
        return square(module, given) * (1.0 if len(given) == 16 else 1.01)

    report = verify_step(lambda step: dataclasses.replace(step, loss=wrong_for_small), truth)
    assert not report.faithful
    assert {leaf.name for leaf in report.leaves if leaf.units > MAX_UNITS} >= {"loss of step 3"}


def doubled_backwards(loss: Tensor) -> Tensor:
    """The same loss, with gradients that are twice as large."""
    return 2 * loss - loss.detach()


def nothing_more(_: nn.Module, optimizer: Any) -> None:
    optimizer.step()
    optimizer.zero_grad()


def normalising(module: nn.Module, optimizer: Any) -> None:
    for parameter in module.parameters():
        assert parameter.grad is not None
        parameter.grad /= parameter.grad.norm()
    nothing_more(module, optimizer)


def seldom() -> Callable[[nn.Module, Any], None]:
    calls = 0

    def update(module: nn.Module, optimizer: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 5 == 0:
            nothing_more(module, optimizer)

    return update


def loop_of(update: Callable[[nn.Module, Any], None], wrong: bool = False) -> Callable[..., Tensor]:
    def train_step(module: nn.Module, optimizer: Any, given: Tensor) -> Tensor:
        loss = square(module, given)
        (doubled_backwards(loss) if wrong and len(given) < 16 else loss).backward()
        update(module, optimizer)
        return loss.detach()

    return train_step


@pytest.mark.parametrize("update", [normalising, seldom()])
def test_a_gradient_of_another_size_is_compared_where_the_update_does_not_show_it(update: Any) -> None:
    """Normalised, or left to a later step."""
    torch.manual_seed(0)
    samples = [torch.randn(16, 8)] * 12 + [torch.randn(5, 8)]
    truth = truth_of(nn.Linear(8, 4), samples, step=None, train_step=loop_of(update))
    assert verify_step(as_it_is, truth).faithful
    report = verify_step(lambda step: dataclasses.replace(step, train_step=loop_of(update, wrong=True)), truth)
    wrong = {leaf.name for leaf in report.leaves if leaf.units > MAX_UNITS}
    assert wrong == {"gradient weight of step 3", "gradient bias of step 3"}


def test_a_gradient_of_another_size_is_compared_without_an_optimizer() -> None:
    torch.manual_seed(0)
    truth = truth_of(nn.Linear(8, 4), [torch.randn(16, 8)] * 9 + [torch.randn(5, 8)], optimizer=None)

    def wrong_for_small(module: nn.Module, sample: Any) -> Tensor:
        loss = square(module, sample.args[0])
        return loss if len(sample.args[0]) == 16 else doubled_backwards(loss)

    report = verify_step(lambda step: dataclasses.replace(step, loss=wrong_for_small), truth)
    assert not report.faithful
    assert verify_step(as_it_is, truth).faithful


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_other_sizes_are_compared_where_a_candidate_does_not_run_in_float64(factor: float) -> None:
    torch.manual_seed(0)
    truth = truth_of(nn.Linear(8, 4), [torch.randn(16, 8)] * 9 + [torch.randn(5, 8)])
    assert truth.exact is not None

    def of_float32(module: nn.Module, sample: Any) -> Tensor:
        given = sample.args[0]
        if given.dtype is not torch.float32:
            raise TypeError("float32 only")
        return square(module, given.flip(0)) * (1.0 if len(given) == 16 else factor)

    report = verify_step(lambda step: dataclasses.replace(step, loss=of_float32), truth)
    assert any("does not run in float64 (float32 only)" in note for note in report.notes)
    assert report.faithful is (factor == 1.0), worst(report)
