"""A plan on a live module: names, copies, pickles, what is refused, and the file it is kept in."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.footprint.fit.training_steps import Block
from togi.core.errors import FitError
from togi.footprint.fit.forward import forward_of
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.policies import SavePolicy
from togi.footprint.fit.training.saved_tensors import SavingForward
from togi.subject.architecture import architecture_of

PLAN = Plan(
    policies=tuple(
        SavePolicy(value=value, module="0.norm")
        for value in ("aten.native_batch_norm.default#0", "aten.relu_.default#0.w0", "aten.mul.Tensor#1")
    ),
    budget_bytes=7,
)


def _gradients(module: nn.Module) -> list[Tensor]:
    module.zero_grad()
    torch.manual_seed(5)
    module(torch.ones(2, 4, 5, 5)).sum().backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


@pytest.fixture
def plan() -> Plan:
    return PLAN.model_copy(deep=True)


def test_names_copies_and_pickles(plan: Plan) -> None:
    module = nn.Sequential(Block(), Block())
    names, expected = list(module.state_dict()), _gradients(module)
    assert plan.apply(module) is module
    assert list(module.state_dict()) == names
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        treated = vars(other)["forward"]
        assert isinstance(treated, SavingForward)
        assert treated.module is other
        assert all(map(torch.equal, expected, _gradients(other)))
        plan.remove(other)
        assert forward_of(other) is None
    assert forward_of(module) is not None
    plan.remove()
    assert forward_of(module) is None
    assert "forward" not in vars(module)


def test_an_applied_plan_can_be_pickled(plan: Plan) -> None:
    module = plan.apply(nn.Sequential(Block(), Block()))
    other = pickle.loads(pickle.dumps(plan))
    assert other.policies == plan.policies
    other.remove()
    assert forward_of(module) is not None


def test_a_plan_takes_away_what_it_has_put_there_and_nothing_else(plan: Plan) -> None:
    module, inner = nn.Sequential(Block(), Block()), plan.model_copy(deep=True)
    inner.apply(module[0])
    plan.apply(module)
    plan.remove()
    assert forward_of(module) is None
    assert forward_of(module[0]) is not None
    inner.remove(module[0])
    plan.apply(module[0])
    inner.remove()  # has nothing there any more
    assert forward_of(module[0]) is not None


def test_a_forward_set_by_others_is_used_and_restored(plan: Plan) -> None:
    module = nn.Sequential(Block(), Block())
    theirs = lambda given: nn.Sequential.forward(module, given) * 3  # noqa: E731
    module.forward = theirs
    expected = _gradients(module)
    plan.apply(module)
    assert all(map(torch.equal, expected, _gradients(module)))
    plan.remove()
    assert module.forward is theirs


def test_without_gradients_nothing_is_recorded(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    module = plan.apply(nn.Sequential(Block(), Block()))
    monkeypatch.setattr("togi.footprint.fit.training.saved_tensors.SavedTensorHooks", None)
    with torch.no_grad():
        module(torch.ones(1, 4, 5, 5))
    with pytest.raises(TypeError):
        module(torch.ones(1, 4, 5, 5))


def test_code_that_forbids_hooks_is_named(plan: Plan) -> None:
    module = plan.apply(nn.Sequential(Block(), Block()))
    with (
        torch.autograd.graph.disable_saved_tensors_hooks("no hooks here"),
        pytest.raises(FitError, match="disable_saved_tensors_hooks"),
    ):
        module(torch.ones(1, 4, 5, 5))


def test_plans_that_do_not_belong_change_nothing(plan: Plan) -> None:
    other = nn.Sequential(nn.Linear(2, 2))
    of_blocks = {"architecture": architecture_of(nn.Sequential(Block(), Block()))}
    with pytest.raises(FitError, match=r"there is no module '0\.\w+'"):
        plan.model_copy(update=of_blocks).apply(other)
    assert forward_of(other) is None
    scripted = torch.jit.trace(Block().eval(), torch.ones(1, 4, 5, 5))
    with pytest.raises(FitError, match="TorchScript"):
        Plan().apply(scripted)
    module = plan.apply(nn.Sequential(Block(), Block()))
    with pytest.raises(FitError, match=r"remove\(\) first"):
        plan.apply(module)


def test_plans_are_saved_and_read(plan: Plan, tmp_path: Any) -> None:
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    (tmp_path / "other.json").write_text('{"kind": "plan", "colour": 1}', encoding="utf-8")
    for path in ("other.json", "nowhere.json"):
        with pytest.raises(FitError, match="togi fit"):
            Plan.load(tmp_path / path)


def _planned(module: nn.Module) -> Plan:
    return Plan(architecture=architecture_of(module), policies=(SavePolicy(value="aten.addmm.default#0", module="0"),))


def _layers(width: int = 4, second: type[nn.Module] = nn.GELU) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), second(), nn.Linear(width, 4))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (_layers(width=8), r"'0' is Linear\(weight float32 \[8, 4\].* and was Linear\(weight float32 \[4, 4\]"),
        (_layers(second=nn.ReLU), r"'1' is ReLU\(\) and was GELU\(\)"),
        (_layers().bfloat16(), r"weight bfloat16 \[4, 4\].* and was .*weight float32"),
        (nn.Sequential(*list(_layers().children())[:2]), r"there is no module '2' \(Linear"),
        (nn.Sequential(*_layers().children(), nn.ReLU()), r"'3' \(ReLU\(\)\) was not there"),
    ],
    ids=["shape", "class", "dtype", "missing", "added"],
)
def test_a_plan_of_another_architecture_is_refused_by_what_differs(other: nn.Module, said: str) -> None:
    with pytest.raises(FitError, match=said):
        _planned(_layers()).apply(other)
    assert forward_of(other) is None


def test_a_plan_of_the_same_architecture_applies_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = _planned(_layers()).apply(_layers())
    assert forward_of(module) is not None


def test_a_plan_of_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(PLAN.model_dump_json().replace('"schema_version":2', '"schema_version":1'), encoding="utf-8")
    with pytest.raises(FitError, match="is not a plan of this version") as caught:
        Plan.load(path)
    assert "\n" not in str(caught.value)


def test_a_plan_prints_in_one_line() -> None:
    plan = _planned(_layers()).model_copy(update={"subject": "net.py:make", "peak_bytes": 3 << 20, "step_ms": 12.0})
    assert str(plan) == "plan for net.py:make: 1 result saved otherwise or recomputed, peak 3.00 MiB, 12.0 ms a step"
