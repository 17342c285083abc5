"""Padding and graphs are proven in IEEE float32 where eager multiplies in TensorFloat-32: shown without a device, by a
module that rounds as torch's flags say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.graphs import CapturedFunction, GraphError, Pool, Recorder, capture, proof
from togi.graphs.recording import Recording
from togi.torch_internals.float32 import tf32_operators

WIDTH = 32
SEEN: list[str] = []
"""The flag, in each call."""


def precision() -> str:
    return str(torch.backends.cudnn.conv.fp32_precision)


def short(tensor: Tensor) -> Tensor:
    """Ten bits of mantissa; gradients pass through."""
    return tensor + (((tensor.detach().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) - tensor).detach()


class Projects(nn.Module):
    """A product as CUDA's convolutions are; with a fault, another one where rows are padded."""

    def __init__(self, fault: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)))
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(precision())
        rounds = SEEN[-1] == "tf32" and x.dtype is torch.float32
        found = short(x) @ short(self.weight) if rounds else x @ self.weight
        return found * (1 + self.fault * (x == 0).all(1).any())


class KeepsFlags(Recorder):
    """Its graphs are replayed with the flags of the capture, as CUDA's are; and changed by ``fault``."""

    def __init__(self, fault: float = 0.0) -> None:
        super().__init__()
        self._fault = fault

    def capture(self, run: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Recording:
        recording, captured, setting = super().capture(run, inputs), precision(), torch.backends.cudnn.conv

        def replay() -> None:
            before, setting.fp32_precision = precision(), captured
            try:
                inputs[0].mul_(1 + self._fault)
                recording.replay()
            finally:
                setting.fp32_precision = before

        return replace(recording, replay=replay)


@pytest.fixture(autouse=True)
def rounding(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU is a device with TensorFloat-32, which the flags have by default."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(proof, "tf32_operators", lambda _: tf32_operators("cuda"))
    assert precision() == "tf32"
    SEEN.clear()
    yield
    assert precision() == "tf32", "flags are what they were"


def made(fn: Callable[..., Any], recorder: Recorder, **options: Any) -> CapturedFunction:
    generator = torch.Generator().manual_seed(1)
    samples = [torch.randn(n, WIDTH, generator=generator) for n in (3, 5)]
    return capture(fn, samples, sizes={3: 1, 5: 2, 8: 1}, memory=Pool("4MiB", recorder), limit=1, **options)


def test_a_fault_of_padding_does_not_hide_in_the_rounding_of_tensorfloat_32() -> None:
    """It is a quarter as large as that rounding."""
    with pytest.raises(GraphError, match=r"padding changes result 0: at size 3 padded to 8"):
        made(Projects(fault=1e-4), KeepsFlags())
    assert {each == "tf32" for each in SEEN} == {True, False}, "captured with it, proven without"


@pytest.mark.parametrize("gradients", [False, True])
def test_what_rounds_to_tensorfloat_32_and_is_right_is_captured(gradients: bool) -> None:
    fast = made(Projects(), KeepsFlags(), gradients=gradients)
    assert fast.plan().buckets == (8,)
    assert {each == "tf32" for each in SEEN} == {True, False}
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(fast(x), Projects()(x), rtol=0, atol=1e-5)
    assert fast.calls == {"replayed": 1}


def test_a_graph_that_is_another_than_the_call_is_refused() -> None:
    with pytest.raises(GraphError, match=r"the graph changes result 0: at size 3 .* in IEEE float32 off"):
        made(Projects(), KeepsFlags(fault=1e-2))


def test_without_tensorfloat_32_the_graph_is_all_that_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "tf32_operators", lambda _: ())
    with pytest.raises(GraphError, match="padding changes result 0"):
        made(Projects(), KeepsFlags(fault=1e-2))
