"""Every technique of a training step: right on a step that it applies to, undone without a trace, and explained where
it cannot work."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.small_modules import ComputesWith
from togi.core.errors import Refused
from togi.core.records import Facts
from togi.machine import describe
from togi.machine.describe import machine
from togi.subject.inputs import Subject
from togi.subject.training import TrainingStep
from togi.techniques import Applies, all_techniques, technique
from togi.techniques.base import Options, Refuses
from togi.techniques.build import StepFailed, build_step
from togi.techniques.registry import recipe
from togi.techniques.runtime import allocator
from togi.verify.step_truth import make_step_truth
from togi.verify.training import StepTruth, verify_step, warm_copy
from togi.worker.training_survey import survey_step

OF_STEPS = [id for id, one in all_techniques().items() if one.trains and not one.saves_memory_alone]
"""Those that save memory alone refuse a step as small as this one: they have tests of their own."""
SLOW = pytest.mark.thorough


def mean_error(module: nn.Module, sample: tuple[Tensor, Tensor]) -> Tensor:
    pictures, targets = sample
    answer: Tensor = module(pictures)
    return (answer - targets).square().mean()


def step_of(module: nn.Module | None = None, **given: Any) -> TrainingStep:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(64, 5))
    options = {"step": mean_error, "optimizer": lambda p: torch.optim.AdamW(p, lr=1e-3)} | given
    sample = torch.randn(16, 3, 8, 8), torch.randn(16, 5)
    return TrainingStep.of(Subject(module or plain, sample, **options))


@pytest.fixture
def truth() -> StepTruth:
    """Made anew for each test: once the number of threads was another, sums round otherwise in this process."""
    return make_step_truth(step_of(), seed=1)


@pytest.fixture(autouse=True)
def preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any library that this process has mapped stands in for an allocator that it was started with."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    mapped = next(line.split()[-1] for line in maps if "libtorch" in line)
    for user in (allocator, describe):
        monkeypatch.setattr(user, "installed_allocators", lambda: {"mimalloc": mapped})


@pytest.fixture
def facts() -> Facts:
    return survey_step(step_of(), seed=0, machine=machine("cpu")).facts


def test_an_allocator_that_the_process_was_not_started_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of()
    built = technique("allocator").apply_step(step, {"name": "mimalloc"})
    assert "needs LD_PRELOAD=" in built.notes[-1]
    with pytest.raises(Refused, match="apt-get install libjemalloc2"):
        technique("allocator").apply_step(step, {"name": "jemalloc"})
    monkeypatch.setattr(allocator, "installed_allocators", lambda: {"mimalloc": "/nowhere/libmimalloc.so.2"})
    with pytest.raises(Refused, match="this process was not started with LD_PRELOAD=/nowhere/libmimalloc"):
        technique("allocator").apply_step(step, {"name": "mimalloc"})


def here(id: str, facts: Facts) -> list[Options]:
    found = technique(id)
    if not isinstance(found.applies(facts), Applies):
        pytest.skip(f"{id} does not apply here")
    return [dict(options) for options in found.options(facts)]


@pytest.mark.parametrize("id", [pytest.param(id, marks=SLOW if id == "torch_compile" else ()) for id in OF_STEPS])
def test_it_is_right_where_it_applies(id: str, truth: StepTruth, facts: Facts) -> None:
    for options in here(id, facts):
        undone: list[TrainingStep] = []

        def build(step: TrainingStep, options: Options = options, undone: list[TrainingStep] = undone) -> TrainingStep:
            undone.append(technique(id).apply_step(step, options))
            return undone[-1]

        report = verify_step(build, truth, to_the_bit=technique(id).step_to_the_bit)
        for step in undone:
            step.undo()
        if technique(id).exact:
            assert report.faithful, (options, report.problems, report.units)
        else:
            assert not report.problems, report.problems
            assert 0 < report.rmse < 1.0


def traces(step: TrainingStep) -> dict[str, Any]:
    """All that a technique changes in place."""
    assert step.optimizer is not None
    state = step.optimizer.state.values()
    return {
        "strides": [parameter.stride() for parameter in step.parameters.values()],
        "state": [value.stride() for entry in state for value in entry.values() if isinstance(value, Tensor)],
        "groups": [{name: value for name, value in g.items() if name != "params"} for g in step.optimizer.param_groups],
        "hooks": len(step.module._forward_pre_hooks),
        "optimizer's hooks": [len(hooks) for name, hooks in vars(step.optimizer).items() if name.endswith("_hooks")],
        "threads": torch.get_num_threads(),
        "compiled": step.module._compiled_call_impl,
    }


@pytest.mark.parametrize("id", OF_STEPS)
def test_it_is_undone_without_a_trace(id: str, facts: Facts) -> None:
    for options in here(id, facts):
        step = step_of()
        step.run(step.samples[0])
        before = traces(step)
        built = technique(id).apply_step(step, options)
        built.undo()
        assert traces(step) == before
        step.run(step.samples[0])


@pytest.mark.parametrize("id", [pytest.param(id, marks=SLOW if id == "torch_compile" else ()) for id in OF_STEPS])
def test_a_step_that_was_proven_goes_on_as_one_that_nobody_observed(id: str, truth: StepTruth, facts: Facts) -> None:
    """It is measured afterwards, from the warm state, with all that the technique made of it."""
    for options in here(id, facts):
        proven, other = (
            technique(id).apply_step(warm_copy(truth.step, truth.start, truth.step.samples), options) for _ in range(2)
        )
        before = traces(proven)
        found = truth.observe_built(proven)
        assert found.first_ms > 0
        assert traces(proven) == before
        for step in (proven, other):
            step.run(step.samples[0])
        for (name, one), two in zip(proven.parameters.items(), other.parameters.values(), strict=True):
            assert torch.equal(one, two), (options, name)
            assert torch.equal(one.grad, two.grad), (options, name)
        other.undo()
        proven.undo()


def test_what_was_done_is_undone_where_a_later_technique_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> TrainingStep:
        raise Refused("no")

    monkeypatch.setattr(type(technique("fused")), "apply_step", refuse)
    step = step_of()
    before = traces(step)
    with pytest.raises(StepFailed) as failed:
        build_step(recipe(channels_last={}, fused={}, plain_step={}), step)
    assert failed.value.technique == "fused"
    assert traces(step) == before


def test_state_of_the_optimizer_goes_along_with_the_layout() -> None:
    """A fused optimizer walks through both alike, and does not look."""
    step = step_of()
    step.run(step.samples[0])
    built = build_step(recipe(channels_last={}, fused={}, plain_step={}), step)
    assert built.optimizer is not None
    for parameter, state in built.optimizer.state.items():
        assert state["exp_avg"].stride() == parameter.stride()


def test_micro_batches_refuse_what_depends_on_the_whole_batch(facts: Facts) -> None:
    micro = technique("micro_batches")
    assert isinstance(micro.applies(facts), Applies)
    for changed in ({"random": True}, {"own_loop": True}, {"modules": {"BatchNorm2d": 1}}, {"inputs": ()}):
        assert isinstance(micro.applies(facts.model_copy(update=changed)), Refuses)
    with pytest.raises(Refused, match="fewer rows"):
        micro.apply_step(step_of(), {"parts": 17})
    hooked = step_of()
    hooked.parameters["0.weight"].register_hook(lambda gradient: gradient * 2)
    with pytest.raises(Refused, match=r"0\.weight has hooks"):
        micro.apply_step(hooked, {"parts": 2})


@pytest.mark.parametrize(("rows", "parts"), [(1, []), (2, [2]), (4, [2, 4]), (8, [4, 2, 8]), (16, [4, 2, 8])])
def test_micro_batches_of_single_rows_come_last(facts: Facts, rows: int, parts: list[int]) -> None:
    inputs = tuple(tensor.model_copy(update={"shape": (rows, *tensor.shape[1:])}) for tensor in facts.inputs)
    micro, few = technique("micro_batches"), facts.model_copy(update={"inputs": inputs})
    assert isinstance(micro.applies(few), Applies) == bool(parts)
    if parts:
        assert [options["parts"] for options in micro.options(few)] == parts


def sum_of_errors(module: nn.Module, sample: tuple[Tensor, Tensor]) -> Tensor:
    pictures, targets = sample
    answer: Tensor = module(pictures)
    return (answer - targets).square().sum()


def test_micro_batches_of_a_loss_that_is_no_mean_are_found_wrong() -> None:
    truth = make_step_truth(step_of(step=sum_of_errors), seed=1)
    report = verify_step(lambda step: technique("micro_batches").apply_step(step, {"parts": 4}), truth)
    assert not report.faithful


def test_an_own_loop_is_changed_by_its_module_and_optimizer_alone() -> None:
    def loop(module: nn.Module, optimizer: torch.optim.Optimizer, sample: tuple[Tensor, Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = mean_error(module, sample)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    step = step_of(step=None, train_step=loop)
    found = survey_step(step.copy(), seed=0, machine=machine("cpu")).facts
    assert found.own_loop
    assert all(options["of"] == "module" for options in technique("torch_compile").options(found))
    of_the_loss: dict[str, Options] = {"torch_compile": {"of": "loss"}, "micro_batches": {"parts": 2}}
    for id, options in of_the_loss.items():
        with pytest.raises(Refused, match="loop body"):
            technique(id).apply_step(step, options)
    report = verify_step(
        lambda step: build_step(recipe(channels_last={}, fused={}, plain_step={}), step), make_step_truth(step, seed=1)
    )
    assert report.faithful


def test_in_an_own_loop_bf16_is_the_modules_calls() -> None:
    """What the loop does with their results is in float32, as without it."""
    answers: list[Tensor] = []

    def loop(module: nn.Module, optimizer: torch.optim.Optimizer, sample: tuple[Tensor, Tensor]) -> Tensor:
        pictures, targets = sample
        optimizer.zero_grad()
        answers.append(module(pictures))
        loss = (answers[-1] - targets).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    step = step_of(step=None, train_step=loop)
    hidden: list[torch.dtype] = []
    step.module.get_submodule("0").register_forward_hook(lambda _module, _args, answer: hidden.append(answer.dtype))
    built = technique("bf16").apply_step(step, {"how": "autocast"})
    built.run(step.samples[0])
    built.undo()
    step.run(step.samples[0])
    assert hidden == [torch.bfloat16, torch.float32]
    assert [answer.dtype for answer in answers] == [torch.float32] * 2
    gradients = [parameter.grad for parameter in step.module.parameters()]
    assert all(gradient is not None and gradient.dtype is torch.float32 for gradient in gradients)
    assert "forward" not in vars(step.module)
    scripted = torch.jit.script(nn.Linear(4, 4))
    with pytest.raises(Refused, match="TorchScript"):
        technique("bf16").apply_step(dataclasses.replace(step, module=scripted), {"how": "autocast"})


def test_facts_say_what_the_step_draws_and_what_its_optimizer_can(facts: Facts) -> None:
    assert (facts.optimizer, facts.random) == ("AdamW", False)
    assert facts.optimizer_options == ("fused", "foreach", "capturable")
    assert list(facts.phases_ms) == ["forward", "loss", "backward", "optimizer", "the rest"]
    assert sum(facts.phases_ms.values()) == facts.latency_ms
    assert facts.blocks == ()
    drawing = ComputesWith(lambda module, x: module.layer(x.flatten(1)) * torch.rand(5), layer=nn.Linear(192, 5))
    rprop = step_of(drawing, optimizer=lambda p: torch.optim.Rprop(p, lr=1e-3))
    found = survey_step(rprop, seed=0, machine=machine("cpu")).facts
    assert found.random
    assert "fused" not in found.optimizer_options
    assert technique("fused").applies(found) == Refuses("Rprop has no fused kernel, or uses it already")
    alone = survey_step(step_of(optimizer=None), seed=0, machine=machine("cpu")).facts
    assert alone.optimizer == ""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(torch.relu(self.norm(x)))


def stack(blocks: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 5), *(Block() for _ in range(blocks)), nn.Linear(5, 5))


@pytest.mark.thorough
def test_blocks_that_repeat_are_compiled_once_are_right_and_are_plain_afterwards() -> None:
    step = step_of(stack())
    found = survey_step(step.copy(), seed=0, machine=machine("cpu")).facts
    assert found.blocks == (4,)
    compiled = technique("torch_compile")
    options = compiled.options(found)
    assert [each["of"] for each in options] == ["loss", "module", "blocks"]
    assert compiled.cost_s(found, options[2]) < compiled.cost_s(found, options[0])
    counters = torch._dynamo.utils.counters
    counters.clear()
    built: list[TrainingStep] = []

    def build(step: TrainingStep) -> TrainingStep:
        built.append(compiled.apply_step(step, options[2]))
        return built[-1]

    report = verify_step(build, make_step_truth(step, seed=1))
    assert report.faithful, (report.problems, report.units)
    assert counters["stats"]["unique_graphs"] == 2, "one in float32, one in float64"
    blocks = [part for one in built for part in one.module.modules() if isinstance(part, Block)]
    assert all(block._compiled_call_impl is not None for block in blocks)
    for one in built:
        one.undo()
    assert all(block._compiled_call_impl is None for block in blocks)


def test_blocks_are_refused_where_none_repeat_or_some_run_compiled() -> None:
    compiled = technique("torch_compile")
    with pytest.raises(Refused, match="three times and more"):
        compiled.apply_step(step_of(stack(2)), {"of": "blocks"})
    step = step_of(stack())
    step.module[2].compile(backend="eager")  # type: ignore[index, operator]
    with pytest.raises(Refused, match="run compiled already"):
        compiled.apply_step(step, {"of": "blocks"})


def test_a_truth_is_the_same_in_another_process(truth: StepTruth, tmp_path: Any) -> None:
    truth.save(tmp_path / "step.pt")
    again = StepTruth.load(tmp_path / "step.pt", step_of())
    assert not truth.eager.differing(again.eager)
    report = verify_step(lambda step: step, again, to_the_bit=True)
    assert report.faithful
    assert report.units == 0.0

    def half_the_rate(step: TrainingStep) -> TrainingStep:
        for group in step.optimizer.param_groups:  # type: ignore[union-attr]
            group["lr"] /= 2
        return step

    assert not verify_step(half_the_rate, again).faithful


def test_nothing_claims_more_than_the_original_does_itself(truth: StepTruth) -> None:
    """Where the original's own runs differ in the last bit, so may those of what is equal to the bit."""

    def one_rounding(step: TrainingStep) -> TrainingStep:
        def loss(module: nn.Module, sample: Any) -> Tensor:
            return step.loss(module, sample) * (1 + 2**-23)

        return dataclasses.replace(step, loss=loss)

    assert verify_step(one_rounding, truth, to_the_bit=True).problems
    unsteady = dataclasses.replace(truth, repeats_to_the_bit=False)
    assert not verify_step(one_rounding, unsteady, to_the_bit=True).problems
