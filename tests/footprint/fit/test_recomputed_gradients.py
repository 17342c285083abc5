"""Whatever is computed again: loss, gradients, buffers and random state are the unmodified step's, to the bit."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu

from tests.footprint.fit.training_steps import STEPS, Block
from togi.core.errors import FitError
from togi.footprint.fit.measure import same_start
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.policies import Action, SavePolicy
from togi.footprint.fit.proof import PassOutcome, compare, outcome_of
from togi.footprint.fit.training.observe import observe, watched_by
from togi.footprint.fit.training.recompute import Operation, Slot, StoredValue, operations_for
from togi.footprint.fit.training.saved_tensors import SavedTensorHooks
from togi.footprint.step import Step

EXACT = (Action.RECOMPUTE, Action.KEEP, Action.BITS)


@cache
def _known(name: str) -> tuple[Step, PassOutcome, tuple[str, ...]]:
    torch.manual_seed(1)
    step = STEPS[name]()
    with same_start(step.module, 3):
        reference = outcome_of(step)
    with same_start(step.module, 3):
        keys = {result.key for call in observe(step, {}).calls for result in call.makes}
    return step, reference, tuple(sorted(keys))


def _under(step: Step, actions: Mapping[str, Action]) -> PassOutcome:
    with same_start(step.module, 3), watched_by(step.module, lambda: SavedTensorHooks(actions)):
        return outcome_of(step)


@pytest.mark.parametrize("action", EXACT)
@pytest.mark.parametrize("name", STEPS)
def test_everything_at_once(name: str, action: Action) -> None:
    step, reference, keys = _known(name)
    assert len(keys) > 2
    proof = compare(reference, _under(step, dict.fromkeys(keys, action)))
    assert proof.exact, proof.differences
    assert proof.gradients == len(reference.gradients) > 0


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(STEPS)), st.data())
def test_any_combination(name: str, data: st.DataObject) -> None:
    _check_combination(name, data)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(STEPS)), st.data())
def test_any_of_many_combinations(name: str, data: st.DataObject) -> None:
    _check_combination(name, data)


def _check_combination(name: str, data: st.DataObject) -> None:
    step, reference, keys = _known(name)
    actions = {key: data.draw(st.sampled_from((None, *EXACT)), key) for key in keys}
    proof = compare(reference, _under(step, {key: action for key, action in actions.items() if action}))
    assert proof.exact, proof.differences


def test_a_second_backward_pass_and_gradients_of_gradients() -> None:
    step, _, keys = _known("attention")
    parameters = [p for p in step.module.parameters() if p.requires_grad]

    def found() -> list[Tensor]:
        torch.manual_seed(3)
        loss = step.loss(step.module, step.sample)
        once = torch.autograd.grad(loss, parameters, retain_graph=True)
        twice = torch.autograd.grad(loss, parameters, create_graph=True)
        again = torch.autograd.grad(sum(one.square().sum() for one in twice), parameters, allow_unused=True)
        return [*once, *twice, *(one for one in again if one is not None)]

    expected = found()
    with watched_by(step.module, lambda: SavedTensorHooks(dict.fromkeys(keys, Action.RECOMPUTE))):
        assert all(torch.equal(one, other) for one, other in zip(expected, found(), strict=True))


def test_two_passes_before_one_backward() -> None:
    step, _, keys = _known("blocks")

    def found() -> list[Tensor]:
        with same_start(step.module, 3):
            (step.loss(step.module, step.sample) * step.loss(step.module, step.sample)).backward()
            return [p.grad.clone() for p in step.module.parameters() if p.grad is not None]

    expected = found()
    with watched_by(step.module, lambda: SavedTensorHooks(dict.fromkeys(keys, Action.RECOMPUTE))):
        assert all(torch.equal(one, other) for one, other in zip(expected, found(), strict=True))


def test_another_size_and_another_mode_than_planned() -> None:
    step, _, keys = _known("blocks")
    other = torch.randn(5, 4, 3, 9)
    for mode in (True, False):
        step.module.train(mode)
        expected = _gradients(step.module, other)
        with watched_by(step.module, lambda: SavedTensorHooks(dict.fromkeys(keys, Action.RECOMPUTE))):
            assert all(map(torch.equal, expected, _gradients(step.module, other)))
    step.module.train()


def _gradients(module: nn.Module, given: Tensor) -> list[Tensor]:
    with same_start(module, 0):
        module(given).sum().backward()
        return [p.grad.clone() for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("what", ["input", "parameter"])
@pytest.mark.parametrize("action", [Action.RECOMPUTE, Action.KEEP])
def test_what_changed_in_place_is_an_error_and_no_wrong_gradient(what: str, action: Action) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.Linear(3, 3), nn.Sigmoid())
    plan = _plan("aten.addmm.default#0", "aten.sigmoid.default#0", action=action)
    plan.apply(module)
    sample = torch.ones(2, 3)
    loss = module(sample).sum()
    with torch.no_grad():
        (sample if what == "input" else module[0 if action is Action.RECOMPUTE else 2].weight).add_(1)
    with pytest.raises((FitError, RuntimeError), match=r"in place|inplace"):
        loss.backward()


def test_what_is_overwritten_later_is_copied_for_those_who_read_it_before() -> None:
    class Overwrites(nn.Module):
        def forward(self, given: Tensor, weight: Tensor) -> Tensor:
            shifted = given + weight  # nothing of it is kept by autograd
            given.zero_()
            return shifted.sigmoid().tanh()

    def found(module: nn.Module) -> Tensor:
        weight = torch.full((4,), 0.3, requires_grad=True)
        module(torch.arange(4.0), weight).sum().backward()
        assert weight.grad is not None
        return weight.grad

    module = Overwrites()
    expected = found(module)
    _plan("aten.add.Tensor#0", "aten.sigmoid.default#0", "aten.tanh.default#0").apply(module)
    assert torch.equal(expected, found(module))


def test_hooks_of_the_user_run_once_and_keep_what_is_kept() -> None:
    module = nn.Sequential(Block(), Block())
    calls: list[str] = []
    module[0].register_forward_hook(lambda *_: calls.append("hook"))
    moved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        moved.append(tensor.nbytes)
        return tensor

    expected = _gradients(module, torch.ones(2, 4, 5, 5))
    calls.clear()
    _plan("aten.convolution.default#0", "aten.native_batch_norm.default#0").apply(module)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assert all(map(torch.equal, expected, _gradients(module, torch.ones(2, 4, 5, 5))))
    assert calls == ["hook"]
    assert moved
    with save_on_cpu():
        assert all(map(torch.equal, expected, _gradients(module, torch.ones(2, 4, 5, 5))))


def test_nothing_is_left_behind() -> None:
    step, _, keys = _known("blocks")
    gc.collect()
    before = _recorded()
    _under(step, dict.fromkeys(keys, Action.RECOMPUTE))
    assert _recorded() == before  # no cycle waits for the garbage collector


def _recorded() -> int:
    return sum(type(one) in (StoredValue, Operation) for one in gc.get_objects())


def test_dropped_results_are_gone_after_the_forward_pass() -> None:
    alive: list[weakref.ref[Tensor]] = []

    class Notes(nn.Module):
        def forward(self, given: Tensor) -> Tensor:
            hidden = given.sigmoid()
            alive.append(weakref.ref(hidden.untyped_storage()))  # type: ignore[arg-type]
            return hidden.tanh()

    given = torch.ones(1000, requires_grad=True)
    for keys, stays in (((), True), (("aten.sigmoid.default#0",), False)):
        module = Notes()
        _plan(*keys).apply(module)
        out = module(given)
        assert (alive[-1]() is not None) is stays
        out.sum().backward()


def test_a_long_chain_is_no_recursion() -> None:
    value = StoredValue()
    value.hold(torch.zeros(1))
    for number in range(20_000):
        slot = Slot(value, torch.zeros(1))
        operation = Operation(number, torch.neg, [slot], {}, frozenset(), [slot])
        value = StoredValue(operation)
    assert len(operations_for(value)) == 20_000
    del value, operation, slot


def test_compressed_gradients_are_near() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh())
    step = Step(module=module, sample=STEPS["twice"]().sample, train=True, loss=lambda m, _: m(SAMPLE).square().mean())
    with same_start(module, 0):
        reference = outcome_of(step)
    actions = {"aten.addmm.default#0": Action.NARROW, "aten.tanh.default#0": Action.NARROW}
    proof = compare(reference, _under(step, actions))
    assert not proof.exact
    assert 0 < proof.worst_relative < 0.1


SAMPLE = torch.randn(64, 64)


@given(st.lists(st.integers(0, 9), min_size=0, max_size=3), st.integers(0, 2**16))
@settings(max_examples=50, deadline=None)
def test_bits_come_back(shape: list[int], seed: int) -> None:
    from togi.footprint.fit.training.saved_tensors import pack_bits

    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.5
    packed = pack_bits(mask)
    assert packed.packed.numel() == -(-mask.numel() // 8)
    assert torch.equal(packed.unpack(), mask)


def _plan(*keys: str, action: Action = Action.RECOMPUTE) -> Plan:
    return Plan(policies=tuple(SavePolicy(value=key, module="", action=action) for key in keys))


def test_autocast_round_the_backward_pass_changes_nothing_that_is_computed_again() -> None:
    torch.manual_seed(0)
    module, rows = nn.Sequential(nn.Linear(6, 6), nn.Sigmoid(), nn.Linear(6, 6)), torch.randn(4, 6)

    def gradients() -> list[Tensor]:
        loss = module(rows).square().sum()
        with torch.autocast("cpu", torch.bfloat16):
            return list(torch.autograd.grad(loss, list(module.parameters())))

    expected = gradients()
    _plan("aten.addmm.default#0", "aten.sigmoid.default#0", "aten.addmm.default#1").apply(module)
    assert all(map(torch.equal, expected, gradients()))
