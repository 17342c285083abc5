"""A step under a budget: within it, proven, at the least cost known; what cannot be planned is explained."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.core.errors import FitError, SubjectError
from togi.core.report import Report
from togi.footprint.account.watched import account_of
from togi.footprint.fit.measure import measured_peak_bytes, random_state, same_start
from togi.footprint.fit.policies import Action
from togi.footprint.fit.proof import PassOutcome, compare, noise_between, outcome_of
from togi.footprint.fit.training.fit import fit_training
from togi.footprint.fit.training.planner import TrainingPlanner
from togi.footprint.fit.training.saved_tensors import PlanWarning
from togi.footprint.fit.training.timeline import SavingChoice
from togi.footprint.in_child import fit
from togi.footprint.requests import FitRequest
from togi.footprint.step import Step, make_step, mean_of_outputs
from togi.subject.inputs import Inputs, Subject
from togi.verify.own_error import seeded_outputs

MIB = 1 << 20


def _block(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.1))


def _step(module: nn.Module, *args: Any, optimizer: Any = "none") -> Step:
    torch.manual_seed(0)
    return make_step(Subject(module.train(), args), train=True, optimizer=optimizer)


@pytest.mark.parametrize("optimizer", [pytest.param("none", marks=pytest.mark.thorough), "adam"])
def test_budgets_are_kept_and_proven(optimizer: str) -> None:
    step = _step(nn.Sequential(*[_block() for _ in range(3)]), torch.randn(4, 16, 16, 16), optimizer=optimizer)
    weights = {name: value.clone() for name, value in step.module.state_dict().items()}
    planner = TrainingPlanner(step)
    plain = planner.plan(1 << 40, timed=False)
    assert plain.fits
    assert not plain.plan.policies
    last_ms = 0.0
    for share in (0.9, 0.75):
        found = planner.plan(int(share * plain.chosen.peak_bytes), timed=False)
        assert found.fits
        assert found.chosen.peak_bytes <= found.budget_bytes
        assert found.proof.exact, found.proof.differences
        assert found.chosen.recompute_ms >= last_ms
        last_ms = found.chosen.recompute_ms
        found.plan.apply(step.module)
        with same_start(step.module, 0):
            found_peak = measured_peak_bytes(step, lambda: _run(step))
        assert found_peak == pytest.approx(found.plan.peak_bytes, rel=1e-3)
        found.plan.remove()
    for name, value in step.module.state_dict().items():
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(value, weights[name])


def _run(step: Step) -> None:
    outcome_of(step)


def test_an_impossible_budget_reports_the_least_memory_and_what_takes_it() -> None:
    found = fit_training(_step(nn.Sequential(*[_block() for _ in range(3)]), torch.randn(2, 16, 16, 16)), 1000)
    assert not found.fits
    assert found.plan.policies
    assert found.chosen.peak_bytes < found.plain.peak_bytes
    assert found.static_bytes > 1000
    assert found.proof.exact
    assert any(note.startswith("At that floor") and "aten." in note for note in found.notes)


def test_simulated_peaks_are_the_allocators() -> None:
    step = _step(nn.Sequential(*[_block() for _ in range(4)]), torch.randn(4, 16, 32, 32))
    found = fit_training(step, 1, time_limit_s=8)
    lowest = min(point.peak_bytes for point in found.front)
    assert found.chosen.peak_bytes == pytest.approx(lowest, rel=0.01)


class PythonsDice(nn.Module):
    """Drops its layer by Python's generator, which torch does not seed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, given: Tensor) -> Tensor:
        return self.layer(given) * random.random()


class AtomicSums(nn.Module):
    """Its gradients come out in another order of summation each time, by a rounding or two: a GPU's atomic additions.

    ``share``: how far off, ``listens``: not in torch's deterministic mode.
    """

    def __init__(self, share: float, listens: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.share, self.listens = share, listens

    def forward(self, given: Tensor) -> Tensor:
        for layer in self.layers:
            given = layer(given).sigmoid()
        if given.requires_grad:
            given.register_hook(self.disturbed)
        return given.tanh()

    def disturbed(self, gradient: Tensor) -> Tensor:
        if self.listens and torch.are_deterministic_algorithms_enabled():
            return gradient
        return gradient * (1 + self.share * random.uniform(-1, 1))


class Caching(nn.Module):
    """Uses what it saw before, as a cache of keys does: with its graph, or without."""

    def __init__(self, graph: bool) -> None:
        super().__init__()
        self.layer, self.graph = nn.Linear(64, 64), graph
        self.seen: list[Tensor] = []

    def forward(self, given: Tensor) -> Tensor:
        out = self.layer(given).sigmoid()
        self.seen.append(out if self.graph else out.detach())
        return (torch.stack(self.seen).sum(0) * out).tanh()


class WritesIntoInput(nn.Module):
    def forward(self, given: Tensor) -> Tensor:
        return given.mul_(2).sigmoid().tanh()


class Forbids(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(32, 32), nn.GELU())

    def forward(self, given: Tensor) -> Tensor:
        with torch.autograd.graph.disable_saved_tensors_hooks("forbidden here"):
            return self.layer(given)


def test_gradients_that_are_random_are_named() -> None:
    with pytest.raises(FitError, match=r"gradient of layer\.weight"):
        fit_training(_step(PythonsDice(), torch.ones(2, 4)), 1 << 30)


def tight(step: Step) -> int:
    """A budget that only a plan keeps: two thirds of what the step takes."""
    return fit_training(step, 1 << 30).plain.peak_bytes * 2 // 3


@pytest.mark.parametrize("listens", [True, False])
def test_nondeterministic_sums_are_proven_deterministically_or_within_their_noise(
    listens: bool,
) -> None:
    random.seed(3)
    step = _step(AtomicSums(3e-7, listens), torch.ones(2048, 64))
    found = fit_training(step, tight(step))
    assert found.chosen.changes > 0
    assert (found.proof.exact, found.proof.within_noise) == (listens, not listens)
    assert any("use_deterministic_algorithms" in note for note in found.notes) is listens
    assert not torch.are_deterministic_algorithms_enabled()
    assert ("equal to the bit" if listens else "equal up to rounding") in str(found)
    if not listens:
        assert 0 < found.proof.worst_relative < 1e-3


def test_noise_that_no_order_of_sums_explains_is_no_excuse() -> None:
    with pytest.raises(FitError, match=r"gradient of layers\.0\.weight"):
        fit_training(_step(AtomicSums(0.01, False), torch.ones(4, 64)), 1 << 30)


def test_a_planned_step_beyond_the_noise_is_distinguished_from_one_within_it() -> None:
    def outcome(gradient: float) -> PassOutcome:
        weights = torch.ones(8)
        state = torch.zeros(4, dtype=torch.uint8)
        return PassOutcome(loss=torch.ones(()), gradients={"w": weights * gradient}, buffers={}, random_state=state)

    noise = noise_between([outcome(1.0), outcome(1 + 2e-7), outcome(1 - 1e-7)])
    assert noise is not None
    assert list(noise) == ["gradient of w"]
    assert compare(outcome(1.0), outcome(1 + 4e-7), noise).within_noise
    assert not compare(outcome(1.0), outcome(1 + 4e-6), noise).within_noise
    assert not compare(outcome(1.0), outcome(1 + 2e-7)).within_noise
    assert noise_between([outcome(1.0), outcome(1.1)]) is None


def test_what_runs_on_the_cpu_begins_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a device, forking torch's generators by itself does."""

    def begun(*_: Any) -> Any:
        raise AssertionError("CUDA was begun")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", begun)
    torch.manual_seed(1)
    before, module = torch.get_rng_state(), nn.Dropout()
    with same_start(module, 0):
        module(torch.ones(3))
    seeded_outputs(module, Inputs((torch.ones(3),)), 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_numbers_that_the_device_draws_are_part_of_the_random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    on_device = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(is_cuda=True)]))
    drawn = iter([torch.tensor([1], dtype=torch.uint8), torch.tensor([2], dtype=torch.uint8)])
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: next(drawn))
    before, after = random_state(on_device), random_state(on_device)
    assert not torch.equal(before, after)
    assert torch.equal(before[:-1], torch.get_rng_state())


@pytest.mark.parametrize(("graph", "said"), [(True, "failed the second time"), (False, "differ")])
def test_a_module_that_remembers_is_refused(graph: bool, said: str) -> None:
    with pytest.raises(FitError, match=said):
        fit_training(_step(Caching(graph), torch.randn(8, 64)), 1 << 30)


def test_code_that_forbids_hooks_is_named() -> None:
    with pytest.raises(FitError, match="forbids hooks"):
        fit_training(_step(nn.Sequential(nn.Linear(32, 32), Forbids()), torch.randn(256, 32)), 1000)


def test_inputs_that_are_written_into() -> None:
    layers = [part for _ in range(3) for part in (nn.Linear(32, 32), WritesIntoInput())]
    found = fit_training(_step(nn.Sequential(*layers), torch.randn(256, 32)), 1000)
    assert found.plan.policies
    assert found.proof.exact, found.proof.differences


def test_a_step_that_does_not_fit_a_frozen_part_or_a_model_of_one_operation() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    module[0].requires_grad_(False)
    found = fit_training(_step(module, torch.randn(128, 64)), 1)
    assert found.proof.exact
    found = fit_training(_step(nn.Linear(4, 4), torch.randn(2, 4)), 1)
    assert not found.fits
    assert not found.plan.policies


def test_shared_modules_lstm_and_values_that_decide() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(0.2))
            self.lstm = nn.LSTM(16, 16, batch_first=True)

        def forward(self, given: Tensor, *, twice: bool = True) -> dict[str, Tensor]:
            hidden, _ = self.lstm(self.shared(self.shared(given)) if twice else given)
            return {"out": hidden if hidden.sum().item() > -1e9 else -hidden}  # reads a value: not on fake tensors

    torch.manual_seed(0)
    step = Step(
        module=Mixed().train(),
        sample=Inputs((torch.randn(8, 8, 16),), {"twice": True}),
        train=True,
        loss=mean_of_outputs,
    )
    found = fit_training(step, 1, time_limit_s=8)
    assert any("fake tensors" in note for note in found.notes)
    assert found.plan.policies
    assert found.proof.exact, found.proof.differences


def test_approximate_only_when_allowed() -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(3)]
    step = _step(nn.Sequential(*layers), torch.randn(512, 32))
    exact = fit_training(step, 1)
    assert all(one.action is not Action.NARROW for one in exact.plan.policies)
    found = TrainingPlanner(step, allow_approximate=True).plan(int(exact.plain.peak_bytes * 0.8), timed=False)
    assert found.fits
    assert found.plan.exact is found.proof.exact


def test_micro_batches_come_last_and_are_refused_for_batch_norm() -> None:
    layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(2)]
    step = _step(nn.Sequential(*layers), torch.randn(1024, 32))
    whole = fit_training(step, 1)
    assert not whole.fits
    assert whole.plan.micro_batches == 1
    found = fit_training(step, int(whole.chosen.peak_bytes * 0.8), allow_approximate=True)
    assert found.fits
    assert found.plan.micro_batches > 1
    assert not found.plan.exact
    assert found.proof.worst_relative < 1e-3
    assert found.plain.peak_bytes == whole.plain.peak_bytes
    step.module.zero_grad()
    loss = found.plan.apply(step.module) and found.plan.backward(step.module, step.sample, step.loss)
    assert torch.isfinite(loss)
    found.plan.remove()
    found = fit_training(_step(_block(), torch.randn(4, 16, 8, 8)), 1, allow_approximate=True)
    assert any("Not in micro-batches" in note and "statistics of the batch" in note for note in found.notes)


class Moving(nn.Module):
    """A target encoder that the forward pass moves, a queue that it writes into, and a buffer that it replaces."""

    def __init__(self, by_data: bool = True) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(64, 64), nn.Linear(64, 64)
        self.target.requires_grad_(False)
        self.by_data = by_data
        self.register_buffer("queue", torch.randn(40_000))
        self.register_buffer("mean", torch.randn(20_000))

    def forward(self, given: Tensor) -> Tensor:
        with torch.no_grad():
            for source, target in zip(self.online.parameters(), self.target.parameters(), strict=True):
                if self.by_data:
                    target.data = target.data * 0.9 + source.data * 0.1
                else:
                    target.data.mul_(0.9).add_(source.data, alpha=0.1)
            keys = self.target(given)
            self.queue[:64] = keys[0]
        self.mean = self.mean * 0.5
        return (self.online(given).sigmoid() * keys).tanh() + self.queue[:64] * self.mean[:64]


class Layered(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.layers, self.head = kind(16, 64, 2, batch_first=True), nn.Linear(64, 4)

    def forward(self, given: Tensor) -> Tensor:
        return self.head(self.layers(given)[0])


SAME_STEP = {
    "moving": lambda: (Moving(), torch.randn(16, 64)),
    "statistics": lambda: (_block(4), torch.randn(2, 4, 8, 8)),
    "a large buffer": lambda: (nn.BatchNorm1d(30_000), torch.randn(2, 30_000)),
    "recurrent": lambda: (Layered(nn.LSTM), torch.randn(8, 6, 16)),
    "a loss that is a view of more": lambda: (nn.Sequential(nn.Linear(64, 64), nn.Flatten(0)), torch.randn(64, 64)),
}


@pytest.mark.parametrize("optimizer", ["none", "adam"])
@pytest.mark.parametrize("name", SAME_STEP)
def test_the_unmodified_step_takes_what_its_account_says(name: str, optimizer: str) -> None:
    module, given = SAME_STEP[name]()
    step = _step(module, given, optimizer=optimizer)
    if "view" in name:
        step = replace(step, loss=lambda module, sample: (module(*sample.args) ** 2)[3])
    expected = account_of(replace(step, module=step.module)).peak_bytes
    planner = TrainingPlanner(step)
    assert planner.unmodified.peak_bytes == pytest.approx(expected, abs=64)  # a scalar of a watched operation
    assert planner.plan(expected + 64, timed=False).fits
    assert planner.plan(1, timed=False).floor_bytes <= expected


@pytest.mark.parametrize("by_data", [True, False])
def test_parameters_that_the_forward_pass_moves_are_put_back_and_compared(by_data: bool) -> None:
    step = _step(Moving(by_data), torch.randn(512, 64), optimizer="adam")
    before = {name: value.clone() for name, value in step.module.state_dict().items()}
    found = fit_training(step, 1, time_limit_s=4)
    assert found.proof.exact, found.proof.differences
    assert found.plan.policies
    for name, value in step.module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_parameter_that_a_run_moves_otherwise_is_a_difference() -> None:
    step = _step(Moving(), torch.randn(4, 64))
    with same_start(step.module, 0, ["target.weight"]):
        first = outcome_of(step, ["target.weight"])
    with same_start(step.module, 0, ["target.weight"]):
        step.module.target.weight.data.add_(1)
        other = outcome_of(step, ["target.weight"])
    assert any(one.startswith("parameter target.weight") for one in compare(first, other).differences)


@pytest.mark.parametrize("optimizer", ["none", "adam"])
def test_what_is_remembered_with_its_graph_is_named(optimizer: str) -> None:
    with pytest.raises(FitError, match=r"failed the second time.*It keeps seen, with the graph"):
        fit_training(_step(Caching(True), torch.randn(8, 64), optimizer=optimizer), 1 << 30)
    with pytest.raises(SubjectError, match="It keeps seen, with the graph"):
        account_of(_step(Caching(True), torch.randn(8, 64), optimizer=optimizer))


def test_what_is_remembered_without_its_graph_is_named() -> None:
    with pytest.raises(FitError, match=r"Each run changes seen, which is neither a parameter nor a buffer"):
        fit_training(_step(Caching(False), torch.randn(8, 64)), 1 << 30)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_plans_for_recurrent_layers_lower_memory_as_far_as_they_promise(kind: Any) -> None:
    step = _step(Layered(kind), torch.randn(16, 12, 16))
    found = fit_training(step, 1, time_limit_s=16)
    assert found.chosen.peak_bytes < found.plain.peak_bytes
    assert found.proof.exact
    assert found.chosen.peak_bytes == min(point.peak_bytes for point in found.front)
    assert all(point.measured and point.peak_bytes <= found.plain.peak_bytes for point in found.front)


def test_a_plan_that_takes_more_than_the_unmodified_step_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = TrainingPlanner(
        _step(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)), torch.ones(256, 64))
    )
    measure = TrainingPlanner._measure

    def worse(self: TrainingPlanner, draft: SavingChoice) -> Any:
        found = measure(self, draft)
        more = self.unmodified.peak_bytes + 1
        return found if found is self.unmodified else replace(found, peak_bytes=more)

    monkeypatch.setattr(TrainingPlanner, "_measure", worse)
    found = planner.plan(1, timed=False)
    assert (found.fits, found.plan.policies, found.chosen) == (False, (), found.plain)
    assert any("takes less than the unmodified step" in note for note in found.notes)


@pytest.fixture
def planned() -> Iterator[tuple[nn.Module, Tensor]]:
    given = torch.randn(64, 32)
    step = _step(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)), given)
    plan = fit_training(step, 1, time_limit_s=8).plan
    assert plan.policies
    plan.apply(step.module)
    yield step.module, given
    plan.remove()


def test_under_function_transforms_the_plan_steps_aside_and_says_so(planned: tuple[nn.Module, Tensor]) -> None:
    module, given = planned
    parameters = dict(module.named_parameters())

    def loss(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(module, values, (given,)).square().mean()

    expected = torch.autograd.grad(loss(parameters), list(parameters.values()))
    with pytest.warns(PlanWarning, match=r"torch\.func"):
        found = torch.func.grad(loss)(parameters)
    for one, other in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("strict", [False, True])
def test_a_planned_module_is_exported_as_the_plain_one(planned: tuple[nn.Module, Tensor], strict: bool) -> None:
    module, given = planned
    exported = torch.export.export(module, (given,), strict=strict)
    torch.testing.assert_close(exported.module()(given), module(given))


@pytest.mark.parametrize("train", [True, False])
def test_where_not_even_the_unmodified_step_fits_the_ways_out_are_named(train: bool) -> None:
    class Starved(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    request = FitRequest(train=train, optimizer="none", device="cpu", budget_bytes=MIB, time_limit_s=5.0)
    with pytest.raises(FitError, match=r"Tried to allocate 20\.00 GiB.*smaller batch.*togi memory SUBJECT --predict"):
        fit(Subject(Starved(2, 2).train(train), torch.ones(2, 2)), request, Report())
