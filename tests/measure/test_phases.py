"""The phases of a training step, by a clock that its operations move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.study.stand_ins import Clock
from togi.measure.phases import REST, phases_ms

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
    expected = {"forward": FORWARD_S, "backward": backward_s, "optimizer": OPTIMIZER_S, REST: LOSS_S}
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
    x = torch.ones(1, 2)
    compiled(x)
    torch._dynamo.utils.counters.clear()
    found = phases_ms(lambda: compiled(x).sum().backward(), compiled)
    assert set(found) == {"backward", REST}
    assert not torch._dynamo.utils.counters["stats"]
