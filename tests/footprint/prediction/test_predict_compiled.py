"""A compiled run predicted against what the CPU allocator really did, and what must not be left behind."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config as inductor
from torch import Tensor, nn
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache

from togi.core.errors import SubjectError
from togi.footprint.account.record import Category
from togi.footprint.prediction.cpu import predict_cpu
from togi.footprint.step import make_step
from togi.measure.memory import torch_allocator_peak_bytes
from togi.subject.inputs import Subject


class Mixed(nn.Module):
    """A convolution that is not fused, what is fused round it, dropout, and a reduction."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, given: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.norm(self.conv(given)))
        return self.head(nn.functional.dropout(hidden, 0.1, self.training).mean((2, 3)))


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.first(given).relu()
        torch._dynamo.graph_break()
        return self.second(hidden).relu()


class BranchesOnValues(Breaks):
    def forward(self, given: Tensor) -> Tensor:
        hidden = self.first(given)
        return self.second(hidden) if hidden.sum() > 0 else hidden


@pytest.mark.thorough
def test_the_prediction_is_exact_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real tensors, allocations and libraries; only the C++ of fused kernels, which takes none of torch's memory, is
    not built, because that takes a minute. benchmarks/memory_prediction.py --compile builds it."""
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_: lambda *_: None)
    subject = Subject(Mixed(), torch.randn(4, 3, 32, 32))
    found = predict_cpu(make_step(subject, train=True, optimizer="adam"), compile=True)
    step = make_step(subject, train=True, optimizer="adam")
    step.module.compile()
    with inductor.patch(force_disable_caches=True):
        step.run()
        step.run()
        real = torch_allocator_peak_bytes(step.run)
    torch._dynamo.reset()
    PyCodeCache.cache_clear()
    assert found.compiled
    assert real is not None
    assert found.peak_bytes == found.baseline_bytes + real
    assert sum(found.by_category.values()) == found.peak_bytes
    assert found.by_category[Category.ACTIVATION] > 0


def test_it_needs_less_than_without() -> None:
    subject = Subject(nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Sigmoid(), nn.GELU()), torch.randn(256, 8))
    compiled = predict_cpu(make_step(subject, train=True), compile=True)
    assert compiled.peak_bytes < predict_cpu(make_step(subject, train=True)).peak_bytes
    assert compiled.peak.line.startswith("compiled, ")


def test_nothing_is_left_of_the_stand_ins() -> None:
    torch.manual_seed(0)
    module, given = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8)
    expected = module(given)
    predict_cpu(make_step(Subject(module, given), train=False), compile=True)
    torch.testing.assert_close(torch.compile(module)(given), expected)
    torch._dynamo.reset()


def test_a_batch_that_does_not_fit_this_machine() -> None:
    subject = Subject(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 8)), torch.randn(2, 1024))
    assert predict_cpu(make_step(subject, train=True), batch=1 << 24, compile=True).peak_bytes > 200 << 30


def test_graph_breaks_are_reported() -> None:
    found = predict_cpu(make_step(Subject(Breaks(), torch.randn(4, 8)), train=True), compile=True)
    assert any("made 2 graphs" in note for note in found.notes)


def test_what_depends_on_values_is_refused() -> None:
    with pytest.raises(SubjectError, match="depends on values"):
        predict_cpu(make_step(Subject(BranchesOnValues(), torch.randn(4, 8)), train=False), compile=True)


def test_a_model_that_cannot_be_compiled_says_why() -> None:
    with pytest.raises(SubjectError, match=r"torch\.compile fails on it.*same reduction dim"):
        predict_cpu(make_step(Subject(Breaks(), torch.randn(4, 9)), train=False), compile=True)
