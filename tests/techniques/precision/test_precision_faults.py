"""No fault that is planted into a file in 8 bits, or into its calibration, passes a budget that the file keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from torch import Tensor, nn

from tests.techniques.precision.precision_faults import FAULTS, Edit, QuantizedFile
from tests.techniques.precision.precision_subjects import MACHINE
from togi.core.choices import AccuracyMeasure
from togi.core.judging import Judging
from togi.core.records import Accuracy
from togi.decide.paired import Standing, standing
from togi.graph.candidate import Candidate
from togi.subject.inputs import samples_of
from togi.subject.validation import Validation
from togi.techniques.conformance import candidate_of
from togi.techniques.registry import technique
from togi.verify.accuracy import answer_once, judged, known_answers

pytestmark = pytest.mark.thorough
CLASSES, SIZE = 10, 16
MARGIN = 1.25
"""The budget is this many times what the file itself is proven to err at most."""


@functools.cache
def patterns() -> Tensor:
    """One for each class, most of it in red."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(CLASSES, 3, 4, 4, generator=generator) * torch.tensor([1.0, 0.5, 0.2])[:, None, None]
    return nn.functional.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear")


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    noise = 0.15 * torch.randn(count, 3, SIZE, SIZE, generator=generator)
    return (patterns()[labels] + noise).clamp(0, 1), labels


@functools.cache
def trained() -> nn.Module:
    """One depthwise channel has weights 64 times as large, on activations as much smaller, and counts little."""
    torch.manual_seed(0)
    depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
    module = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), depthwise, nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(288, CLASSES),
    )  # fmt: skip
    optimizer, (given, labels) = torch.optim.AdamW(module.parameters(), 4e-3), pictures(1000, 1)
    for rows in torch.randperm(1000).repeat(6).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(given[rows]), labels[rows]).backward()
        optimizer.step()
    first, last = module[0], module[4]
    with torch.no_grad():
        first.weight[0] /= 64  # type: ignore[operator]
        first.bias[0] /= 64  # type: ignore[operator]
        depthwise.weight[0] *= 64
        last.weight[:, 0] *= 0.02  # type: ignore[operator]
    return module.eval()


@functools.cache
def validation() -> Validation:
    return Validation(list(pictures(3000, 2)[0].split(1)))


def calibrated_on(given: Tensor) -> Candidate:
    candidate = candidate_of(trained(), [pictures(1, 4)[0]])
    facts = candidate.facts.model_copy(
        update={"machine": MACHINE.model_copy(update={"cpu_flags": ("avx2", "avx512_vnni"), "onednn_limit": ""})}
    )
    return replace(candidate, facts=facts, calibration=samples_of(list(given.split(1))))


def quantized(given: Tensor, folder: Path) -> onnx.ModelProto:
    """The file, from this calibration data."""
    candidate = technique("int8_onnxruntime").apply(calibrated_on(given), {"how": "static"})
    program = technique("onnxruntime").apply(candidate, {"spinning": False}).program
    assert program is not None
    folder.mkdir()
    program.save(folder)
    return onnx.load(folder / "model.onnx")


def right_calibration() -> Tensor:
    return pictures(100, 3)[0]


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    return quantized(right_calibration(), tmp_path_factory.mktemp("right") / "files")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Tensor]:
    folder = tmp_path_factory.mktemp("answers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOGI_HOME", str(folder / "home"))
        answer_once(trained(), validation(), folder, seed=0, device="cpu")
    return known_answers(folder, validation())


@pytest.fixture(scope="module")
def budget(right: onnx.ModelProto, answers: list[Tensor]) -> float:
    high = accuracy(call_of(right), answers, 1.0).drop.high
    assert high < 0.1
    return MARGIN * high


def call_of(model: onnx.ModelProto) -> Callable[[Tensor], Tensor]:
    """As it is computed, without what an optimizer would fold away before."""
    options = SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
    session = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def accuracy(call: Callable[[Tensor], Tensor], answers: list[Tensor], max_drop: float) -> Accuracy:
    judging = Judging(measure=AccuracyMeasure.RMS, max_drop=max_drop)
    return judged(call, validation(), answers, judging, confirmation=True, seed=0, device="cpu")


def passes(model: onnx.ModelProto, answers: list[Tensor], budget: float) -> bool:
    try:
        call = call_of(model)
    except Exception:  # a file that its engine refuses is a line of the report
        return False
    return standing(accuracy(call, answers, budget).drop, budget) is Standing.PROVEN


def test_the_file_itself_keeps_the_budget(right: onnx.ModelProto, answers: list[Tensor], budget: float) -> None:
    assert passes(right, answers, budget)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_in_the_file_does_not(
    fault: Edit, right: onnx.ModelProto, answers: list[Tensor], budget: float
) -> None:
    planted = onnx.ModelProto()
    planted.CopyFrom(right)
    fault(QuantizedFile(planted))
    assert planted != right
    assert not passes(planted, answers, budget)


WRONG_CALIBRATION: dict[str, Callable[[Tensor], Tensor]] = {
    "in BGR": lambda x: x.flip(1),
    "from 0 to 255": lambda x: x * 255,
    "divided by 255 twice": lambda x: x / 255,
    "black pictures": torch.zeros_like,
    "noise": lambda x: torch.randn(x.shape, generator=torch.Generator().manual_seed(0)),
    "faded pictures": lambda x: 0.5 * x,
    "one picture of one class": lambda x: 0.25 * x[:1],
    "negatives of the pictures": lambda x: 0.3 * (1 - x),
}


@pytest.mark.parametrize("wrong", WRONG_CALIBRATION.values(), ids=WRONG_CALIBRATION)
def test_wrong_calibration_data_do_not(
    wrong: Callable[[Tensor], Tensor], answers: list[Tensor], budget: float, tmp_path: Path
) -> None:
    assert not passes(quantized(wrong(right_calibration()), tmp_path / "files"), answers, budget)


def test_a_saturating_kernel_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without VNNI clips sums of two products of 8 bits to 16 (``vpmaddubsw``). The same emulation without
    clipping keeps the budget."""
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    generator = torch.Generator().manual_seed(0)
    weights, rows = torch.rand(CLASSES, 64, generator=generator), torch.rand(2000, 64, generator=generator)
    module = nn.Linear(64, CLASSES, bias=False)
    with torch.no_grad():
        module.weight.copy_(weights)
    given = Validation(list(rows.split(1)))
    answer_once(module, given, tmp_path, seed=0, device="cpu")
    known = known_answers(tmp_path, given)
    scales = weights.amax(1).numpy() / 127
    stored = np.round(weights.numpy() / scales[:, None]).astype(int)

    def drop(most: int) -> Standing:
        def call(x: Tensor) -> Tensor:
            values = np.round(x.numpy() * 255).astype(int)
            products = (values[:, None] * stored[None]).reshape(len(values), CLASSES, -1, 2).sum(-1)
            sums = np.clip(products, -most, most - 1).sum(-1)
            return torch.from_numpy((sums * scales / 255).astype(np.float32))

        judging = Judging(measure=AccuracyMeasure.RMS, max_drop=0.02)
        found = judged(call, given, known, judging, confirmation=True, seed=0, device="cpu")
        return standing(found.drop, 0.02)

    assert drop(2**31) is Standing.PROVEN
    assert drop(2**15) is not Standing.PROVEN


def test_so_many_faults_are_planted() -> None:
    assert len(FAULTS) + len(WRONG_CALIBRATION) + 1 >= 60, "one is the kernel that saturates"
