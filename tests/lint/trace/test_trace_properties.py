"""Whatever is computed under simulation has the plain run's values, and lies where a GPU would have it."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from togi.lint.trace.placement import CUDA, on_cuda, place
from togi.lint.trace.recorder import EventRecorder
from togi.lint.trace.watching import watching

STEPS = {
    "sum": lambda x: x.sum(0, keepdim=True) + x,
    "transpose": lambda x: x.T.contiguous().T,
    "mask": lambda x: torch.where(x > 0, x, -x),
    "index": lambda x: x[x[:, 0].argsort()],
    "write": lambda x: x.clone().index_fill_(0, torch.zeros(1, dtype=torch.long, device=x.device), 2.0),
    "half": lambda x: x.half().float(),
    "view": lambda x: x.reshape(-1).view(x.shape),
    "stack": lambda x: torch.stack([x, x]).mean(0),
    "new": lambda x: x + x.new_ones(x.shape[1]) + torch.zeros_like(x),
    "scalar": lambda x: x * x.max().item(),
    "round trip": lambda x: x.cpu().to(x.device),
    "in place": lambda x: x.clone().mul_(2).clamp_(-3, 3),
    "split": lambda x: torch.cat(x.split(1)[::-1]),
    "softmax": lambda x: torch.log_softmax(x, -1),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x) @ x,
    "random": lambda x: x + torch.rand_like(x),
}
READS = {"scalar", "round trip"}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=6), st.integers(0, 3), st.booleans())
def test_values_device_and_waits_of_a_chain(names: list[str], seed: int, inference: bool) -> None:
    torch.manual_seed(seed)
    start = torch.randn(3, 4)
    torch.manual_seed(seed)
    plain = start.clone()
    for name in names:
        plain = STEPS[name](plain)
    recorder = EventRecorder()
    recorder.armed = True
    watched = place(start.clone(), CUDA)
    with watching(recorder, simulated=True), torch.inference_mode(inference):
        torch.manual_seed(seed)
        for name in names:
            watched = STEPS[name](watched)
        assert on_cuda(watched)
    torch.testing.assert_close(watched, plain, rtol=0, atol=0, equal_nan=True)
    assert any(event.waits for event in recorder.events) == bool(READS & set(names))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(sorted(set(STEPS) - READS - {"random"})), max_size=4), st.integers(0, 3))
def test_gradients_of_a_chain(names: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    start = torch.randn(3, 4)

    def gradient(leaf: torch.Tensor) -> torch.Tensor:
        leaf.requires_grad_()
        value = leaf
        for name in names:
            value = STEPS[name](value)
        value.sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    plain = gradient(start.clone())
    recorder = EventRecorder()
    recorder.armed = True
    with watching(recorder, simulated=True):
        watched = gradient(place(start.clone(), CUDA))
        assert watched.is_cuda
    torch.testing.assert_close(watched, plain, rtol=0, atol=0, equal_nan=True)
    assert not [event for event in recorder.events if event.waits]
