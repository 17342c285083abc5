"""Prices of precision as text and as a page."""

from __future__ import annotations

import re

from rich.console import Console

from tests.render.made_up_prices import made_up_prices
from togi.core.choices import AccuracyMeasure
from togi.core.records import OwnMetricReport
from togi.decide.paired import scores
from togi.render.html import price_list_html
from togi.render.price_list_text import accuracy_words, price_list_text, sensitivity
from togi.study.price_records import PriceList


def text(prices: PriceList) -> str:
    console = Console(width=140, record=True, file=None)
    with console.capture() as capture:
        console.print(price_list_text(prices))
    return " ".join(capture.get().split())


def test_the_text_shows_each_price_with_what_it_proves_and_chooses_nothing() -> None:
    shown = text(made_up_prices())
    assert "prices of precision, by agreement on 600 validation samples" in shown
    kept = "int8_openvino(keep=depthwise, preset=performance, rest=bf16)"
    for part in (kept, "99.5% (98.7%)", "as the original", "0.25", "INVALID_GRAPH"):
        assert part in shown
    assert "Depthwise is the most sensitive kind: kept in floating point, the error falls from 0.25 to 0.11" in shown
    assert "Nothing is chosen. To choose within a budget: togi tune model.py:net" in shown


def test_values_of_each_measure_in_words() -> None:
    prices = made_up_prices()
    (bf16,) = (price for price in prices.prices if "bf16_openvino" in price.recipe.techniques)
    assert bf16.accuracy is not None
    assert accuracy_words(bf16, AccuracyMeasure.ACCURACY) == "drop 0.5 points (at most 1.3)"
    kl = bf16.accuracy.model_copy(update={"measure": AccuracyMeasure.KL, "drop": scores([0.01] * 400, 400)})
    assert accuracy_words(bf16.model_copy(update={"accuracy": kl}), AccuracyMeasure.KL).startswith("drop 0.01 (at most")
    own = OwnMetricReport(name="m.py:f", code="", original=0.98, candidate=0.97, better="higher")  # type: ignore[arg-type]
    by_own = bf16.model_copy(update={"accuracy": kl.model_copy(update={"metric": own})})
    assert accuracy_words(by_own, AccuracyMeasure.OWN).startswith("0.97, drop 0.01 (at most")


def test_no_kind_is_called_sensitive_if_none_lowers_the_error() -> None:
    prices = made_up_prices()
    whole = prices.whole
    assert whole is not None
    better = prices.model_copy(update={"whole": whole.model_copy(update={"rmse": 0.05})})
    assert better.sensitive is None
    assert "none lowers it" in sensitivity(better)


def test_the_page_is_safe_complete_and_the_same_for_the_same_list() -> None:
    prices = made_up_prices()
    page = price_list_html(prices)
    assert page == price_list_html(prices)
    assert "INVALID_GRAPH <script>" not in page
    assert "INVALID_GRAPH &lt;script&gt;" in page
    for part in ("Which operators are sensitive", "What each precision brings", "depthwise", "99.5% (98.7%)"):
        assert part in page
    assert not re.search(r"https?://(?!www\.w3\.org)", page), "it loads nothing"


def test_a_list_of_the_original_alone_has_a_page() -> None:
    prices = made_up_prices()
    alone = prices.model_copy(update={"prices": prices.prices[1:2], "kinds": (), "whole": None, "notes": ()})
    assert "Which operators" not in price_list_html(alone)
    assert "Nothing is chosen" in text(alone)


def test_layers_are_shown_by_what_is_left_without_them_and_what_was_not_measured_is_told() -> None:
    prices = made_up_prices()
    assert prices.layers is not None
    shown = text(prices)
    for part in (
        "conv2d_1<b> depthwise 0.2",
        "All layers in 8 bits: error 0.25 (3.90 ms); in float32 8.70 ms",
        "one 0.19 (4.20 ms), 2 of them 0.17 (4.60 ms)",
        "1 of 3 layers were not measured",
    ):
        assert part in shown
    page = price_list_html(prices)
    assert "Which layers are sensitive" in page
    assert "conv2d_1&lt;b&gt;" in page
    assert "conv2d_1<b>" not in page
    none = prices.model_copy(update={"layers": prices.layers.model_copy(update={"rmse": 0.01})})
    assert "No layer alone lowers the error" in text(none)
    assert "Which layers" in price_list_html(none)
    assert "Which layers" not in price_list_html(prices.model_copy(update={"layers": None}))
