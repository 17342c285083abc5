"""Settings of the GPU's libraries hold for a call and are put back; their effect is proven where there is a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from togi.techniques import Applies, Refuses, conformance
from togi.techniques.precision.tf32 import Tf32
from togi.techniques.runtime.cudnn_benchmark import CudnnBenchmark, benchmarking
from togi.torch_internals.float32 import high_matmul_precision


def linear():
    return conformance.candidate_of(nn.Linear(4, 4), [torch.randn(2, 4)])


def conv():
    return conformance.candidate_of(nn.Conv2d(3, 4, 3), [torch.randn(1, 3, 8, 8)])


def fail():
    raise ValueError("no")


def test_cudnn_benchmark_is_put_back():
    before = torch.backends.cudnn.benchmark
    with benchmarking():
        assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark == before
    with pytest.raises(ValueError, match="no"), benchmarking():
        fail()
    assert torch.backends.cudnn.benchmark == before


def test_matmul_precision_is_put_back():
    before = torch.get_float32_matmul_precision()
    with high_matmul_precision():
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
    with pytest.raises(ValueError, match="no"), high_matmul_precision():
        fail()
    assert torch.get_float32_matmul_precision() == before


def test_they_are_for_gpus_only():
    assert CudnnBenchmark().devices == Tf32().devices == {"cuda"}
    assert not Tf32().exact


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


@pytest.mark.parametrize("technique", [CudnnBenchmark(), Tf32()], ids=lambda t: t.id)
def test_conformance(technique):
    conformance.check(technique, [linear, conv])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tf32_rounds_products_on_a_gpu():
    a, b = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    exact = a.double() @ b.double()
    plain = (a @ b - exact).abs().max()
    with high_matmul_precision():
        assert (a @ b - exact).abs().max() > 10 * plain
