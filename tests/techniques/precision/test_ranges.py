"""Ranges of activations by percentile: counted input by input, and right whatever order they come in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnxruntime import InferenceSession

from togi.techniques.base import Options
from togi.techniques.conformance import candidate_of
from togi.techniques.precision.lowering.ranges import Counts
from togi.techniques.registry import technique

GENERATOR = np.random.default_rng(0)
BELLS = [GENERATOR.normal(size=20_000).astype(np.float32) for _ in range(20)]


def counted(*inputs: object, most: int = 1 << 20) -> Counts:
    counts = Counts()
    for values in inputs:
        counts.add(np.asarray(values, np.float32), most)
    return counts


def test_as_many_are_left_out_on_each_side() -> None:
    low, high = counted(*BELLS).percentiles()
    expected = np.quantile(np.concatenate(BELLS), [0.5e-5, 1 - 0.5e-5])
    assert (low, high) == pytest.approx(expected, abs=0.15)
    low, high = counted(*BELLS, [100.0]).percentiles()
    assert high < 6


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_order_of_inputs_and_their_scale_change_nothing(scale: float) -> None:
    """What comes later may lie far beyond: bins double in width, and their number stays the same."""
    given = [bell * scale * factor for bell, factor in zip(BELLS, np.geomspace(1e-3, 1, 20), strict=True)]
    one, other = counted(*given), counted(*reversed(given))
    assert len(one.counts) == len(other.counts) == len(Counts().counts)
    assert one.total == other.total == sum(map(len, BELLS))
    assert one.percentiles() == pytest.approx(other.percentiles(), rel=0.02)
    assert (one.low, one.high) == (other.low, other.high)


def test_a_rectified_activation_keeps_zero_as_its_end() -> None:
    rectified = counted(*(np.maximum(bell, 0) for bell in BELLS))
    low, high = rectified.percentiles()
    assert low == 0
    assert 3 < high <= rectified.high


@pytest.mark.parametrize("values", [[0.0] * 8, [3.0] * 8, [-3.0], [1e-30, 2e-30]])
def test_values_that_hardly_differ_have_a_range_that_holds_them(values: list[float]) -> None:
    low, high = counted(values).percentiles()
    assert low <= np.float32(min(values))
    assert high >= np.float32(max(values))


def test_what_is_not_finite_is_not_counted() -> None:
    counts = counted([np.nan, np.inf, -np.inf, 1.0, -2.0])
    assert (counts.low, counts.high, counts.total) == (-2.0, 1.0, 2)
    assert counted([np.nan]).total == 0


def test_of_many_values_some_from_all_places_are_counted_and_the_ends_of_all() -> None:
    counts = counted(np.linspace(-1, 1, 100_001), most=1000)
    assert 900 <= counts.total <= 1000
    assert (counts.low, counts.high) == (-1.0, 1.0)
    assert counts.percentiles() == pytest.approx((-1, 1), abs=0.01)


class Loud(torch.nn.Module):
    """One of many activations is far larger than all others, and hardly counts. Inputs have several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 64), torch.nn.Linear(64, 8)
        self.register_buffer("one", torch.eye(64)[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_loud = (x.amax(-1, keepdim=True) > 4).to(x.dtype)
        scores: torch.Tensor = self.last((self.first(x) + 500 * is_loud * self.one).sigmoid())
        return scores


def test_the_file_has_these_ranges_and_errs_less_on_most_inputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    loud = torch.randn(1, 20, 16).clamp(-3, 3)
    loud[0, 0, 0] = 5.0
    samples = [torch.randn(1, 20 + i % 7, 16).clamp(-3, 3) for i in range(250)] + [loud]
    module = Loud().eval()
    candidate = candidate_of(module, samples)
    errors, coarse = [], []
    plain: Options = {"how": "static"}
    for number, options in enumerate((plain, {**plain, "ranges": "percentile"})):
        lowered = technique("int8_onnxruntime").apply(candidate, options)
        program = technique("onnxruntime").apply(lowered, {"spinning": False}).program
        assert program is not None
        folder = tmp_path / str(number)
        folder.mkdir()
        program.save(folder)
        model = onnx.load(folder / "model.onnx")
        constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        steps = [float(constants[n.input[1]]) for n in model.graph.node if n.op_type == "QuantizeLinear"]
        coarse.append(sum(step > 1 for step in steps))
        session = InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        with torch.no_grad():
            pairs = [(torch.from_numpy(session.run(None, {name: x.numpy()})[0]), module(x)) for x in samples[:-1]]
        errors.append(sum(float((found - right).norm() / right.norm()) for found, right in pairs))
    assert coarse[1] < coarse[0]
    assert errors[1] < 0.5 * errors[0]


def test_what_is_returned_keeps_the_whole_range_of_all_inputs(tmp_path: Path) -> None:
    """The first input is the quietest."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).eval()
    samples = [0.01 * torch.randn(4, 16), *(torch.randn(4, 16) for _ in range(40))]
    lowered = technique("int8_onnxruntime").apply(
        candidate_of(module, samples), {"how": "static", "ranges": "percentile"}
    )
    program = technique("onnxruntime").apply(lowered, {"spinning": False}).program
    assert program is not None
    program.save(tmp_path)
    session = InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    with torch.no_grad():
        for x in samples[1:]:
            right = module(x)
            found = torch.from_numpy(session.run(None, {name: x.numpy()})[0])
            assert float((found - right).norm() / right.norm()) < 0.1


def test_ranges_are_for_convolutions() -> None:
    """MiniLM erred five times as much with them: what is large in a transformer counts."""
    candidate = candidate_of(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), [torch.randn(1, 3, 8, 8)])
    for functions, offered in (({"conv2d": 9, "linear": 1}, True), ({"conv2d": 1, "linear": 9}, False)):
        facts = candidate.facts.model_copy(update={"functions": functions})
        assert any("ranges" in options for options in technique("int8_onnxruntime").options(facts)) is offered
