"""Prices of precision as text; and in words, for the page too."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.choices import AccuracyMeasure
from togi.core.quantities import bounds, milliseconds, times
from togi.core.records import REFERENCES, LayerPrices, Outcome
from togi.render.terminal import bullets, clean, stack, table
from togi.study.price_records import KindPrices, PricedRecipe, PriceList

SHOWN = 8
"""Layers."""


def price_list_text(prices: PriceList) -> RenderableType:
    """The list, the sensitivity of kinds of operators, and how to choose."""
    shown = [price for price in prices.prices if price.speedup_x is not None]
    rest = [price for price in prices.prices if price.speedup_x is None]
    return stack(
        Text(clean(f"{prices.subject}: {headline(prices)}"), style="bold"),
        _prices(shown, prices) if shown else None,
        bullets([f"{name(price)}: {price.reason}" for price in rest]) if rest else None,
        _kinds(prices) if prices.kinds else None,
        Text(clean(sensitivity(prices)), style="bold") if prices.kinds else None,
        _layers(prices.layers) if prices.layers is not None else None,
        Text(clean(of_layers(prices.layers)), style="bold") if prices.layers is not None else None,
        bullets(prices.notes) if prices.notes else None,
        Text(clean(f"Nothing is chosen. To choose within a budget: {prices.command}"), style="cyan"),
    )


def headline(prices: PriceList) -> str:
    """What was measured, on how many samples."""
    judged = prices.metric or prices.measure
    return f"prices of precision, by {judged} on {prices.samples:,} validation samples"


def name(price: PricedRecipe) -> str:
    """``bf16_openvino``, ``openvino``, ``bf16 + torch_compile``, or what the original is."""
    choices = [choice for choice in price.recipe.listed if choice.technique not in REFERENCES]
    ids = [choice.technique for choice in choices]
    named = [c.label for c in choices if not any(c.technique != id and id.endswith(c.technique) for id in ids)]
    return " + ".join(named) or "eager"


def accuracy_words(price: PricedRecipe, measure: AccuracyMeasure) -> str:
    """``99.9 % (99.6 %)``: what was measured, and what it proves. Of an exact recipe nothing was."""
    if price.accuracy is None:
        return "-" if price.outcome is not Outcome.OK else "as the original"
    drop, own = price.accuracy.drop, price.accuracy.metric
    if own is not None:
        return f"{own.candidate:.4g}, drop {_number(drop.mean)} (at most {_number(drop.high)})"
    if measure.of_answers and measure is not AccuracyMeasure.ACCURACY:
        return f"{1 - drop.mean:.1%} ({1 - drop.high:.1%})"
    if measure is AccuracyMeasure.ACCURACY:
        hits = price.accuracy.candidate
        now = "" if hits is None else f"{hits:.1%}, "
        return f"{now}drop {100 * drop.mean:.2g} points (at most {100 * drop.high:.2g})"
    return f"drop {_number(drop.mean)} (at most {_number(drop.high)})"


def proof_words(prices: PriceList) -> str:
    """What stands in brackets."""
    return (
        f"in brackets what {prices.samples:,} samples prove with 95 %. Over float32: over the fastest engine in the "
        "original's precision; both took turns with plain eager"
    )


def sensitivity(prices: PriceList) -> str:
    """Which kind holds most of the error, in a sentence."""
    most, whole = prices.sensitive, prices.whole
    if most is None or whole is None or whole.rmse is None or most.kept.rmse is None:
        return "No kind of operators alone holds the error: kept in floating point, none lowers it."
    return (
        f"{str(most.kind).capitalize()} is the most sensitive kind: kept in floating point, the error falls from "
        f"{whole.rmse:.2g} to {most.kept.rmse:.2g}{_at_what_time(most, whole)}."
    )


def of_layers(layers: LayerPrices) -> str:
    """What keeping the most sensitive layers brings together, and at what time, in a sentence."""
    left = layers.count - len(layers.layers)
    untried = f" {left} of {layers.count} layers were not measured: the time was over." if left else ""
    most = layers.most_sensitive
    if not most:
        return f"No layer alone lowers the error where it stays in floating point.{untried}"
    steps = [f"{step.kept} of them {step.rmse:.2g} ({milliseconds(step.ms)})" for step in layers.steps]
    return (
        f"All layers in 8 bits: error {layers.rmse:.2g} ({milliseconds(layers.ms)}); in float32 "
        f"{milliseconds(layers.float32_ms)}. With the most sensitive in floating point: one {most[0].kept:.2g} "
        f"({milliseconds(most[0].kept_ms)}){', ' * bool(steps)}{', '.join(steps)}.{untried}"
    )


def _at_what_time(most: KindPrices, whole: PricedRecipe) -> str:
    sure = most.kept.outcome is Outcome.OK and whole.outcome is Outcome.OK
    if not sure or most.kept.speedup_x is None or whole.speedup_x is None:
        return ""
    return f", at {times(most.kept.speedup_x.median / whole.speedup_x.median)} the speed of all in 8 bits"


def _prices(shown: list[PricedRecipe], prices: PriceList) -> Table:
    grid = table("recipe", "ms", "over float32", str(prices.measure), "error", left=(str(prices.measure),))
    for price in shown:
        over = price.over_float32_x
        speed = "-" if over is None else f"{times(over.median)} ({bounds(over)})"
        said = accuracy_words(price, prices.measure)
        label = Text(clean(name(price)))
        if price.outcome is not Outcome.OK:
            label.append(f"\n{clean(price.reason)}", style="yellow")
        grid.add_row(label, _ms(price), speed, said, _error(price))
    grid.caption, grid.caption_justify = Text(proof_words(prices), style="dim"), "left"
    return grid


def _kinds(prices: PriceList) -> Table:
    grid = table("operators", "alone", "ms", "kept", "ms", str(prices.measure))
    grid.caption = Text("errors: alone, it alone has 8 bits; kept, it alone stays in floating point", style="dim")
    grid.caption_justify = "left"
    if prices.whole is not None:
        said = accuracy_words(prices.whole, prices.measure)
        grid.add_row(Text("all in 8 bits"), _error(prices.whole), _ms(prices.whole), "-", "-", said)
    for each in prices.kinds:
        kept = accuracy_words(each.kept, prices.measure)
        grid.add_row(Text(each.kind), _error(each.alone), _ms(each.alone), _error(each.kept), _ms(each.kept), kept)
    return grid


def _layers(layers: LayerPrices) -> Table:
    grid = table("layer", "kind", "alone", "ms", "kept", "ms", left=("kind",))
    shown = layers.most_sensitive[:SHOWN]
    grid.caption = Text(
        f"the {len(shown)} most sensitive of {layers.count} layers, by {layers.inputs} inputs, without a correction of "
        "biases; ms of processor time by one thread",
        style="dim",
    )
    grid.caption_justify = "left"
    for each in shown:
        times_ms = (milliseconds(each.alone_ms), milliseconds(each.kept_ms))
        label = Text(clean(each.name))
        grid.add_row(label, each.kind, f"{each.alone:.2g}", times_ms[0], f"{each.kept:.2g}", times_ms[1])
    return grid


def _ms(price: PricedRecipe) -> str:
    return "-" if price.latency_ms is None else milliseconds(price.latency_ms.median)


def _error(price: PricedRecipe) -> str:
    return "-" if price.rmse is None else f"{price.rmse:.2g}"


def _number(value: float) -> str:
    return f"{value:.2g}"
