"""Results that are lent: valid within their block, an error after it, never overwritten; weights that moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.graphs import CapturedFunction, GraphWarning, Pool, Recorder, capture

SAMPLES = [torch.ones(3, 4), torch.ones(5, 4)]


def made(fn: Callable[..., Any] = torch.neg, **options: Any) -> CapturedFunction:
    return capture(fn, SAMPLES, sizes=[3, 5, 8], memory=Pool("1MiB", Recorder(graph_bytes=10_000)), **options)


def test_results_are_lent_until_the_block_ends() -> None:
    fast, x = made(lambda x: {"a": x + 1, "b": [x * 2]}), torch.arange(16.0).reshape(4, 4)
    with fast.lend(x) as out:
        torch.testing.assert_close(out, {"a": x + 1, "b": [x * 2]}, rtol=0, atol=0)
        row, kept = out["a"][1], out["a"].clone()
        with pytest.warns(GraphWarning, match=r"results are lent until the block of lend\(\) ends"):
            fast(-x)
        assert torch.equal(out["a"], kept), "not overwritten"
    assert fast.calls["replayed"] == 1
    for use in (lambda: out["a"].sum(), lambda: row + 1, lambda: out["b"][0].tolist(), lambda: out["a"].copy_(x)):
        with pytest.raises(RuntimeError, match=r"was lent \(togi.graphs, lend\), and its block has ended"):
            use()
    assert torch.equal(fast(x)["a"], kept)
    assert fast.calls["replayed"] == 2


def test_a_lease_ends_with_an_error_too() -> None:
    fast = made()
    with pytest.raises(KeyError), fast.lend(SAMPLES[0]) as out:
        raise KeyError
    with pytest.raises(RuntimeError, match="has ended"):
        out.sum()
    assert fast(SAMPLES[0]).sum() == -12


def test_what_no_graph_serves_is_the_callers_own() -> None:
    fast = made()
    with pytest.warns(GraphWarning, match="above the largest"), fast.lend(torch.ones(9, 4)) as out:
        fast(SAMPLES[0])
    assert out.sum() == -36
    assert fast.calls["replayed"] == 1


def test_backward_does_not_write_what_is_lent() -> None:
    weight = torch.ones(4, requires_grad=True)
    fast = made(lambda x: x * weight, gradients=True)
    loss = fast(SAMPLES[0]).sum()
    with torch.no_grad(), fast.lend(SAMPLES[1] * 7) as out:
        with pytest.warns(GraphWarning, match="results are lent"):
            loss.backward()
        assert out.sum() == 7 * 20
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0] * 4


def moved(model: nn.Sequential) -> Any:
    model[0].weight.data = model[0].weight.data.clone()


def assigned(model: nn.Sequential) -> Any:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def rebound(model: nn.Sequential) -> Any:
    model[1].running_mean = torch.ones(2)


@pytest.mark.parametrize(("move", "name"), [(moved, "0.weight"), (assigned, "0.weight"), (rebound, "1.running_mean")])
def test_weights_that_moved_since_the_capture_are_named(move: Callable[[Any], Any], name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).eval()
    with torch.no_grad():
        fast = made(model)
        model[0].weight.mul_(2)  # in place: the graph reads it
        fast(SAMPLES[0])
        move(model)
        with pytest.warns(GraphWarning, match=f"{name} is not where it was at the capture"):
            found: Tensor = fast(SAMPLES[0])
        torch.testing.assert_close(found, model(SAMPLES[0]))
    assert fast.calls["replayed"] == 1
