"""Every treatment leaves loss, gradients, buffers and random state as the unmodified module's, to the bit."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from togi.budget.fit.errors import FitError
from togi.budget.fit.plan import Action, Plan, Treatment
from togi.budget.fit.proof import compare, outcome_of
from togi.budget.fit.treated import TreatedForward
from togi.budget.step import Step, mean_of_outputs
from togi.subject.inputs import Inputs


class Block(nn.Module):
    """Convolution, batch norm, dropout, and an in-place addition and activation, as in residual networks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.act = nn.Dropout(0.3), nn.ReLU(inplace=True)

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.drop(self.norm(self.conv(given)))
        hidden += given
        return self.act(hidden)


class Attention(nn.Module):
    """Keyword arguments, a mask, and a tuple as output."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(8, 24), nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(
        self, given: Tensor, *, mask: Tensor | None = None, scale: float = 1.0
    ) -> tuple[Tensor, dict[str, Any]]:
        q, k, v = self.qkv(given).chunk(3, -1)
        mixed = nn.functional.scaled_dot_product_attention(q, k * scale, v, attn_mask=mask)
        return self.drop(self.out(mixed)) + given, {"keys": k}


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Attention(), Attention()

    def forward(self, given: Tensor, mask: Tensor) -> Tensor:
        hidden, extra = self.first(given, mask=mask, scale=0.5)
        hidden, _ = self.second(hidden, mask=mask)
        return hidden + extra["keys"].mean()


class Twice(nn.Module):
    """One module called twice, and one shared under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5))
        self.alias = self.shared

    def forward(self, given: Tensor) -> Tensor:
        return self.alias(self.shared(given) * 2)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 7, num_layers=2, batch_first=True, dropout=0.2), nn.Linear(7, 3)

    def forward(self, given: Tensor) -> Tensor:
        hidden, (last, _) = self.lstm(given)
        return self.head(hidden) + last.sum()


class Spectral(nn.Module):
    """Its weight depends on buffers that each call moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.spectral_norm(nn.Linear(6, 6))

    def forward(self, given: Tensor) -> Tensor:
        return self.layer(self.layer(given))


def _step(module: nn.Module, *args: Tensor) -> Step:
    return Step(module=module.train(), sample=Inputs(args), train=True, loss=mean_of_outputs)


def _blocks() -> Step:
    return _step(nn.Sequential(Block(), Block(), Block()), torch.randn(2, 4, 6, 6))


def _attending() -> Step:
    return _step(Attending(), torch.randn(2, 5, 8), torch.ones(5, 5).tril().bool())


CASES: dict[str, tuple[Callable[[], Step], list[str]]] = {
    "blocks": (_blocks, ["0", "1", "2"]),
    "attention": (_attending, ["first", "second"]),
    "twice": (lambda: _step(Twice(), torch.randn(9, 6)), ["shared"]),
    "lstm": (lambda: _step(Recurrent(), torch.randn(2, 4, 5)), ["lstm", "head"]),
    "spectral": (lambda: _step(Spectral(), torch.randn(3, 6)), ["layer"]),
}
KEEPS = {
    "all again": (),
    "matrices kept": ("aten.convolution.default#0", "aten.addmm.default#0", "aten.mm.default#0", "aten.bmm.default#0"),
}


def _treatment(module: nn.Module, name: str, keeps: tuple[str, ...] = ()) -> Treatment:
    state = tuple(name for name, _ in module.get_submodule(name).named_buffers())
    return Treatment(module=name, keeps=keeps, state=state)


@pytest.mark.parametrize("keeps", KEEPS.values(), ids=KEEPS)
@pytest.mark.parametrize("case", CASES)
def test_every_combination_is_exact(case: str, keeps: tuple[str, ...]) -> None:
    torch.manual_seed(1)
    make, names = CASES[case]
    step = make()
    reference = outcome_of(step, 3)
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, count):
            plan = Plan(treatments=tuple(_treatment(step.module, name, keeps) for name in chosen))
            plan.apply(step.module)
            proof = compare(reference, outcome_of(step, 3))
            plan.remove()
            assert proof.exact, proof.differences
    assert compare(reference, outcome_of(step, 3)).exact


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 6), min_size=2, max_size=4, unique=True), seed=st.integers(0, 1000))
def test_runs_of_a_sequential_are_exact(cuts: list[int], seed: int) -> None:
    parts = [nn.Linear(5, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 5), nn.GELU()]
    step = _step(nn.Sequential(*parts), torch.randn(7, 5))
    reference = outcome_of(step, seed)
    bounds = sorted(cuts)
    runs = list(zip(bounds[::2], bounds[1::2], strict=False))
    state = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    plan = Plan(
        treatments=tuple(
            Treatment(module="", children=run, state=state if run[0] <= 1 < run[1] else ()) for run in runs
        )
    )
    plan.apply(step.module)
    proof = compare(reference, outcome_of(step, seed))
    assert proof.exact, proof.differences


def test_running_statistics_move_once_and_without_state_they_would_move_twice() -> None:
    step = _step(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(8, 4))
    reference = outcome_of(step, 0)
    for state, exact in ((("running_mean", "running_var", "num_batches_tracked"), True), ((), False)):
        plan = Plan(treatments=(Treatment(module="1", state=state),))
        plan.apply(step.module)
        assert compare(reference, outcome_of(step, 0)).exact is exact
        plan.remove()


def test_names_copies_and_pickles() -> None:
    step = _blocks()
    names = list(step.module.state_dict())
    reference = outcome_of(step, 5)
    plan = Plan(treatments=tuple(_treatment(step.module, name) for name in "012"))
    plan.apply(step.module)
    assert list(step.module.state_dict()) == names
    for other in (copy.deepcopy(step.module), pickle.loads(pickle.dumps(step.module))):
        treated = vars(other.get_submodule("1"))["forward"]
        assert isinstance(treated, TreatedForward)
        assert treated.module is other.get_submodule("1")
        copied = Step(module=other, sample=step.sample, train=True, loss=step.loss)
        assert compare(reference, outcome_of(copied, 5)).exact
        plan.remove(other)
        assert not any("forward" in vars(part) for part in other.modules())
    assert "forward" in vars(step.module.get_submodule("1"))
    plan.remove()
    assert not any("forward" in vars(part) for part in step.module.modules())


def test_a_forward_set_by_others_is_used_and_restored() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    theirs = lambda given: nn.Linear.forward(module[0], given) * 3  # noqa: E731
    module[0].forward = theirs
    plan = Plan(treatments=(Treatment(module="0"),))
    expected = module(torch.ones(1, 3))
    plan.apply(module)
    assert torch.equal(module(torch.ones(1, 3)), expected)
    plan.remove()
    assert module[0].forward is theirs


def test_no_grad_autocast_and_a_second_backward() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    given = torch.randn(3, 4)
    plan = Plan(treatments=(Treatment(module="", children=(0, 3)),))

    def gradients() -> list[Tensor]:
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = module(given).float().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return [p.grad.clone() for p in module.parameters() if p.grad is not None]

    expected = gradients()
    plan.apply(module)
    with torch.no_grad():
        assert not module(given).requires_grad
    assert all(torch.equal(one, other) for one, other in zip(expected, gradients(), strict=True))


@pytest.mark.parametrize("what", ["input", "parameter"])
def test_what_changed_in_place_is_an_error_and_no_wrong_gradient(what: str) -> None:
    layer = nn.Linear(3, 3)
    plan = Plan(treatments=(Treatment(module=""),))
    plan.apply(layer)
    given = torch.ones(2, 3)
    loss = layer(given).sum()
    with torch.no_grad():
        (given if what == "input" else layer.weight).add_(1)
    with pytest.raises((FitError, RuntimeError), match=r"in place|inplace"):
        loss.backward()


def test_code_that_forbids_hooks_is_named() -> None:
    layer = nn.Linear(3, 3)
    Plan(treatments=(Treatment(module=""),)).apply(layer)
    with (
        torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"),
        pytest.raises(FitError, match="disable_saved_tensors_hooks"),
    ):
        layer(torch.ones(1, 3))


@pytest.mark.parametrize(
    ("treatments", "said"),
    [
        ((Treatment(module="layer9"),), "does not have"),
        ((Treatment(module="0"), Treatment(module="0")), "twice"),
        ((Treatment(module="0", children=(0, 1)),), "no plain Sequential"),
        ((Treatment(module="", children=(0, 9)),), "no plain Sequential"),
        ((Treatment(module="0", state=("gone",)),), "'gone'"),
    ],
)
def test_plans_that_do_not_belong_change_nothing(treatments: tuple[Treatment, ...], said: str) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(FitError, match=said):
        Plan(treatments=(Treatment(module="1"), *treatments)).apply(module)
    assert not any("forward" in vars(part) for part in module.modules())


def test_applied_twice_is_refused() -> None:
    module = nn.Linear(2, 2)
    plan = Plan(treatments=(Treatment(module=""),))
    plan.apply(module)
    with pytest.raises(FitError, match=r"remove\(\) first"):
        plan.apply(module)


def test_compressed_gradients_are_near_and_masks_exact() -> None:
    torch.manual_seed(0)
    step = _step(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU()), torch.randn(64, 64))
    reference = outcome_of(step, 0)
    plan = Plan(treatments=(Treatment(module="", action=Action.COMPRESS),))
    plan.apply(step.module)
    proof = compare(reference, outcome_of(step, 0))
    assert not proof.exact
    assert 0 < proof.worst_relative < 0.1


@given(st.lists(st.integers(0, 9), min_size=0, max_size=3), st.integers(0, 2**16))
@settings(max_examples=50, deadline=None)
def test_bits_come_back(shape: list[int], seed: int) -> None:
    from togi.budget.fit.compressed import pack_bits

    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.5
    packed = pack_bits(mask)
    assert packed.packed.numel() == -(-mask.numel() // 8)
    assert torch.equal(packed.unpack(), mask)


def test_plans_are_saved_and_read(tmp_path: Any) -> None:
    plan = Plan(treatments=(Treatment(module="a.0", children=(1, 3), keeps=("aten.mm.default#0",)),), budget_bytes=7)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    (tmp_path / "other.json").write_text('{"kind": "plan", "colour": 1}')
    for path in ("other.json", "nowhere.json"):
        with pytest.raises(FitError, match="togi fit"):
            Plan.load(tmp_path / path)
