"""The prediction for a CUDA device that is not here: what must hold whatever the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from togi.core.proven import MarkedPart, proofs
from togi.footprint.prediction import cuda
from togi.footprint.prediction.cuda import predict_cuda
from togi.footprint.prediction.cuda_kernels import CudaKernels, attention_backend
from togi.footprint.prediction.fake_run import record
from togi.footprint.prediction.predict import prediction_of
from togi.footprint.prediction.record import Prediction
from togi.footprint.step import make_step
from togi.subject.inputs import Subject

MIB = 1 << 20


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)

    def forward(self, given: Tensor) -> Tensor:
        q, k, v = self.qkv(given).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(256, 256), nn.Dropout(0.5)

    def forward(self, given: Tensor) -> Tensor:
        return self.dropout(self.linear(given))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3))

    def forward(self, given: Tensor) -> Tensor:
        return self.layers(given)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(16, 24, num_layers=2, batch_first=True, bidirectional=True)  # type: ignore[call-arg]

    def forward(self, given: Tensor) -> Tensor:
        return self.layer(given)[0]


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "attention": lambda: (Attention(), torch.randn(2, 128, 64)),
    "convolutions": lambda: (Convolutions(), torch.randn(2, 3, 32, 32)),
    "lstm": lambda: (Recurrent(nn.LSTM), torch.randn(4, 20, 16)),
    "gru": lambda: (Recurrent(nn.GRU), torch.randn(4, 20, 16)),
    "rnn": lambda: (Recurrent(nn.RNN), torch.randn(4, 20, 16)),
}


def predicted(subject: Subject, **options: object) -> Prediction:
    return predict_cuda(make_step(subject, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(("capability", "cublas"), [((8, 6), 8320 << 10), ((9, 0), 32 << 20), ((10, 0), 32 << 20)])
def test_what_is_known_of_a_device_that_is_here_is_no_range(
    capability: tuple[int, int], cublas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert [level.cublas_bytes for level in cuda.workspaces()] == [8320 << 10, 8320 << 10, 32 << 20]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.version.hip", None)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    assert [level.cublas_bytes for level in cuda.workspaces()] == [cublas] * 3
    ends = [level.convolution_x for level in cuda.workspaces()]
    assert ends == [0.0, 1.0, 2.0], "what the device decides by itself stays a range"


PROVEN = "cuda" in proofs().get(MarkedPart.PREDICTION_FOR_CUDA, {})
SOON = {("attention", True), ("convolutions", False), ("lstm", True), ("gru", True), ("rnn", False)}


@pytest.mark.parametrize(
    ("name", "train"),
    [
        pytest.param(name, train, marks=() if (name, train) in SOON else pytest.mark.thorough)
        for name in MODELS
        for train in (False, True)
    ],
)
def test_order_of_what_is_reported(name: str, train: bool) -> None:
    found = predicted(Subject(*MODELS[name]()), train=train, optimizer="adam" if train else "none")
    assert found.baseline_bytes <= found.low_bytes <= found.peak_bytes <= found.high_bytes
    assert found.reserved_low_bytes <= found.reserved_bytes <= found.reserved_high_bytes
    assert found.peak_bytes <= found.reserved_bytes
    assert found.reserved_bytes % (2 * MIB) == 0
    assert sum(found.by_category.values()) == found.peak_bytes
    assert min(found.by_category.values()) > 0
    assert any("Not yet proven on a device" in note for note in found.notes) is not PROVEN
    assert any("CUDNN_CONV_WSCAP_DBG" in note for note in found.notes) == (name == "convolutions")


@pytest.mark.parametrize(
    ("dtype", "backend"),
    [("bf16", "flash"), pytest.param("fp16", "flash", marks=pytest.mark.thorough), ("fp32", "efficient")],
)
def test_attention_is_linear_in_the_sequence(dtype: str, backend: str) -> None:
    """Fused kernels never make the matrix of weights: doubling the sequence doubles the need."""
    needs = []
    for rows in (1 << 15, 1 << 16):
        found = predicted(Subject(Attention(), torch.randn(1, rows, 64)), train=True, dtype=dtype)
        needs.append(found.low_bytes)
        assert any(backend in note for note in found.notes)
    assert needs[1] <= 2 * needs[0]


def test_attention_that_no_fused_kernel_takes_is_quadratic() -> None:
    q = torch.randn(1, 2, 512, 30)
    assert attention_backend(q, q, q, None) == "math"
    with FakeTensorMode() as mode, CudaKernels() as kernels:
        fake = mode.from_tensor(q)
        functional.scaled_dot_product_attention(fake, fake, fake)
    assert kernels.attention == {"math": 1}


@pytest.mark.parametrize(
    ("dtype", "masked", "backend"),
    [
        (torch.bfloat16, False, "flash"),
        (torch.bfloat16, True, "efficient"),
        (torch.float32, False, "efficient"),
        (torch.float64, False, "math"),
    ],
)
def test_choice_of_attention(dtype: torch.dtype, masked: bool, backend: str) -> None:
    q = torch.zeros(1, 2, 16, 32, dtype=dtype)
    assert attention_backend(q, q, q, torch.zeros(16, 16) if masked else None) == backend


def test_dropout_keeps_one_byte_an_element() -> None:
    step = make_step(Subject(Dropped().train(), torch.randn(1024, 256)), train=True)
    recording = record(step, around=CudaKernels())
    masks = [lifetime.bytes for lifetime in recording.lifetimes if "native_dropout" in lifetime.op]
    assert sorted(set(masks)) == [1024 * 256, 1024 * 256 * 4]


def test_optimizers_treat_all_parameters_at_once() -> None:
    """As torch's do on CUDA by default: a whole model of temporaries, which one parameter at a time does not need."""
    module = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])
    found = predicted(Subject(module, torch.randn(1, 512)), train=True, optimizer="adam")
    parameters = sum(p.nbytes for p in module.parameters())
    assert found.low_bytes >= 5 * parameters  # parameters, gradients, two states, and one temporary
    assert "_foreach" in found.peak.op


def test_largest_batch_fits_and_one_more_does_not() -> None:
    subject = Subject(nn.Linear(256, 1024), torch.randn(4, 256))
    limit = 900 * MIB
    found = prediction_of(subject, device="cuda", train=True, memory_bytes=limit)
    assert found.largest_batch is not None
    assert found.batches[0].batch == found.largest_batch > 1
    assert [need.batch for need in found.batches[:2]] == [found.largest_batch, found.largest_batch // 2]
    assert found.batches[0].device_high_bytes <= limit
    more = prediction_of(
        subject, device="cuda", train=True, batch=found.largest_batch + max(1, found.largest_batch // 64)
    )
    assert more.device_high_bytes > limit


def test_a_device_on_which_no_batch_fits_is_reported() -> None:
    found = prediction_of(Subject(nn.Linear(8, 8), torch.randn(4, 8)), device="cuda", train=False, memory_bytes=1)
    assert found.largest_batch == 0
    assert found.batches[0].batch == 1


def test_a_batch_far_beyond_this_machine() -> None:
    subject = Subject(nn.Sequential(nn.Linear(1024, 4096), nn.GELU()), torch.randn(2, 1024))
    found = prediction_of(subject, device="cuda", train=True, batch=1 << 24)
    assert found.peak_bytes > 400 << 30
