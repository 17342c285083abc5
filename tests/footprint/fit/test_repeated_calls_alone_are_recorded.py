"""Passes after the first record the calls that a plan repeats, and give the same loss, gradients and memory."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.footprint.fit.training_steps import STEPS
from togi.footprint.fit.measure import measured_peak_bytes, same_start
from togi.footprint.fit.policies import Action
from togi.footprint.fit.proof import PassOutcome, TrainingRun, compare, outcome_of
from togi.footprint.fit.training.observe import observe, watched_by
from togi.footprint.fit.training.recording import ForwardRecording
from togi.footprint.fit.training.repeats import Repeats
from togi.footprint.fit.training.saved_tensors import SavedTensorHooks
from togi.footprint.step import Step, mean_of_outputs
from togi.subject.inputs import Inputs

EXACT = (Action.RECOMPUTE, Action.KEEP, Action.BITS)
PASSES = 3


@cache
def _known(name: str) -> tuple[Step, PassOutcome, tuple[str, ...]]:
    torch.manual_seed(1)
    step = STEPS[name]()
    with same_start(step.module, 3):
        reference = outcome_of(step)
    with same_start(step.module, 3):
        keys = {result.key for call in observe(step, {}).calls for result in call.makes}
    return step, reference, tuple(sorted(keys))


@contextmanager
def _planned(module: nn.Module, actions: Mapping[str, Action]) -> Iterator[Repeats]:
    repeats = Repeats()
    with watched_by(module, lambda: SavedTensorHooks(actions, repeats=repeats)):
        yield repeats


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the operators whose calls were recorded."""
    names: list[str] = []
    record = ForwardRecording._recorded

    def noting(self: Any, operator: Any, facts: Any, number: int, args: Any, kwargs: Any) -> Any:
        names.append(f"{facts.name}#{number}")
        return record(self, operator, facts, number, args, kwargs)

    monkeypatch.setattr(ForwardRecording, "_recorded", noting)
    return names


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(STEPS)), st.data())
def test_any_combination_in_every_pass(name: str, data: st.DataObject) -> None:
    _check_combination(name, data)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(STEPS)), st.data())
def test_any_of_many_combinations_in_every_pass(name: str, data: st.DataObject) -> None:
    _check_combination(name, data)


def _check_combination(name: str, data: st.DataObject) -> None:
    step, reference, keys = _known(name)
    actions = {key: data.draw(st.sampled_from((None, *EXACT)), key) for key in keys}
    with _planned(step.module, {key: action for key, action in actions.items() if action}):
        for _ in range(PASSES):
            with same_start(step.module, 3):
                proof = compare(reference, outcome_of(step))
            assert proof.exact, proof.differences


@pytest.mark.parametrize("name", STEPS)
def test_a_later_pass_takes_no_more_memory_than_the_first(name: str) -> None:
    step, _, keys = _known(name)
    dropped = dict.fromkeys(keys[::2], Action.RECOMPUTE)
    with _planned(step.module, dropped):
        peaks = []
        for _ in range(PASSES):
            with same_start(step.module, 3):
                peaks.append(measured_peak_bytes(step, TrainingRun(step)))
    assert max(peaks[1:]) <= peaks[0]


def test_only_what_is_repeated_is_recorded(recorded: list[str]) -> None:
    layers = [part for _ in range(8) for part in (nn.Linear(64, 64), nn.Sigmoid())]
    module, given = nn.Sequential(*layers), torch.randn(32, 64)
    with _planned(module, {"aten.sigmoid.default#3": Action.RECOMPUTE}):
        module(given).sum().backward()
        assert len(recorded) == 16
        recorded.clear()
        module(given).sum().backward()
    assert recorded == ["aten.addmm.default#3", "aten.sigmoid.default#3"]  # its input is not saved for anybody else


def test_results_are_gone_after_a_later_pass_too() -> None:
    alive: list[weakref.ref[Any]] = []

    class Notes(nn.Module):
        def forward(self, given: Tensor) -> Tensor:
            hidden = (given * 2).sigmoid()
            alive.append(weakref.ref(hidden.untyped_storage()))
            return hidden.tanh()

    module, given = Notes(), torch.ones(1000, requires_grad=True)
    with _planned(module, {"aten.sigmoid.default#0": Action.RECOMPUTE, "aten.mul.Tensor#0": Action.RECOMPUTE}):
        for _ in range(PASSES):
            out = module(given)
            gc.collect()
            assert alive[-1]() is None
            out.sum().backward()


class TwoWays(nn.Module):
    """Goes one way or the other: by a switch, as a module of a GAN or a dropped layer does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        self.other_way = False

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.first(given).sigmoid()
        if self.other_way:
            hidden = self.second(hidden * 2).relu_().sigmoid()
        return hidden.sigmoid().tanh()


@pytest.mark.parametrize("ways", ["0011", "01010101", "0001111", "000010000"])
def test_a_pass_that_goes_another_way_is_recorded_and_right(ways: str, recorded: list[str]) -> None:
    module, given = TwoWays(), torch.randn(16, 32)
    keys = [f"aten.sigmoid.default#{number}" for number in range(3)] + ["aten.relu_.default#0.w0"]

    def gradients(other_way: bool) -> list[Tensor]:
        module.other_way = other_way
        module.zero_grad()
        module(given).sum().backward()
        return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]

    expected = {way: gradients(way == "1") for way in "01"}
    with _planned(module, dict.fromkeys(keys, Action.RECOMPUTE)):
        for way in ways:
            assert all(map(torch.equal, expected[way], gradients(way == "1")))
        recorded.clear()
        for way in ways[-2:]:
            gradients(way == "1")
    assert "aten.tanh.default#0" not in recorded or len(ways) < 5


def test_a_write_into_what_was_read_is_seen_in_every_pass() -> None:
    class Overwrites(nn.Module):
        def forward(self, given: Tensor, weight: Tensor) -> Tensor:
            shifted = given + weight
            halves = given.view(2, -1)  # a view: the write below goes through it
            unrelated = torch.zeros(4)
            unrelated.add_(1)
            halves.zero_()
            return shifted.sigmoid().tanh() * unrelated

    _check_writes(Overwrites(), "aten.add.Tensor#0", "aten.sigmoid.default#0", "aten.tanh.default#0")


def test_a_write_through_a_conjugated_view_is_seen_in_every_pass() -> None:
    class Conjugated(nn.Module):
        def forward(self, given: Tensor, weight: Tensor) -> Tensor:
            spectrum = torch.complex(given * weight, weight)
            shifted = spectrum * 2
            spectrum.conj().add_(1.0 + 2.0j)
            return (spectrum * shifted).abs().sigmoid()

    _check_writes(Conjugated(), "aten.complex.default#0", "aten.mul.Tensor#0", "aten.mul.Tensor#1", "aten.mul.Tensor#2")


def _check_writes(module: nn.Module, *keys: str) -> None:
    def gradient() -> Tensor:
        weight = torch.full((4,), 0.3, requires_grad=True)
        module(torch.arange(4.0), weight).sum().backward()
        assert weight.grad is not None
        return weight.grad

    expected = gradient()
    with _planned(module, dict.fromkeys(keys, Action.RECOMPUTE)):
        for _ in range(PASSES):
            assert torch.equal(expected, gradient())


def test_a_pass_that_fails_does_not_spoil_those_after_it() -> None:
    class Fails(nn.Module):
        fails = True

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, given: Tensor) -> Tensor:
            hidden = self.layer(given).sigmoid()
            if self.fails:
                raise ValueError("a bad batch")
            return self.layer(hidden).sigmoid().tanh()

    module, given = Fails(), torch.randn(4, 16)
    with _planned(module, {"aten.sigmoid.default#1": Action.RECOMPUTE, "aten.tanh.default#0": Action.RECOMPUTE}):
        with pytest.raises(ValueError, match="bad batch"):
            module(given)
        module.fails = False
        gradients: list[Tensor] = []
        for _ in range(PASSES):
            module.zero_grad()
            module(given).sum().backward()
            gradients.append(module.layer.weight.grad.clone())
    module.zero_grad()
    module(given).sum().backward()
    assert all(torch.equal(one, module.layer.weight.grad) for one in gradients)


def test_what_was_learned_stays_small_where_each_pass_goes_another_way() -> None:
    repeats = Repeats()
    for seed in range(40):
        one_pass = repeats.new_pass()
        for number in range(10_000):
            one_pass.is_repeated(f"operator {seed} {number}", 0)
        one_pass.end()
    assert len(repeats.ways) <= 110_000


def test_a_copy_learns_by_itself() -> None:
    repeats = Repeats()
    one_pass = repeats.new_pass()
    assert one_pass.is_repeated("aten.mul", 0)
    one_pass.end()
    copied = pickle.loads(pickle.dumps(repeats))
    assert (copied.ways, copied.whole_passes) == (set(), 1)
    assert repeats.ways


def test_a_batch_of_another_size_is_no_other_way(recorded: list[str]) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Tanh())
    step = Step(module=module, sample=Inputs((torch.randn(9, 8),)), train=True, loss=mean_of_outputs)
    with _planned(module, {"aten.sigmoid.default#0": Action.RECOMPUTE}):
        step.run()
        recorded.clear()
        module(torch.randn(5, 8)).sum().backward()
    assert recorded == ["aten.addmm.default#0", "aten.sigmoid.default#0"]
