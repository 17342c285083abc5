"""Settings of the GPU's libraries hold for a call and are put back; their effect is proven where there is a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from togi.techniques import Applies, Refuses, all_techniques, compatible, conformance, technique
from togi.techniques.precision.fp16_accumulation import Fp16Accumulation
from togi.techniques.precision.tf32 import Tf32
from togi.techniques.runtime.cudnn_benchmark import CudnnBenchmark
from togi.techniques.switches import switched_on
from togi.torch_internals.float32 import high_matmul_precision


def linear():
    return conformance.candidate_of(nn.Linear(4, 4), [torch.randn(2, 4)])


def conv():
    return conformance.candidate_of(nn.Conv2d(3, 4, 3), [torch.randn(1, 3, 8, 8)])


def fail():
    raise ValueError("no")


@pytest.mark.parametrize(
    ("backend", "name"),
    [(torch.backends.cudnn, "benchmark"), (torch.backends.cuda.matmul, "allow_fp16_accumulation")],
    ids=["algorithms of cuDNN", "sums in float16"],
)
def test_a_switch_is_put_back(backend: Any, name: str) -> None:
    before = getattr(backend, name)
    with switched_on(backend, name):
        assert getattr(backend, name)
    assert getattr(backend, name) == before
    with pytest.raises(ValueError, match="no"), switched_on(backend, name):
        fail()
    assert getattr(backend, name) == before


def test_matmul_precision_is_put_back():
    before = torch.get_float32_matmul_precision()
    with high_matmul_precision():
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
    with pytest.raises(ValueError, match="no"), high_matmul_precision():
        fail()
    assert torch.get_float32_matmul_precision() == before


def test_sums_of_partial_sums_in_16_bits_are_torchs_default():
    """So there is no technique for them: plain eager has them."""
    matmul = torch.backends.cuda.matmul
    assert matmul.allow_fp16_reduced_precision_reduction
    assert matmul.allow_bf16_reduced_precision_reduction


class Settings(nn.Module):
    """Answers by what it is called with, and in which setting."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=dtype))
        self.seen = []

    def forward(self, x):
        self.seen.append((self.weight.dtype, x.dtype, torch.backends.cuda.matmul.allow_fp16_accumulation))
        return x * self.weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float16_sums_are_for_what_is_in_float16_or_can_be_cast_to_it(dtype):
    start = conformance.candidate_of(Settings(dtype), [torch.ones(2, 4, dtype=dtype)])
    facts = start.facts.model_copy(update={"device": "cuda"})
    if dtype is torch.bfloat16:
        assert isinstance(Fp16Accumulation().applies(facts), Refuses)
        return
    assert Fp16Accumulation().applies(facts) == Applies()
    offered = [options["how"] for options in Fp16Accumulation().options(facts)]
    assert offered == (["keep"] if dtype is torch.float16 else ["cast", "autocast"])
    applied = Fp16Accumulation().apply(start, {"how": offered[0]})
    call, seen = applied.runnable(), next(m for m in applied.module.modules() if isinstance(m, Settings)).seen
    seen.clear()
    assert call(*start.flat_samples()[0]).dtype == dtype, "as the original answers"
    assert seen == [(torch.float16, torch.float16, True)]
    assert not torch.backends.cuda.matmul.allow_fp16_accumulation


def test_a_saved_program_in_float16_is_not_cast_again():
    start = linear()
    loaded = start.with_(module=nn.Identity(), samples=(), program=technique("eager").apply(start, {}).program)
    applied = Fp16Accumulation().apply(loaded, {"how": "cast"})
    assert isinstance(applied.module, nn.Identity)
    assert len(applied.contexts) == 1


def test_float16_sums_are_asked_for_alone_and_of_torch():
    known = all_techniques()
    for other in ("fp16", "bf16", "onnxruntime", "torch_tensorrt"):
        assert not compatible([known["fp16_accumulation"], known[other]])
    for other in ("cuda_graph", "torch_compile", "aot_inductor"):
        assert compatible([known["fp16_accumulation"], known[other]])


def test_they_are_for_gpus_only():
    assert CudnnBenchmark().devices == Tf32().devices == Fp16Accumulation().devices == {"cuda"}
    assert not Tf32().exact
    assert not Fp16Accumulation().exact


def test_they_refuse_models_without_effect():
    assert isinstance(CudnnBenchmark().applies(linear().facts), Refuses)
    assert isinstance(CudnnBenchmark().applies(conv().facts), Applies)
    half = conformance.candidate_of(nn.Linear(4, 4).bfloat16(), [torch.randn(2, 4).bfloat16()]).facts
    assert isinstance(Tf32().applies(half), Refuses)
    assert isinstance(Tf32().applies(linear().facts), Applies)
    already = linear().facts.model_copy(update={"tf32": ("convolution", "matmul")})
    assert isinstance(Tf32().applies(already), Refuses)


def test_engines_with_a_switch_of_their_own_are_told_of_tf32():
    assert Tf32().configure(linear(), {}).facts.tf32 == ("matmul",)


@pytest.mark.parametrize("tested", [CudnnBenchmark(), Tf32(), Fp16Accumulation()], ids=lambda t: t.id)
def test_conformance(tested):
    conformance.check(tested, [linear, conv])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tf32_rounds_products_on_a_gpu():
    a, b = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    exact = a.double() @ b.double()
    plain = (a @ b - exact).abs().max()
    with high_matmul_precision():
        assert (a @ b - exact).abs().max() > 10 * plain


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_float16_sums_are_worse_on_a_gpu():
    a, b = (torch.rand(512, 4096, device="cuda").half() for _ in range(2))
    exact = a.double() @ b.double().T
    plain = (a @ b.T - exact).abs().mean()
    with switched_on(torch.backends.cuda.matmul, "allow_fp16_accumulation"):
        assert (a @ b.T - exact).abs().mean() > 2 * plain
