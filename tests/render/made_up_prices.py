"""A price list as it could be of a net with depthwise convolutions."""

from __future__ import annotations

from tests.render.made_up_study import machine
from togi.core.choices import AccuracyMeasure, OperatorKind
from togi.core.records import Accuracy, Facts, Interval, LayerPrice, LayerPrices, LayerStep, Outcome, Recipe
from togi.decide.paired import flips
from togi.study.price_records import KindPrices, PricedRecipe, PriceList
from togi.techniques import recipe


def interval(median: float) -> Interval:
    return Interval(median=median, low=0.97 * median, high=1.03 * median)


def price(tried: Recipe, over: float, *, losses: int | None = None, rmse: float = 1e-6) -> PricedRecipe:
    accuracy = None
    if losses is not None:
        drop = flips(losses, 600, 600)
        accuracy = Accuracy(measure=AccuracyMeasure.AGREEMENT, confirmation=False, drop=drop)
    return PricedRecipe(
        recipe=tried,
        exact=losses is None,
        outcome=Outcome.OK,
        latency_ms=interval(8.7 / over),
        speedup_x=interval(2.0 * over),
        over_float32_x=interval(over),
        rmse=rmse,
        accuracy=accuracy,
    )


def int8(**options: str) -> Recipe:
    return recipe(openvino={}, int8_openvino={"preset": "performance", **options}, no_grad={})


def made_up_prices() -> PriceList:
    late = "the time was over before it was tried: the same command with a longer --time-limit goes on"
    refused = PricedRecipe(
        recipe=recipe(onnxruntime={"spinning": False}, int8_onnxruntime={"how": "static"}, no_grad={}),
        exact=False,
        outcome=Outcome.FAILED,
        reason="INVALID_GRAPH <script>",
    )
    kinds = {
        OperatorKind.DEPTHWISE: (0.2, 0.113),
        OperatorKind.FIRST: (0.05, 0.228),
        OperatorKind.POINTWISE: (0.15, 0.259),
    }
    return PriceList(
        subject="model.py:net",
        facts=Facts(machine=machine(), module_class="Net"),
        measure=AccuracyMeasure.AGREEMENT,
        samples=600,
        prices=(
            price(recipe(openvino={}, no_grad={}), 1.0),
            price(recipe(no_grad={}), 0.5),
            price(recipe(openvino={}, bf16_openvino={}, no_grad={}), 1.7, losses=3, rmse=0.046),
            price(int8(), 2.2, losses=38, rmse=0.2455),
            price(int8(keep="depthwise", rest="bf16"), 2.1, losses=12, rmse=0.108),
            refused,
        ),
        whole=price(int8(), 2.2, losses=38, rmse=0.2455),
        kinds=tuple(
            KindPrices(
                kind=kind,
                alone=price(int8(alone=kind), 1.2, losses=9, rmse=alone)
                if kind is not OperatorKind.FIRST
                else PricedRecipe(recipe=int8(alone=kind), exact=False, outcome=Outcome.TIMED_OUT, reason=late),
                kept=price(int8(keep=kind), 1.9, losses=12, rmse=kept),
            )
            for kind, (alone, kept) in kinds.items()
        ),
        layers=LayerPrices(
            inputs=24,
            count=3,
            float32_ms=8.7,
            rmse=0.25,
            ms=3.9,
            layers=tuple(
                LayerPrice(name=layer, kind=kind, alone=alone, alone_ms=8.1, kept=kept, kept_ms=4.2)
                for layer, kind, alone, kept in (
                    ("conv2d", OperatorKind.FIRST, 0.1, 0.26),
                    ("conv2d_1<b>", OperatorKind.DEPTHWISE, 0.2, 0.19),
                )
            ),
            steps=(LayerStep(kept=2, rmse=0.17, ms=4.6),),
        ),
        notes=("No calibration data are given",),
        command="togi tune model.py:net --data data.py:validation --metric agreement --max-drop DROP",
    )
