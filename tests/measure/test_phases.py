"""The phases of a training step, by a clock that its operations move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.study.stand_ins import Clock
from togi.measure.phases import LOSS, REST, TOGETHER, phases_ms
from togi.torch_internals.modules import compile_calls

FORWARD_S, BACKWARD_S, LOSS_S, OPTIMIZER_S = 3.0, 5.0, 0.5, 2.0


class _Slow(torch.autograd.Function):
    """Forward and backward take their time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock) -> Tensor:
        ctx.clock = clock
        clock.now_s += FORWARD_S
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.clock.now_s += BACKWARD_S
        return gradient * 2, None


class Net(nn.Module):
    def __init__(self, clock: Clock, *, again: bool) -> None:
        super().__init__()
        self.first, self.last, self.clock, self.again = nn.Linear(4, 4), nn.Linear(4, 4), clock, again

    def block(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(_Slow.apply(self.first(x), self.clock))
        return out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.block, x, use_reentrant=False) if self.again else self.block(x)
        return out


class SlowSgd(torch.optim.SGD):
    clock: Clock

    def step(self, closure: Any = None) -> Any:
        self.clock.now_s += OPTIMIZER_S
        return super().step(closure)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("by", ["backward", "autograd.backward", "autograd.grad"])
def test_each_phase_has_its_time(by: str, again: bool) -> None:
    """What a checkpointed block computes again belongs to backward."""
    clock = Clock()
    net = Net(clock, again=again)
    optimizer = SlowSgd(net.parameters(), lr=0.1)
    optimizer.clock = clock

    def step() -> None:
        loss = net(torch.ones(2, 4)).sum()
        clock.now_s += LOSS_S
        if by == "backward":
            loss.backward()
        elif by == "autograd.backward":
            torch.autograd.backward(loss)
        else:
            torch.autograd.grad(loss, list(net.parameters()))
        optimizer.step()

    found = phases_ms(step, net, clock=clock)
    backward_s = BACKWARD_S + FORWARD_S * again
    expected = {"forward": FORWARD_S, LOSS: LOSS_S, "backward": backward_s, "optimizer": OPTIMIZER_S, REST: 0.0}
    assert found == pytest.approx({phase: 1e3 * seconds for phase, seconds in expected.items()})


def test_nothing_stays_behind_also_where_a_step_raises() -> None:
    clock, before = Clock(), (torch.autograd.backward, torch.autograd.grad)

    class Raises(nn.Module):
        def forward(self) -> None:
            clock.now_s += 1.0
            raise RuntimeError("no")

    module = Raises()
    with pytest.raises(RuntimeError, match="no"):
        phases_ms(module, module, clock=clock)
    assert (torch.autograd.backward, torch.autograd.grad) == before
    clock.now_s = 0.0
    with pytest.raises(RuntimeError, match="no"):
        module()
    assert clock.now_s == 1.0


def test_a_compiled_module_is_not_compiled_anew_to_be_timed() -> None:
    """Dynamo compiles again where a module has hooks."""
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    assert set(phases_without_compiling(lambda x: compiled(x).sum(), compiled)) == {TOGETHER, "backward", REST}


@pytest.mark.parametrize("blocks", [False, True])
def test_calls_of_what_was_compiled_in_place_are_forward(blocks: bool) -> None:
    module = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3)))
    if blocks:
        compile_calls(module[0], "eager", alike=module[1:])
    else:
        compile_calls(module, "eager")
    found = phases_without_compiling(lambda x: module(x).sum(), module)
    assert set(found) == {"forward", LOSS, "backward", REST}
    assert [*vars(module)].count("_compiled_call_impl") == (not blocks), "all is as it was"


def test_a_loss_that_is_compiled_with_the_forward_pass_is_timed_with_it() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    loss = torch.compile(lambda x: module(x).sum(), backend="eager")
    assert set(phases_without_compiling(loss, module)) == {TOGETHER, "backward", REST}


def phases_without_compiling(loss: Callable[[Tensor], Tensor], module: nn.Module) -> dict[str, float]:
    x = torch.ones(1, 2)
    loss(x).backward()  # type: ignore[no-untyped-call]
    torch._dynamo.utils.counters.clear()
    found = phases_ms(lambda: loss(x).backward(), module)  # type: ignore[no-untyped-call]
    assert not torch._dynamo.utils.counters["stats"]
    return found


def test_what_is_between_two_forward_passes_or_after_backward_is_no_loss() -> None:
    clock = Clock()
    net = Net(clock, again=False)

    def step() -> None:
        first = net(torch.ones(2, 4))
        clock.now_s += 10.0
        loss = (net(torch.ones(2, 4)) + first).sum()
        clock.now_s += LOSS_S
        loss.backward()
        clock.now_s += 20.0

    found = phases_ms(step, net, clock=clock)
    assert found[LOSS] == pytest.approx(1e3 * LOSS_S)
    assert found[REST] == pytest.approx(30e3)


def test_what_is_compiled_for_one_serves_those_that_are_alike() -> None:
    blocks = [nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(4)]
    torch._dynamo.utils.counters.clear()
    compile_calls(blocks[0], "eager", alike=blocks[1:])
    x = torch.ones(1, 2)
    for block in blocks:
        assert torch.equal(block(x), block.forward(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
