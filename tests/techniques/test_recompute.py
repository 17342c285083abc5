"""The technique ``recompute``: less of the forward pass is kept, and the step is the same."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import togi
from togi.core.errors import Refused
from togi.core.recipe import Recipe
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.training import fit
from togi.machine.describe import machine
from togi.measure.memory import torch_allocator_peak_bytes
from togi.subject.inputs import Subject
from togi.subject.training import TrainingStep
from togi.techniques import recipe, technique
from togi.techniques.base import Options
from togi.techniques.build import StepFailed, build_step
from togi.techniques.registry import equals_to_the_bit
from togi.verify.step_truth import make_step_truth
from togi.verify.training import StepTruth, verify_step
from togi.worker.training_survey import survey_step

WIDTH, ROWS = 64, 512


def mean_error(module: nn.Module, sample: tuple[Tensor, Tensor]) -> Tensor:
    given, targets = sample
    answer: Tensor = module(given)
    return (answer - targets).square().mean()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


class Block(nn.Module):
    """Keeps four results as large as its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(nn.functional.gelu(self.linear(self.norm(x))))
        return x + y


def stack() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(4)), nn.Linear(WIDTH, 5))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, WIDTH, generator=generator), torch.randn(ROWS, 5, generator=generator)


def step_of(**given: Any) -> TrainingStep:
    return TrainingStep.of(Subject(stack().train(), [batch()], **({"step": mean_error, "optimizer": adamw} | given)))


def peak_bytes(step: TrainingStep) -> int:
    """Of a step whose optimizer has its state, and whose code is compiled."""
    step.run(step.samples[0])
    peak = torch_allocator_peak_bytes(lambda: step.run(step.samples[0]))
    assert peak is not None
    return peak


def built(**choices: Options) -> TrainingStep:
    return build_step(recipe(**choices, plain_step={}), step_of())


@pytest.fixture(scope="module")
def truth() -> StepTruth:
    return make_step_truth(step_of(), seed=1)


def verified(truth: StepTruth, found: Recipe) -> Any:
    """As a trial does it: with one plan for all that is built."""
    plans: list[Any] = []

    def build(step: TrainingStep) -> TrainingStep:
        made = build_step(found, dataclasses.replace(step, plan=plans[0] if plans else None))
        plans.append(made.plan)
        return made

    return verify_step(build, truth, to_the_bit=equals_to_the_bit(found))


def test_less_is_kept_the_smaller_the_share_and_the_step_is_equal_to_the_bit(truth: StepTruth) -> None:
    peaks = [peak_bytes(built())]
    for keep in (0.75, 0.5, 0.0):
        report = verified(truth, recipe(recompute={"keep": keep}, plain_step={}))
        assert report.faithful, report.problems
        assert "Equal to the original's step to the bit." in report.notes
        peaks.append(peak_bytes(built(recompute={"keep": keep})))
    assert sorted(peaks, reverse=True) == peaks
    assert peaks[0] - peaks[-1] > 4 * ROWS * WIDTH * 4, "four results and more are not kept"


@pytest.mark.parametrize("choices", [{"micro_batches": {"parts": 4}}, {"fused": {}}], ids=str)
def test_it_goes_with_other_choices(choices: dict[str, Options], truth: StepTruth) -> None:
    both = choices | {"recompute": {"keep": 0.0}}
    report = verified(truth, recipe(**both, plain_step={}))
    assert report.faithful, report.problems
    assert peak_bytes(built(**both)) < peak_bytes(built(**choices))


def test_planning_leaves_the_step_in_the_state_in_which_it_was() -> None:
    planned, other = step_of(), step_of()
    for step in (planned, other):
        step.run(step.samples[0])
    random = torch.get_rng_state()
    plan = fit.plan_to_keep(planned, 0.5)
    assert torch.equal(torch.get_rng_state(), random)
    assert plan.policies
    assert plan.exact
    for step in (planned, other):
        assert step.optimizer is not None
        assert step.optimizer.param_groups[0]["lr"] == 1e-3
        step.run(step.samples[0])
    for (name, one), two in zip(planned.parameters.items(), other.parameters.values(), strict=True):
        assert torch.equal(one, two), name


def test_the_largest_sample_is_planned() -> None:
    given, targets = batch()
    small = given[:8], targets[:8]
    both = TrainingStep.of(Subject(stack().train(), [small, batch()], step=mean_error, optimizer=adamw))
    largest = max(policy.bytes for policy in fit.plan_to_keep(both, 0.0).policies)
    assert largest >= ROWS * WIDTH * 4


def test_a_record_holds_the_plan_and_puts_it_on_a_live_module() -> None:
    choices = recipe(recompute={"keep": 0.0}, plain_step={})
    step = step_of()
    facts = survey_step(step_of(), seed=0, machine=machine("cpu")).facts
    recorded = togi.TrainingRecipe.of(choices, build_step(choices, step), facts)
    recorded = togi.TrainingRecipe.model_validate_json(recorded.model_dump_json())
    assert isinstance(recorded.plan, Plan)
    module, other = stack().train(), stack().train()
    own, others = adamw(module.parameters()), adamw(other.parameters())
    plain = copy.deepcopy(vars(module).get("forward"))
    with recorded.apply(module, own, mean_error) as applied:
        assert "forward" in vars(module)
        for _ in range(2):
            applied.step(batch())
    assert vars(module).get("forward") is plain
    for _ in range(2):
        others.zero_grad()
        mean_error(other, batch()).backward()  # type: ignore[no-untyped-call]
        others.step()
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_loop_of_the_users_own_runs_under_a_plan() -> None:
    def loop(module: nn.Module, optimizer: torch.optim.Optimizer, sample: Any) -> Tensor:
        optimizer.zero_grad()
        loss = mean_error(module, sample)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        return loss

    own = {"step": None, "train_step": loop}
    report = verified(make_step_truth(step_of(**own), seed=1), recipe(recompute={"keep": 0.0}, plain_step={}))
    assert report.faithful, report.problems
    under_it = build_step(recipe(recompute={"keep": 0.0}, plain_step={}), step_of(**own))
    assert peak_bytes(under_it) < peak_bytes(step_of(**own))


def test_a_loop_that_counts_and_schedules_runs_under_a_plan() -> None:
    """Each run of planning begins alike: else gradients of parameters that moved differ, or there are none."""
    calls = {"made": 0}

    def scheduled(parameters: Any) -> torch.optim.Optimizer:
        optimizer: Any = adamw(parameters)
        optimizer.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return cast("torch.optim.Optimizer", optimizer)

    def loop(module: nn.Module, optimizer: Any, sample: Any) -> Tensor:
        loss = mean_error(module, sample)
        loss.backward()  # type: ignore[no-untyped-call]
        calls["made"] += 1
        if calls["made"] % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        optimizer.schedule.step()
        return loss

    step = step_of(step=None, train_step=loop, optimizer=scheduled)
    step.run(step.samples[0])
    assert fit.plan_to_keep(step, 0.0).policies
    assert calls == {"made": 1}
    assert step.optimizer is not None
    assert step.optimizer.param_groups[0]["lr"] == 0.5e-3


def test_a_plan_goes_with_bf16_in_an_own_loop() -> None:
    def loop(module: nn.Module, optimizer: torch.optim.Optimizer, sample: Any) -> Tensor:
        optimizer.zero_grad()
        loss = mean_error(module, sample)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    own = {"step": None, "train_step": loop}
    low = recipe(bf16={"how": "autocast"}, plain_step={})
    both = recipe(bf16={"how": "autocast"}, recompute={"keep": 0.0}, plain_step={})
    plain, planned = build_step(low, step_of(**own)), build_step(both, step_of(**own))
    assert isinstance(planned.plan, Plan)
    for _ in range(2):
        for step in (plain, planned):
            step.run(step.samples[0])
        for name, parameter in plain.parameters.items():
            assert torch.equal(parameter, planned.parameters[name]), name
    planned.undo()
    assert "forward" not in vars(planned.module)


@pytest.mark.parametrize("keep", [None, "much", 1.0, -0.5, True])
def test_what_is_no_share_is_refused(keep: Any) -> None:
    with pytest.raises(Refused, match="keep must be a share"):
        technique("recompute").apply_step(step_of(), {"keep": keep})


def test_what_cannot_run_under_a_plan_is_refused_with_the_reason() -> None:
    with pytest.raises(Refused, match="holds no plan"):
        technique("recompute").apply_step(dataclasses.replace(step_of(), samples=()), {"keep": 0.5})
    wrapped = dataclasses.replace(step_of(), module=torch.compile(stack()))
    with pytest.raises(Refused, match=r"what torch\.compile returned"):
        technique("recompute").apply_step(wrapped, {"keep": 0.5})
    planned = step_of()
    fit.plan_to_keep(planned, 0.5).apply(planned.module)
    with pytest.raises(StepFailed) as failed:
        build_step(recipe(recompute={"keep": 0.5}, plain_step={}), planned)
    assert isinstance(failed.value.__cause__, Refused)


@pytest.mark.thorough
@pytest.mark.parametrize("of", ["loss", "module", "blocks"])
def test_the_partitioner_decides_for_what_is_compiled(of: str, truth: StepTruth) -> None:
    compiled: dict[str, Options] = {"torch_compile": {"of": of}}
    both = compiled | {"recompute": {"keep": 0.0}}
    report = verified(truth, recipe(**both, plain_step={}))
    assert report.faithful, report.problems
    step = built(**both)
    assert step.plan is None
    with_it = peak_bytes(step)
    if of == "blocks":  # what is compiled as one whole is computed again as one whole, and the peak stays
        assert with_it < peak_bytes(built(**compiled))
    step.undo()
    assert not any(vars(part).get("_compiled_call_impl") for part in step.module.modules())
