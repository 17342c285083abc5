"""A module that runs in slices gives what it gives whole, and runs whole wherever nothing was shown for the call."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from togi.core.errors import FitError
from togi.footprint.fit.forward import restore
from togi.footprint.fit.inference.chunked import ChunkWarning, chunk
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.policies import Chunk

FEED_FORWARD = {"input": ("any", "cut", "any")}


class Seen(nn.Module):
    """Writes down the sizes that it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.shapes.append(tuple(x.shape))
        return x * 2


def _feed_forward() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)).eval()


def _entry(size: int = 3, **changes: Any) -> Chunk:
    return Chunk(**{"module": "", "inputs": FEED_FORWARD, "outputs": (1,), "size": size, **changes})


@given(batch=st.integers(1, 3), length=st.integers(0, 20), size=st.integers(1, 9))
@settings(max_examples=20, deadline=None)
def test_any_length_and_any_size(batch: int, length: int, size: int) -> None:
    module, data = _feed_forward(), torch.randn(batch, length, 8)
    with torch.no_grad():
        whole = module(data)
        chunk(module, [_entry(size)])
        torch.testing.assert_close(module(data), whole)


def test_slices_are_of_the_size_and_the_rest_comes_last() -> None:
    module = Seen().eval()
    chunk(module, [_entry(3, inputs={"x": ("any", "cut")})])
    data = torch.randn(2, 8)
    assert torch.equal(module(data), data * 2)
    assert module.shapes == [(2, 3), (2, 3), (2, 2)]


def test_results_keep_their_structure_and_order_in_memory() -> None:
    class Several(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"image": x.relu(), "rest": (x.mean((1, 2, 3)), None), "name": "y"}

    module, data = Several().eval(), torch.randn(5, 3, 4, 4).to(memory_format=torch.channels_last)
    whole = module(data)
    chunk(module, [_entry(2, inputs={"x": ("cut", "any", "any", "any")}, outputs=(0, 0))])
    found = module(data)
    assert torch.equal(found["image"], whole["image"])
    assert found["image"].stride() == whole["image"].stride()
    assert torch.equal(found["rest"][0], whole["rest"][0])
    assert (found["rest"][1], found["name"]) == (None, "y")


def test_names_hooks_and_copies() -> None:
    module = nn.Sequential(_feed_forward())
    calls: list[int] = []
    module[0].register_forward_hook(lambda *_: calls.append(1))
    names, data = list(module.state_dict()), torch.randn(2, 9, 8)
    with torch.no_grad():
        whole = module(data)
    plan = Plan(chunks=(_entry(4, module="0"),))
    plan.apply(module)
    assert list(module.state_dict()) == names
    copied, restored = copy.deepcopy(module), pickle.loads(pickle.dumps(copy.deepcopy(_without_hooks(module))))
    plan.remove()
    assert "forward" not in vars(module[0])
    calls.clear()
    with torch.no_grad():
        for one in (module, copied, restored):
            torch.testing.assert_close(one(data), whole)
        assert len(calls) == 2  # once a call, whatever the number of slices; the pickled one has no hooks
        copied[0][0].weight.zero_()
        assert not torch.equal(copied(data), module(data)), "a copy serves the copy"
    plan.remove(copied)
    assert "forward" not in vars(copied[0])


def _without_hooks(module: nn.Module) -> nn.Module:
    module = copy.deepcopy(module)
    for part in module.modules():
        part._forward_hooks.clear()
    return module


def test_json_is_read_again(tmp_path: Path) -> None:
    plan = Plan(chunks=(_entry(4, constants={"flag": "True"}),))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").chunks == plan.chunks


class Flagged(nn.Module):
    """With ``mix`` its slices depend on each other."""

    def forward(self, x: Tensor, mask: Tensor | None = None, mix: bool = False) -> Tensor:
        x = x - x.mean(1, keepdim=True) if mix else x * 2
        return x if mask is None else x + mask


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda m: m(torch.ones(2, 8, 4), None, True), "other values of mix"),
        (lambda m: m(torch.ones(2, 8, 4), torch.ones(4), False), "other tensors"),
        (lambda m: m(torch.ones(8, 4), None, False), "shape"),
        (lambda m: m.train()(torch.ones(2, 8, 4), None, False), "training mode"),
        (lambda m: m(torch.ones(2, 8, 4, requires_grad=True), None, False), "gradients"),
    ],
)
def test_a_call_that_was_not_planned_runs_whole_and_says_so(call: Any, reason: str) -> None:
    module = Flagged().eval()
    whole = call(module).detach()
    module.eval()
    entry = _entry(3, inputs={"x": ("any", "cut", "any")}, constants={"mask": "None", "mix": "False"})
    chunk(module, [entry])
    with pytest.warns(ChunkWarning, match=reason):
        assert torch.equal(call(module).detach(), whole)


def test_a_size_that_was_one_must_be_one_again() -> None:
    module = Flagged().eval()
    shapes = {"x": ("1", "any", "cut"), "mask": ("1", "any", "any")}
    chunk(module, [_entry(2, inputs=shapes, outputs=(2,), constants={"mix": "False"})])
    with pytest.warns(ChunkWarning, match="planned as"):
        module(torch.ones(3, 5, 4), torch.ones(1, 5, 1), False)


def test_gradients_are_those_of_the_whole_module() -> None:
    module, data = _feed_forward(), torch.randn(2, 9, 8)
    module(data).sum().backward()
    expected = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    chunk(module, [_entry(2)])
    with pytest.warns(ChunkWarning, match="gradients"):
        module(data).sum().backward()
    for p, before in zip(module.parameters(), expected, strict=True):
        assert p.grad is not None
        assert torch.equal(p.grad, before)


def test_inference_mode_and_no_grad_are_without_warning() -> None:
    module, data = _feed_forward(), torch.randn(2, 9, 8)
    chunk(module, [_entry(2)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.inference_mode():
            module(data)
        with torch.no_grad():
            module(data)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([_entry(module="4")], "does not have"),
        ([_entry(), _entry()], "twice"),
        ([_entry(0)], "cuts nothing"),
        ([_entry(inputs={"input": ("any", "any")})], "cuts nothing"),
    ],
)
def test_a_plan_that_does_not_fit_changes_nothing(entries: list[Chunk], said: str) -> None:
    module = _feed_forward()
    with pytest.raises(FitError, match=said):
        chunk(module, [_entry(module="0"), *entries])
    assert all("forward" not in vars(part) for part in module.modules())


def test_a_second_plan_and_torchscript_are_refused() -> None:
    module = _feed_forward()
    parts = chunk(module, [_entry()])
    with pytest.raises(FitError, match="under a plan already"):
        chunk(module, [_entry()])
    restore(parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(_feed_forward())
    with pytest.raises(FitError, match="TorchScript"):
        chunk(scripted, [_entry()])


def test_results_without_the_dimension_are_an_error_and_no_result() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum()

    module = Sum().eval()
    chunk(module, [_entry(2, inputs={"x": ("cut",)}, outputs=(0,))], asks=False)
    with pytest.raises(FitError, match="joins them along"):
        module(torch.ones(6))


class Windowed(nn.Module):
    """From 65 places on they see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(x.shape[1])
        return x * 2 if x.shape[1] <= 64 else x - x.mean(1, keepdim=True)


@pytest.mark.parametrize("no_gradients", [torch.no_grad, torch.inference_mode])
def test_sizes_by_which_a_module_branches_run_whole(no_gradients: Any) -> None:
    module = Windowed().eval()
    chunk(module, [_entry(24, inputs={"x": ("any", "cut", "any")})])
    with no_gradients():
        short, long = torch.randn(2, 64, 4), torch.randn(2, 65, 4)
        for _ in range(2):
            assert torch.equal(module(short), short * 2)
            with pytest.warns(ChunkWarning, match="at these sizes, slices are not known to be independent"):
                assert torch.equal(module(long), long - long.mean(1, keepdim=True))
    assert module.calls == [24, 24, 16, 65, 24, 24, 16, 65]


def test_hooks_get_no_tensor_without_values() -> None:
    module, found = nn.Sequential(Seen(), nn.Identity()).eval(), []
    module[0].register_forward_hook(lambda *given: found.append(given[-1]))
    chunk(module, [_entry(3, inputs={"input": ("any", "cut")})])
    module(torch.randn(2, 8))
    assert [(type(tensor), tensor.shape[1]) for tensor in found] == [(Tensor, 3), (Tensor, 3), (Tensor, 2)]
    assert module[0].shapes == [(2, 3), (2, 3), (2, 2)]


def test_a_forward_that_was_wrapped_since_is_asked_without_its_plan() -> None:
    module = _feed_forward()
    chunk(module, [_entry(4)])
    planned = module.forward
    module.forward = functools.wraps(planned)(lambda *args: planned(*args))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        data = torch.randn(2, 9, 8)
        torch.testing.assert_close(module(data), nn.Sequential.forward(module, data))
