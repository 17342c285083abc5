"""The truth of a subject on a CUDA device, shown without one: the CPU computes, a module rounds where CUDA would."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from togi.decide.faithful import MAX_UNITS, limit_units
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.torch_internals import float32
from togi.verify import reference
from togi.verify.reference import make_truth
from togi.verify.truth import Truth, TruthFacts
from togi.verify.verdict import verify


class Rounding(nn.Module):
    """A product whose factors lose digits as CUDA's convolutions do: by torch's flags, and only in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        short = torch.backends.cudnn.conv.fp32_precision == "tf32" and x.dtype is torch.float32
        return tf32(x) @ tf32(self.weight) if short else x @ self.weight


def tf32(tensor: Tensor) -> Tensor:
    """To 10 bits of mantissa."""
    return ((tensor.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


X = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
INPUTS = [Inputs((X,)), Inputs((X * 2,))]


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``cuda`` is the CPU by another name; the list says where float64 ran."""
    ran: list[str] = []
    widened, inputs = reference.widened, reference.widened_inputs
    monkeypatch.setattr(reference, "widened", lambda module, device="cpu": ran.append(device) or widened(module))
    monkeypatch.setattr(reference, "widened_inputs", lambda one, *_: inputs(one))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    return ran


def truth_of(module: nn.Module, device: str = "cuda", **options: float) -> tuple[Truth, Signature]:
    signature = Signature.of(module, INPUTS, [torch.ones(16, 32)] * 2)
    return make_truth(module, INPUTS, signature, seed=0, samples=2, device=device, **options), signature


def test_the_unit_is_that_of_ieee_float32_and_what_eager_does_here_is_reported() -> None:
    before = float32.tf32_operators("cuda")
    truth, signature = truth_of(Rounding())
    assert truth.facts.answers[0].leaves[0].eager_rmse < 1e-6
    assert truth.facts.tf32_units > 100
    assert any("rounds factors to TensorFloat-32" in note for note in truth.notes)
    assert float32.tf32_operators("cuda") == before == ("convolution", "rnn")

    assert verify(Rounding(), truth, INPUTS, signature, seed=0, exact=True).faithful
    half = Rounding().half()
    call = lambda x: half(x.half()).float()  # noqa: E731
    assert not verify(call, truth, INPUTS, signature, seed=0, exact=False).faithful


class Several(Rounding):
    """Outputs that no TensorFloat-32 reaches next to one that it does."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = super().forward(x)
        return y, x.sin(), x.argmax(-1), y.argmax(-1)


FAULTS = {
    "a factor": lambda y, s, i, j: (y, s * (1 + 3e-4), i, j),
    "labels": lambda y, s, i, j: (y, s, i.roll(1), j),
    "labels that TensorFloat-32 moves": lambda y, s, i, j: (y, s, i, torch.zeros_like(j)),
    "a product": lambda y, s, i, j: (y * 1.01, s, i, j),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_tensorfloat_32_does_to_one_output_excuses_no_other(fault: str) -> None:
    module = Several()
    inputs = [Inputs((X * factor,)) for factor in (1, 2)]
    signature = Signature.of(module, inputs, [module(X)] * 2)
    truth = make_truth(module, inputs, signature, seed=0, samples=2, device="cuda")
    assert truth.facts.tf32_units > 100
    assert verify(module, truth, inputs, signature, seed=0, exact=True).faithful
    report = verify(lambda x: FAULTS[fault](*module(x)), truth, inputs, signature, seed=0, exact=True)
    assert not report.faithful
    old = json.loads(truth.facts.to_json())
    for leaf in (leaf for answer in old["answers"] for leaf in answer["leaves"]):
        del leaf["tf32_units"]
    before = Truth(facts=TruthFacts.model_validate_json(json.dumps(old)), truth=truth.truth, eager=truth.eager)
    assert verify(module, before, inputs, signature, seed=0, exact=True).faithful


def test_where_the_flags_say_float32_there_is_nothing_to_tell() -> None:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        truth, _ = truth_of(Rounding())
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert truth.facts.tf32_units == 0
    assert not any("TensorFloat" in note for note in truth.notes)
    assert limit_units(exact=True, tf32_units=0) == MAX_UNITS


def test_float64_runs_on_the_device_and_one_answer_is_compared_with_the_cpu(device: list[str]) -> None:
    truth, _ = truth_of(Rounding())
    assert device == ["cuda", "cpu"]
    assert truth.facts.precision == "float64"


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids)


def test_derived_indices_are_tried_on_the_cpu_before_the_device(device: list[str]) -> None:
    tried: list[int] = []
    embedding = Embedding()
    inputs = [Inputs((torch.tensor([1, 2]),)), Inputs((torch.tensor([3, 4]),)), Inputs((torch.tensor([8, 9]),))]
    signature = Signature.of(embedding, inputs[:2], [torch.ones(2, 4)] * 2)
    embedding.table.register_forward_pre_hook(lambda _, given: tried.append(int(given[0][0])))
    truth = make_truth(embedding, inputs, signature, seed=0, samples=1, device="cuda")
    assert truth.kept == (0, 1)
    assert tried[:4] == [1, 3, 3, 8], "a user's own sample once; a derived one first in float64 on the CPU"
    assert tried[4:8] == [1, 1, 3, 1], "and not again where the calls are repeated without the one that is left out"
    assert device.count("cpu") == 2, "one copy for all that are tried, one for the truth"
    assert any("derived input 3 is left out" in note for note in truth.notes)


@pytest.mark.parametrize(
    "error", [NotImplementedError("no CPU kernel"), RuntimeError("can't allocate memory"), MemoryError()]
)
def test_what_the_cpu_cannot_run_is_run_on_the_device(error: Exception) -> None:
    def on_the_cpu(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        if len(seen) == 1:  # the first derived input, in float64
            seen.append(given[0])
            raise error
        seen.append(given[0])

    seen: list[Tensor] = []
    embedding = Embedding()
    inputs = [Inputs((torch.tensor([1, 2]),)), Inputs((torch.tensor([3, 4]),))]
    signature = Signature.of(embedding, inputs, [torch.ones(2, 4)] * 2)
    embedding.table.register_forward_pre_hook(on_the_cpu)
    truth = make_truth(embedding, inputs, signature, seed=0, samples=1, device="cuda")
    assert truth.kept == (0, 1)
    assert not any("left out" in note for note in truth.notes)


def test_too_much_work_is_not_repeated_on_the_cpu(device: list[str]) -> None:
    truth, _ = truth_of(Rounding(), flops=1e13)
    assert device == ["cuda"]
    assert any("not compared with the CPU's" in note for note in truth.notes)


def test_the_cpu_serves_where_float64_does_not_fit_on_the_device(
    monkeypatch: pytest.MonkeyPatch, device: list[str]
) -> None:
    widened = reference.widened

    def refused(module: nn.Module, on: str) -> nn.Module:
        found = widened(module, on)
        if on == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    monkeypatch.setattr(reference, "widened", refused)
    truth, _ = truth_of(Rounding())
    assert device == ["cuda", "cpu"]
    assert (truth.facts.precision, truth.facts.fallback) == ("float64", "")


def test_where_the_device_differs_from_the_cpu_the_cpu_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that casts to float32 inside would otherwise make the device's own errors the truth."""
    run = reference._Making._run_in_float64

    def wrong(self: reference._Making, calls: Sequence[int], on: str) -> object:
        found = run(self, calls, on)
        if on == "cuda":
            found.leaves = [[leaf.float().double() * (1 + 1e-7) for leaf in leaves] for leaves in found.leaves]
        return found

    monkeypatch.setattr(reference._Making, "_run_in_float64", wrong)
    truth, _ = truth_of(Rounding())
    exact = X.double() @ Rounding().weight.detach().double()
    torch.testing.assert_close(truth.truth[0][0], exact, rtol=1e-12, atol=1e-12)
    assert any("the truth is the CPU's" in note for note in truth.notes)


def test_flags_are_what_they_were_whichever_interface_was_used() -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    settings = (cudnn.conv, cudnn.rnn, matmul, torch.backends.mkldnn.matmul)
    first = [setting.fp32_precision for setting in settings]
    try:
        for conv, product in (("tf32", "none"), ("ieee", "tf32"), ("tf32", "tf32")):
            cudnn.conv.fp32_precision, matmul.fp32_precision = conv, product
            before = [setting.fp32_precision for setting in settings]
            with float32.ieee_float32():
                assert float32.tf32_operators("cuda") == ()
            with float32.high_matmul_precision():
                assert "matmul" in float32.tf32_operators("cuda")
            assert [setting.fp32_precision for setting in settings] == before
    finally:
        torch.set_float32_matmul_precision("highest")
        for setting, value in zip(settings, first, strict=True):
            setting.fp32_precision = value
