"""How sensitive each layer is to 8 bits, in one process and with one calibration; and what the most sensitive bring
together, since errors of layers do not add up."""

from __future__ import annotations

import time
from collections.abc import Iterator

from togi.core.records import LayerPrice, LayerPrices, LayerStep
from togi.core.report import Report
from togi.study.price_records import LayersRequest
from togi.subject.inputs import Inputs, Subject
from togi.techniques.build import first_candidate
from togi.techniques.precision.int8_openvino import has_attention
from togi.techniques.precision.lowering.layers import QuantizedLayers

_INPUTS = 24
"""By which errors are measured. The order of EfficientNet-Lite0's layers was that of 300."""
_STEPS_SHARE = 0.25
"""Of the time, for keeping several layers at once."""
_SAME = 0.01
"""Of the error of all layers in 8 bits: as near, what was measured before is of the same model in 8 bits."""


def measure_layers(subject: Subject, request: LayersRequest, report: Report) -> LayerPrices:
    """Each layer alone in 8 bits, and alone in floating point, until three quarters of the time are over; then steps.

    The order is that in which they compute. What is known is not measured again. Raises Refused where OpenVINO cannot
    convert the subject.
    """
    began = time.monotonic()
    candidate = first_candidate(subject, request.facts, request.signature)
    inputs = _inputs(subject)
    flat = [candidate.signature.flatten_inputs(each.args, each.kwargs) for each in inputs]
    report.entered("calibration of all layers", 2 * request.time_limit_s)
    model = QuantizedLayers(candidate, transformer=has_attention(request.facts), inputs=flat)
    error, ms = model.error_and_ms()
    prices = LayerPrices(inputs=len(inputs), count=len(model.kinds), float32_ms=model.float32_ms, rmse=error, ms=ms)
    prices = _with_known(prices, request.known, model)
    known, ends = {layer.name for layer in prices.layers}, began + request.time_limit_s
    for name, kind in model.kinds.items():
        if name in known:
            continue
        if time.monotonic() > ends - _STEPS_SHARE * request.time_limit_s:
            break
        report.entered(f"layer {len(prices.layers) + 1} of {prices.count}", 2 * request.time_limit_s)
        alone, alone_ms = model.error_and_ms(alone=name)
        kept, kept_ms = model.error_and_ms(kept=[name])
        layer = LayerPrice(name=name, kind=kind, alone=alone, alone_ms=alone_ms, kept=kept, kept_ms=kept_ms)
        prices = prices.model_copy(update={"layers": (*prices.layers, layer), "steps": ()})
        report.found(prices)
    for step in _steps(prices, model, ends):
        prices = prices.model_copy(update={"steps": (*prices.steps, step)})
        report.found(prices)
    return prices


def _with_known(prices: LayerPrices, known: LayerPrices | None, model: QuantizedLayers) -> LayerPrices:
    """With what was measured before, if that was of the same model in 8 bits."""
    if known is None or known.inputs != prices.inputs or abs(known.rmse - prices.rmse) > _SAME * prices.rmse:
        return prices
    same = all(model.kinds.get(layer.name) is layer.kind for layer in known.layers)
    return prices.model_copy(update={"layers": known.layers, "steps": known.steps}) if same else prices


def _inputs(subject: Subject) -> list[Inputs]:
    """Of the validation data from all places, since data are often sorted; the samples where there are none."""
    given = subject.inputs if subject.validation is None else subject.validation.inputs
    count = min(len(given), _INPUTS)
    return [given[i * len(given) // count] for i in range(count)]


def _steps(prices: LayerPrices, model: QuantizedLayers, ends: float) -> Iterator[LayerStep]:
    """The most sensitive layers in floating point: 2, 4, 8, ... of them, from the first that is not known."""
    count = 2 * max((step.kept for step in prices.steps), default=1)
    ordered = [layer.name for layer in prices.most_sensitive]
    while count <= len(ordered) and time.monotonic() < ends:
        error, ms = model.error_and_ms(kept=ordered[:count])
        yield LayerStep(kept=count, rmse=error, ms=ms)
        count *= 2
