"""The page of a price list: what each precision takes and brings, and which kinds of operators are sensitive."""

from __future__ import annotations

from togi.core.quantities import bounds, milliseconds, times
from togi.core.records import LayerPrice, LayerPrices, Outcome
from togi.render.html.axis import Axis, ticks
from togi.render.html.charts import Bar, Bars, whisker
from togi.render.html.document import document
from togi.render.price_list_text import accuracy_words, headline, name, of_layers, proof_words, sensitivity
from togi.study.price_records import KindPrices, PricedRecipe, PriceList

SHOWN = 16
"""Layers. The document has all of them."""


def price_list_html(prices: PriceList) -> str:
    """The same bytes for the same list."""
    return document(
        "price_list.html",
        title=f"precision of {prices.subject}",
        prices=prices,
        machine=prices.facts.machine,
        headline=headline(prices),
        proof=proof_words(prices),
        speeds=speeds(prices),
        kinds=kinds(prices),
        sensitivity=sensitivity(prices),
        layers=layers(prices.layers),
        of_layers=of_layers(prices.layers) if prices.layers is not None else "",
        name=name,
        words=accuracy_words,
    )


def speeds(prices: PriceList) -> Bars | None:
    """Each recipe that ran, by its speed over the fastest in float32; a line stands at that."""
    measured = [price for price in prices.prices if price.over_float32_x is not None]
    if not measured:
        return None
    axis = Axis([1.0, *(price.over_float32_x.median for price in measured if price.over_float32_x)])
    return Bars(
        lines=[_speed(price, prices, axis) for price in measured],
        ticks=ticks(axis, "x"),
        one=axis.place(1.0),
        caption="speed over the fastest engine in float32; bars are 95 % confidence intervals; diamonds: approximate",
    )


def _speed(price: PricedRecipe, prices: PriceList, axis: Axis) -> Bar:
    over = price.over_float32_x
    assert over is not None
    assert price.latency_ms is not None
    said = accuracy_words(price, prices.measure)
    mark = "reference" if price.recipe.is_reference else "faithful" if price.exact else "approximate"
    time = milliseconds(price.latency_ms.median)
    return Bar(
        name=name(price),
        detail=said if price.outcome is Outcome.OK else price.outcome.value,
        hint=f"{name(price)}\n{time}\n{times(over.median)} the speed of float32 ({bounds(over)})\n{said}",
        trial="",
        whisker=whisker(axis, over.low, over.high) if over.has_ends else None,
        marks=[(mark, axis.place(over.median))],
        value=time,
        small=times(over.median),
    )


def kinds(prices: PriceList) -> Bars | None:
    """Each kind by the error if it alone has 8 bits, and if it alone is kept; a line stands at all in 8 bits."""
    whole = None if prices.whole is None else prices.whole.rmse
    errors = [each.rmse for pair in prices.kinds for each in (pair.alone, pair.kept) if each.rmse]
    if whole is None or not errors:
        return None
    axis = Axis([whole, *errors])
    return Bars(
        lines=[_kind(each, prices, axis) for each in prices.kinds],
        ticks=ticks(axis),
        one=axis.place(whole),
        caption="relative error; circles: what is left if the kind stays in floating point; diamonds: if it alone has "
        "8 bits; the line: all in 8 bits",
    )


def _kind(each: KindPrices, prices: PriceList, axis: Axis) -> Bar:
    marks = [
        (mark, axis.place(price.rmse))
        for mark, price in (("approximate", each.alone), ("chosen", each.kept))
        if price.rmse
    ]
    kept = "not measured" if each.kept.rmse is None else f"{each.kept.rmse:.2g}"
    alone = "not measured" if each.alone.rmse is None else f"{each.alone.rmse:.2g}"
    said = accuracy_words(each.kept, prices.measure)
    time = "" if each.kept.latency_ms is None else f" in {milliseconds(each.kept.latency_ms.median)}"
    return Bar(
        name=each.kind,
        detail=f"kept: {said}{time}",
        hint=f"{each.kind}\nkept in floating point: error {kept}{time}\n8 bits alone: error {alone}\n{said}",
        trial="",
        whisker=None,
        marks=marks,
        value=kept,
        small=f"alone {alone}",
    )


def layers(prices: LayerPrices | None) -> Bars | None:
    """The most sensitive layers as the kinds are shown; None where none lowers the error."""
    shown = [] if prices is None else prices.most_sensitive[:SHOWN]
    if prices is None or not shown:
        return None
    axis = Axis([prices.rmse, *(error for each in shown for error in (each.alone, each.kept) if error)])
    return Bars(
        lines=[_layer(each, axis) for each in shown],
        ticks=ticks(axis),
        one=axis.place(prices.rmse),
        caption="relative error; circles: what is left if the layer stays in floating point; diamonds: if it alone has "
        "8 bits; the line: all in 8 bits",
    )


def _layer(each: LayerPrice, axis: Axis) -> Bar:
    kept, alone, time = f"{each.kept:.2g}", f"{each.alone:.2g}", milliseconds(each.kept_ms)
    marks = [(mark, axis.place(at)) for mark, at in (("approximate", each.alone), ("chosen", each.kept)) if at]
    return Bar(
        name=each.name,
        detail=f"{each.kind}, kept in {time}",
        hint=f"{each.name} ({each.kind})\nkept in floating point: error {kept} in {time}\n8 bits alone: error {alone}",
        trial="",
        whisker=None,
        marks=marks,
        value=kept,
        small=f"alone {alone}",
    )
