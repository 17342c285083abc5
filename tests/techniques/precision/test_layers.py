"""Layers taken out of 8 bits and put back: with one calibration each is measured as if it were quantized alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.techniques.precision.precision_subjects import MACHINE
from togi.core.choices import OperatorKind
from togi.core.records import LayerPrices
from togi.core.report import Report
from togi.graph.candidate import Candidate
from togi.study.layer_prices import measure_layers
from togi.study.price_records import LayersRequest
from togi.subject.inputs import Subject
from togi.techniques.conformance import candidate_of
from togi.techniques.precision.lowering.layers import QuantizedLayers
from togi.techniques.precision.lowering.quantization import quantize_openvino

pytestmark = pytest.mark.thorough
pytest.importorskip("nncf")


class Net(nn.Module):
    """One of its layers has a weight that leaves nothing of the others in 8 bits; two branches are added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.depthwise = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.fragile, self.last = nn.Conv2d(16, 16, 1), nn.Linear(16, 8)
        with torch.no_grad():
            self.fragile.weight[:, 0] = 40.0  # in each channel, on what is always zero

    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu()
        hidden = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, 1:]], 1)
        hidden = self.fragile(hidden) + self.depthwise(hidden)
        scores: torch.Tensor = self.last(hidden.relu().mean((2, 3)))
        return scores


def candidate() -> Candidate:
    torch.manual_seed(0)
    samples = [(torch.rand(1, 3, 16, 16), torch.zeros(1)) for _ in range(12)]
    return on_vnni(candidate_of(Net().eval(), samples))


def on_vnni(found: Candidate) -> Candidate:
    machine = MACHINE.model_copy(update={"cpu_flags": ("avx2", "avx512_vnni"), "onednn_limit": ""})
    return replace(found, facts=found.facts.model_copy(update={"machine": machine}))


@pytest.fixture(scope="module")
def layers() -> QuantizedLayers:
    given = candidate()
    return QuantizedLayers(given, transformer=False, inputs=given.flat_samples())


def test_the_fragile_layer_is_the_one_without_which_the_error_falls(layers: QuantizedLayers) -> None:
    kinds = [OperatorKind.FIRST, OperatorKind.POINTWISE, OperatorKind.DEPTHWISE, OperatorKind.LAST]
    assert sorted(layers.kinds.values()) == sorted(kinds)
    whole, _ = layers.error_and_ms()
    kept = {kind: layers.error_and_ms(kept=[name])[0] for name, kind in layers.kinds.items()}
    alone = {kind: layers.error_and_ms(alone=name)[0] for name, kind in layers.kinds.items()}
    assert min(kept, key=lambda kind: kept[kind]) is OperatorKind.POINTWISE
    assert kept[OperatorKind.POINTWISE] < 0.5 * whole
    assert max(alone, key=lambda kind: alone[kind]) is OperatorKind.POINTWISE
    assert all(error > 0 for error in alone.values())


def test_with_all_layers_in_floating_point_nothing_but_the_sum_is_rounded(layers: QuantizedLayers) -> None:
    whole, _ = layers.error_and_ms()
    none, ms = layers.error_and_ms(kept=layers.kinds)
    assert none < 0.2 * whole
    assert ms > 0


def test_what_was_taken_out_is_put_back(layers: QuantizedLayers) -> None:
    before, _ = layers.error_and_ms()
    for name in layers.kinds:
        layers.error_and_ms(kept=[name])
        layers.error_and_ms(alone=name)
    assert layers.error_and_ms()[0] == before


class Shared(nn.Module):
    """Two products read the same values in another form, one of which is so large that 8 bits hold nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(32, 16, bias=False), nn.Linear(32, 16, bias=False)
        with torch.no_grad():
            for layer in (self.one, self.other):
                layer.weight[:, 0] = 0.0

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.relu().reshape(x.shape[0], 8, 32)
        return self.one(rows), self.other(rows)


def test_layers_that_read_the_same_values_in_another_form_are_taken_out_one_by_one() -> None:
    samples = [torch.rand(1, 256, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    for sample in samples:
        sample[:, ::32] = 1000.0
    given = on_vnni(candidate_of(Shared().eval(), samples))
    both = QuantizedLayers(given, transformer=False, inputs=given.flat_samples())
    assert len(both.kinds) == 2
    whole, _ = both.error_and_ms()
    assert both.error_and_ms(kept=both.kinds)[0] < 0.1 * whole
    for name in both.kinds:
        assert both.error_and_ms(kept=[name])[0] > 0.5 * whole, "the other one still reads what is rounded"
        assert both.error_and_ms(alone=name)[0] > 0.5 * whole


def test_calibration_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def counted(*args: Any, **given: Any) -> Any:
        made.append(args)
        return quantize_openvino(*args, **given)

    monkeypatch.setattr("togi.techniques.precision.lowering.layers.quantize_openvino", counted)
    found = measured(60.0)
    assert len(made) == 1
    assert [layer.name for layer in found.layers]
    assert found.count == len(found.layers) == 4
    assert [step.kept for step in found.steps] == [2 ** (i + 1) for i in range(len(found.steps))]
    assert found.most_sensitive[0].kind is OperatorKind.POINTWISE


def test_what_is_known_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measured(60.0)
    assert whole.complete
    asked: list[Any] = []
    error_and_ms = QuantizedLayers.error_and_ms

    def counted(self: QuantizedLayers, **given: Any) -> tuple[float, float]:
        asked.append(given)
        return error_and_ms(self, **given)

    monkeypatch.setattr(QuantizedLayers, "error_and_ms", counted)
    part = whole.model_copy(update={"layers": whole.layers[:2], "steps": ()})
    assert not part.complete
    found = measured(60.0, LayerPrices.from_json(part.to_json()))
    assert {given["alone"] for given in asked if "alone" in given} == {layer.name for layer in whole.layers[2:]}
    assert found.complete
    assert found.layers[:2] == part.layers
    assert [(layer.name, layer.alone, layer.kept) for layer in found.layers] == [
        (layer.name, layer.alone, layer.kept) for layer in whole.layers
    ]
    asked.clear()
    assert measured(60.0, whole).layers == whole.layers
    assert asked == [{}], "how far it errs with all layers in 8 bits tells that it is the same model"


def test_what_is_known_of_another_model_is_not_believed() -> None:
    whole = measured(60.0)
    other = whole.model_copy(update={"rmse": 2 * whole.rmse})
    renamed = [layer.model_copy(update={"name": "another"}) for layer in whole.layers]
    for known in (other, whole.model_copy(update={"layers": tuple(renamed)})):
        assert measured(1e-3, known).layers == ()


def test_what_there_is_no_time_for_is_left_out() -> None:
    found = measured(1e-3)
    assert (found.count, found.layers, found.steps) == (4, (), ())
    assert found.rmse > 0


def measured(seconds: float, known: LayerPrices | None = None) -> Any:
    given = candidate()
    subject = Subject(given.module, list(given.samples))
    request = LayersRequest(facts=given.facts, signature=given.signature, time_limit_s=seconds, known=known)
    return measure_layers(subject, request, Report())
