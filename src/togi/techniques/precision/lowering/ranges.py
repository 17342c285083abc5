"""Ranges of activations that leave out their outermost values, for ONNX Runtime's static quantization.

ONNX Runtime's own percentile calibration keeps every activation of all calibration inputs in memory (300 pictures: tens
of GB), and fails where two inputs differ in a size. So values are counted here input by input, in bins whose number
stays the same, and the ranges are handed over tensor by tensor.

Ranges by entropy were tried and are not offered: EfficientNet-Lite0 and MiniLM erred 1.4 and 2.9 times as much as with
those from the least to the largest value. ONNX Runtime by itself searches none: ``quantize_static`` (1.32) leaves its
bins at their default number, at which there is one threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BINS = 8192
"""Of each tensor, on both sides of zero together: 32 for each of 256 steps where nothing is left out."""
_COUNTED = 1 << 20
"""Values of a tensor that are counted, of all inputs together. More do not move a range, and counting takes time."""
_LEFT_OUT = 1e-5
"""The share of values outside, on both sides together: ONNX Runtime's own choice."""


def percentile_ranges(
    model: Path, feeds: Sequence[Mapping[str, Any]], operators: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """The range of each floating-point value that these kinds of operators take or make, by its name in the ``model``,
    as ``quantize_static`` takes them (``TensorQuantOverrides``).

    What the model returns keeps its whole range: its largest values are the answer. ``feeds``: arrays by input, for
    each call.
    """
    from onnxruntime.quantization import CalibrationMethod, create_calibrator

    augmented = model.with_name("all_values.onnx")
    calibrator = create_calibrator(model, operators, str(augmented), CalibrationMethod.Percentile)
    counts = {name: Counts() for name in calibrator.tensors_to_calibrate}
    asked = sorted(name for name in counts if not any(name in feed for feed in feeds))
    each = max(1, _COUNTED // max(1, len(feeds)))
    for feed in feeds:
        found = dict(zip(asked, calibrator.infer_session.run(asked, dict(feed)), strict=True)) if asked else {}
        for name, values in {**found, **feed}.items():
            if name in counts:
                counts[name].add(values, each)
    augmented.unlink()
    returned = calibrator.model_original_outputs
    ranges = {
        name: (count.low, count.high) if name in returned else count.percentiles()
        for name, count in counts.items()
        if count.total
    }
    return {
        name: [{"rmin": np.array(low, np.float32), "rmax": np.array(high, np.float32)}]
        for name, (low, high) in ranges.items()
    }


class Counts:
    """How often the values of one tensor fall into each of equal bins round zero. The bins double in width where a
    value lies beyond them."""

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(_BINS, np.int64)
        self.end = 0.0
        self.low, self.high = np.inf, -np.inf

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def add(self, values: NDArray[Any], most: int) -> None:
        """Its ends are those of all values; of these at most so many are counted, from all places."""
        finite = values[np.isfinite(values)].astype(np.float32, copy=False)
        if not finite.size:
            return
        self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        self._widen(max(abs(self.low), abs(self.high)))
        some = finite[:: -(-finite.size // most) | 1]  # an odd step does not fall on the same channel each time
        places = ((some / self.end + 1) * (_BINS / 2)).astype(np.int64).clip(0, _BINS - 1)
        self.counts += np.bincount(places, minlength=_BINS)

    def percentiles(self) -> tuple[float, float]:
        """The range that leaves out the outermost values, as many on each side."""
        share = np.cumsum(self.counts) / self.total
        first, last = np.searchsorted(share, [_LEFT_OUT / 2, 1 - _LEFT_OUT / 2])
        return max(self.low, self._edge(int(first))), min(self.high, self._edge(int(last) + 1))

    def _widen(self, largest: float) -> None:
        if self.end == 0.0:
            self.end = largest or 1.0
        while largest > self.end:
            halved = self.counts.reshape(-1, 2).sum(1)
            self.counts = np.concatenate([np.zeros(_BINS // 4, np.int64), halved, np.zeros(_BINS // 4, np.int64)])
            self.end *= 2

    def _edge(self, place: int) -> float:
        return (place / (_BINS / 2) - 1) * self.end
