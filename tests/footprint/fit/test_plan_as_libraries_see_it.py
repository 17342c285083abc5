"""A module under a plan shows every library what it shows without: nothing but its memory is another."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.footprint.fit.forward import forward_of, why_not_replaceable
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.policies import Action, Chunk, SavePolicy


def marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """As libraries decorate methods."""

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    call.mark = "a mark"  # type: ignore[attr-defined]
    return call


class Net(nn.Module):
    """Two layers and dropout, with the signature of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(8, 32), nn.Linear(32, 4), nn.Dropout(0.1)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        """Scores for each row."""
        return self.second(self.drop(self.first(input_ids).sigmoid() * scale).tanh())


class Marked(Net):
    @marked
    def forward(self, input_ids: Tensor, labels: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        """Scores for each row."""
        return super().forward(input_ids, labels, scale=scale)


SAVING = Plan(
    policies=tuple(
        SavePolicy(value=value, module="", action=Action.RECOMPUTE)
        for value in ("aten.addmm.default#0", "aten.sigmoid.default#0", "aten.tanh.default#0")
    )
)
CHUNKED = Plan(
    chunks=(
        Chunk(module="", inputs={"input_ids": ("cut", "any")}, outputs=(0,), size=2),
        Chunk(module="first", inputs={"input": ("cut", "any")}, outputs=(0,), size=2),
    )
)
PLANS = {"training": SAVING, "inference": CHUNKED}
KINDS = {"plain": Net, "decorated": Marked}


def _gradients(module: nn.Module) -> list[Tensor]:
    module.zero_grad()
    torch.manual_seed(3)
    module(torch.ones(6, 8)).square().sum().backward()
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return PLANS[request.param].model_copy(deep=True)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_is_the_one_that_it_was_for_whoever_asks(plan: Plan, kind: str) -> None:
    plain, module = KINDS[kind]().eval(), plan.apply(KINDS[kind]().eval())
    assert inspect.signature(module.forward) == inspect.signature(plain.forward)
    assert "labels" in inspect.signature(module.forward).parameters
    kinds = {parameter.kind for parameter in inspect.signature(module.forward).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds  # or a Trainer would hand over how many items a batch has
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__code__", "mark"):
        assert getattr(module.forward, name, None) == getattr(plain.forward, name, None), name
    assert inspect.getsourcelines(module.forward) == inspect.getsourcelines(plain.forward)
    assert type(module) is KINDS[kind]
    assert type(module).forward is type(plain).forward
    assert list(module.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in module.named_modules()] == [name for name, _ in plain.named_modules()]


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_pickles_show_it_too_and_run_their_own_parameters(plan: Plan, kind: str) -> None:
    module = plan.apply(KINDS[kind]().eval())
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(file, weights_only=False)):
        assert inspect.signature(other.forward) == inspect.signature(KINDS[kind]().forward)
        with torch.no_grad():
            other.second.bias.fill_(100.0)
            assert other(torch.ones(6, 8)).min() > 50
            assert module(torch.ones(6, 8)).max() < 50
        other_forward = forward_of(other)
        assert other_forward is not None
        assert other_forward.module is other
        plan.remove(other)
        assert "forward" not in vars(other)


def test_hooks_run_in_the_order_in_which_they_ran() -> None:
    def order(module: nn.Module) -> list[str]:
        calls: list[str] = []
        for name, part in module.named_modules():
            part.register_forward_pre_hook(lambda *_, name=name: calls.append(f"before {name}"))
            part.register_forward_hook(lambda *_, name=name: calls.append(f"after {name}"))
            part.register_full_backward_hook(lambda *_, name=name: calls.append(f"backward of {name}"))
        _gradients(module)
        _gradients(module)
        return calls

    assert order(SAVING.model_copy(deep=True).apply(Net())) == order(Net())


def _as_accelerate(module: nn.Module) -> None:
    """Mixed precision: a wrapper of a function is bound to the module, an object is called through one."""
    forward = module.forward
    function = getattr(forward, "__func__", forward)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    module.forward = types.MethodType(call, module) if hasattr(forward, "__func__") else call


def _as_hooks_of_accelerate(module: nn.Module) -> None:
    forward = module.forward

    def call(_module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    module.forward = functools.update_wrapper(functools.partial(call, module), forward)


WRAPPERS = {"autocast": _as_accelerate, "hooks": _as_hooks_of_accelerate}


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapper_round_a_plan_runs_it_and_a_plan_below_a_wrapper_can_be_removed(
    wrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Net()
    expected = _gradients(module)
    plan = SAVING.model_copy(deep=True)
    plan.apply(module)
    WRAPPERS[wrap](module)
    assert inspect.signature(module.forward) == inspect.signature(Net().forward)
    recorded: list[str] = []
    hooks = "togi.footprint.fit.training.saved_tensors.SavedTensorHooks.pack"
    monkeypatch.setattr(hooks, lambda self, tensor: recorded.append("packed") or self._kept(tensor))
    assert all(map(torch.equal, expected, _gradients(module)))
    assert recorded
    assert "already" in why_not_replaceable(module)
    plan.remove()
    recorded.clear()
    assert all(map(torch.equal, expected, _gradients(module)))
    assert not recorded
    assert why_not_replaceable(module) == ""


def test_a_static_forward_is_called_as_before() -> None:
    class Static(nn.Module):
        @staticmethod
        def forward(given: Tensor) -> Tensor:
            return given.sigmoid().tanh()

    given = torch.ones(2000, requires_grad=True)
    module = SAVING.model_copy(deep=True).apply(Static())
    assert torch.equal(module(given), given.sigmoid().tanh())
    assert list(inspect.signature(module.forward).parameters) == ["given"]


class Squared:
    """A class may hold any callable as its ``forward``; one without ``__get__`` is called without the module."""

    def __call__(self, given: Tensor) -> Tensor:
        return (given * given).sigmoid().tanh()


def test_a_forward_that_is_no_method_and_a_class_that_changes() -> None:
    class Called(nn.Module):
        forward = Squared()

    given = torch.ones(2000, requires_grad=True)
    module = SAVING.model_copy(deep=True).apply(Called())
    assert torch.equal(module(given), Called()(given))

    net = SAVING.model_copy(deep=True).apply(Net().eval())
    expected = net(torch.ones(6, 8))
    net.__class__ = type(
        "Sharded", (Net,), {"forward": lambda self, given: Net.forward(self, given) * 2}
    )  # as FSDP does
    assert torch.equal(net(torch.ones(6, 8)), expected * 2)


def test_what_is_captured_under_a_plan_is_the_module_without_it() -> None:
    given = torch.ones(6, 8)
    plain = Net().eval()
    module = SAVING.model_copy(deep=True).apply(copy.deepcopy(plain))
    traced = torch.jit.trace(module, (given,))
    torch.testing.assert_close(traced(given), plain(given))
    exported = torch.export.export(module, (given,)).module()
    torch.testing.assert_close(exported(given), plain(given))
