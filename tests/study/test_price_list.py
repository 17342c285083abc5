"""Prices of precision from end to end: every precision is tried and measured, nothing is chosen, and nothing twice."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import togi
from tests.journal.journal_records import KEY, facts, header
from tests.study.stand_ins import signature
from togi.cli.app import run
from togi.core.choices import AccuracyMeasure, OperatorKind
from togi.core.errors import SubjectError
from togi.core.records import ErrorReport, Interval, LayerPrice, LayerPrices, Outcome, Recipe, Timing, Trial
from togi.core.settings import Settings
from togi.journal import Conditions, Journal
from togi.search.listed import ListedRecipes
from togi.study import price_list
from togi.study.pace import Pace
from togi.study.price_list import _Pricing, _sorted, run_price_list
from togi.study.price_records import LayersRequest, PricedRecipe
from togi.study.tuned_subject import TunedSubject
from togi.techniques import recipe

FILE = """
import torch
import togi
from torch import nn

def model():
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16), nn.ReLU(), nn.Conv2d(16, 16, 1)]
    return nn.Sequential(*body, nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 8)).eval(), torch.rand(4, 3, 12, 12)

def data():
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(4, 3, 12, 12, generator=generator) for _ in range(30)]

def score(outputs):
    "With random weights noise makes it surer, so that which values are better is only declared."
    return float(outputs[0].softmax(-1).amax())
"""
ONNX = ("onnxruntime", "int8_onnxruntime")
OPENVINO = ("openvino", "int8_openvino", "bf16_openvino")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    (tmp_path / "models.py").write_text(FILE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    brief = Pace(trial_s=0.5, race_s=0.5, proof_s=0.5, quiet_s=0.0)
    monkeypatch.setattr(price_list, "run_price_list", functools.partial(run_price_list, pace=brief))
    return tmp_path


@pytest.mark.thorough
def test_each_precision_has_its_price_and_a_second_call_measures_nothing_again() -> None:
    found = togi.precision("models.py:model", data="models.py:data", only=ONNX, time_limit_s=240)
    tried = {price.recipe.techniques for price in found.prices}
    assert frozenset({"no_grad"}) in tried
    assert any("int8_onnxruntime" in techniques for techniques in tried)
    assert found.samples == 120
    assert found.prices[0].exact
    for price in found.prices:
        assert price.speedup_x is not None, price.reason
        assert price.over_float32_x is not None
        assert (price.accuracy is None) or price.accuracy.drop.seen == 120, "all of the data, not one half"
        assert price.accuracy is not None or price.exact or (price.rmse or 0) < 1e-3
    assert found.whole is None
    assert any("Sensitivity is measured in OpenVINO's form" in note for note in found.notes)
    assert "--max-drop DROP" in found.command
    assert "--metric agreement" in found.command
    again = togi.precision("models.py:model", data="models.py:data", only=ONNX, time_limit_s=240)
    assert again.prices == found.prices


@pytest.mark.thorough
def test_a_metric_of_ones_own_prices_them_and_live_models_have_prices_too() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    samples = [torch.randn(1, 64) for _ in range(40)]
    data = togi.Validation(samples, labels=[int(module(sample).argmax()) for sample in samples])

    def hits(outputs: list[Tensor], labels: list[int]) -> float:
        return float(int(outputs[0].argmax()) == labels[0])

    found = togi.precision(module, samples[0], data=data, metric=hits, only=ONNX, time_limit_s=240)
    judged = [price.accuracy for price in found.prices if price.accuracy is not None]
    assert judged
    assert all(accuracy.metric is not None and accuracy.metric.original == 1.0 for accuracy in judged)
    assert found.measure is AccuracyMeasure.OWN


def test_without_data_nothing_is_loaded() -> None:
    with pytest.raises(SubjectError, match="give --data"):
        togi.precision(nn.Linear(8, 8), torch.ones(1, 8))


@pytest.mark.thorough
def test_the_command_prints_json_and_writes_a_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--data", "models.py:data", "--metric", "models.py:score", "--better", "lower", "--time-limit", "4m"]
    only = [part for name in ONNX for part in ("--only", name)]
    assert run(["precision", "models.py:model", *given, *only, "--report", "prices.html", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["metric"], document["measure"]) == ("precision", "models.py:score", "own")
    assert document["prices"]
    assert "What each precision brings" in (folder / "prices.html").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_the_sensitivity_of_kinds_is_measured_alone_kept_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nncf")
    found = togi.precision("models.py:model", data="models.py:data", only=OPENVINO, time_limit_s=500)
    assert {each.kind for each in found.kinds} == {OperatorKind.DEPTHWISE, OperatorKind.FIRST, OperatorKind.LAST} | {
        OperatorKind.POINTWISE
    }
    assert found.whole is not None
    assert found.whole.rmse is not None
    for each in found.kinds:
        assert each.alone.rmse is not None
        assert each.kept.rmse is not None
        assert each.alone.rmse > 0
    joint = [choice.options["keep"] for p in found.prices for choice in p.recipe.choices if "keep" in choice.options]
    if found.sensitive is not None and (found.sensitive.kept.rmse or 0) < 0.9 * found.whole.rmse:
        assert str(found.sensitive.kind) in joint
    assert found.layers is not None
    assert found.layers.complete
    monkeypatch.setattr(price_list, "LAYERS", None)
    again = togi.precision("models.py:model", data="models.py:data", only=OPENVINO, time_limit_s=500)
    assert again.layers == found.layers, "the journal has them"


def interval(median: float) -> Interval:
    return Interval(median=median, low=median, high=median)


def test_speed_is_over_the_fastest_in_float32() -> None:
    def price(tried: Recipe, speedup: float, *, exact: bool) -> PricedRecipe:
        return PricedRecipe(recipe=tried, exact=exact, outcome=Outcome.OK, speedup_x=interval(speedup))

    given = [
        price(recipe(no_grad={}), 1.0, exact=True),
        price(recipe(openvino={}, bf16_openvino={}, no_grad={}), 3.0, exact=False),
        price(recipe(openvino={}, no_grad={}), 2.0, exact=True),
        PricedRecipe(recipe=recipe(ncnn={}), exact=True, outcome=Outcome.MISSING),
    ]
    ordered = _sorted(given)
    assert [p.over_float32_x and p.over_float32_x.median for p in ordered] == [1.0, 0.5, None, 1.5]
    disturbed = given[1].model_copy(update={"outcome": Outcome.UNSTABLE})
    assert _sorted([*given[:1], disturbed])[-1].over_float32_x is None
    assert _sorted([]) == []


def test_what_is_tried_together_are_the_most_sensitive_kinds() -> None:
    """Of three kinds that lower the error two are kept together; one that does not lower it clearly is left out."""
    errors = {"depthwise": 0.11, "first": 0.22, "last": 0.15, "linear": 0.24}

    def kept(kind: str) -> Recipe:
        return recipe(int8_openvino={"preset": "performance", "keep": kind}, no_grad={})

    whole = recipe(int8_openvino={"preset": "performance"}, no_grad={})
    all_errors = {whole: 0.25} | {kept(kind): error for kind, error in errors.items()}

    def last(tried: Recipe) -> Trial | None:
        error = all_errors.get(tried)
        if error is None:
            return None
        report = ErrorReport(faithful=False, units=1e3, rmse=error, max_abs=error)
        timing = Timing(latency_ms=interval(1.0), speedup_x=interval(1.0))
        return Trial(recipe=tried, outcome=Outcome.OK, error=report, timing=timing)

    pairs = [(OperatorKind.DEPTHWISE,), (OperatorKind.LAST,), (OperatorKind.DEPTHWISE, OperatorKind.LAST)]
    listed = ListedRecipes(
        prices=(),
        whole=whole,
        kept={kind: kept(kind) for kind in OperatorKind},
        alone={},
        joint={pair: (recipe(int8_openvino={"keep": "+".join(pair)}),) for pair in pairs},
        excluded=(),
        reference=recipe(no_grad={}),
    )
    study: Any = SimpleNamespace(log=SimpleNamespace(last=last))
    judging: Any = SimpleNamespace(measure=AccuracyMeasure.AGREEMENT)
    joint = _Pricing(study, judging, listed)._joint_of_sensitive()
    assert [choice.options["keep"] for each in joint for choice in each.choices] == ["depthwise", "depthwise+last"]


def layers_of(*errors: float) -> LayerPrices:
    """Two layers, of which so many are known."""
    known = [
        LayerPrice(name=f"layer {i}", kind=OperatorKind.LINEAR, alone=0.1, alone_ms=1.0, kept=error, kept_ms=1.0)
        for i, error in enumerate(errors)
    ]
    return LayerPrices(inputs=4, count=2, float32_ms=2.0, rmse=0.2, ms=1.0, layers=tuple(known))


def test_layers_rest_in_the_journal_and_what_is_missing_is_measured_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool: Any = None
    subject = TunedSubject(pool, "net.py:make", facts(), signature(), Settings())
    whole = recipe(int8_openvino={"preset": "performance"}, no_grad={})
    asked: list[LayerPrices | None] = []
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        for calibration, answer, measured_again in [
            ("pictures", layers_of(0.1), [None]),
            ("pictures", layers_of(0.1, 0.3), [layers_of(0.1)]),
            ("pictures", layers_of(), []),
            ("others", layers_of(0.1), [None]),
        ]:
            conditions = Conditions(calibration, lambda _: True)
            log = journal.study(KEY, header(), conditions=conditions)
            if log.last(whole) is None:
                log.append(Trial(recipe=whole, outcome=Outcome.OK, cost_s=1.0))

            def run(_pool: object, request: LayersRequest, *_: object, answer: LayerPrices = answer) -> LayerPrices:
                asked.append(request.known)
                return answer

            monkeypatch.setattr(price_list, "LAYERS", SimpleNamespace(run=run))
            asked.clear()
            study: Any = SimpleNamespace(
                log=log,
                budget=SimpleNamespace(left_s=60.0),
                subject=subject,
                notes=[],
                progress=SimpleNamespace(message=None),
                clock=iter([10.0, 15.0]).__next__,
            )
            judging: Any = SimpleNamespace(measure=AccuracyMeasure.AGREEMENT)
            listed: Any = None
            found = _Pricing(study, judging, listed)._measured_layers(whole)
            assert asked == measured_again
            last = log.last(whole)
            assert last is not None
            assert found == last.layers
            if asked:
                assert found == answer
