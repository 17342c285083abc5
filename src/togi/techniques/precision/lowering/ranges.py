"""Ranges of activations other than from their least to their largest value, for ONNX Runtime's static quantization.

ONNX Runtime's own percentile and entropy calibration keep every activation of all calibration inputs in memory (300
pictures: tens of GB), fail where two inputs differ in a size, and search no threshold by entropy at the default number
of bins, which cannot be set (``quantize_static`` of 1.32). So values are counted here input by input, in bins whose
number stays the same, and the ranges are handed over tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PERCENTILE, ENTROPY = "percentile", "entropy"
_BINS = 8192
"""Of each tensor, on both sides of zero together: 32 for each of 256 steps where nothing is cut off."""
_COUNTED = 1 << 20
"""Values of a tensor that are counted, of all inputs together. More do not move a range, and counting takes time."""
_CUT_OFF = 1e-4
"""The share of values that a percentile leaves outside, on both sides together."""
_STEPS = 256
_CANDIDATES = 64
"""Thresholds that are compared by entropy."""


def ranges_of(
    model: Path, feeds: Sequence[Mapping[str, Any]], operators: Sequence[str], how: str
) -> dict[str, tuple[float, float]]:
    """The range of each floating-point value that these kinds of operators take or make, by its name in the ``model``.

    What the model returns is left out: its largest values are the answer. ``feeds``: arrays by input, for each call.
    """
    from onnxruntime.quantization import CalibrationMethod, create_calibrator

    augmented = model.with_name("all_values.onnx")
    calibrator = create_calibrator(model, operators, str(augmented), CalibrationMethod.Percentile)
    names = sorted(calibrator.tensors_to_calibrate - calibrator.model_original_outputs)
    counts = {name: Counts() for name in names}
    inputs = {name for name in names if any(name in feed for feed in feeds)}  # which a session need not return
    asked = [name for name in names if name not in inputs]
    each = max(1, _COUNTED // max(1, len(feeds)))
    for feed in feeds:
        found = dict(zip(asked, calibrator.infer_session.run(asked, dict(feed)), strict=True)) if asked else {}
        for name, values in {**found, **{name: feed[name] for name in inputs}}.items():
            counts[name].add(values, each)
    augmented.unlink()
    chosen = Counts.by_entropy if how == ENTROPY else Counts.by_percentile
    return {name: chosen(count) for name, count in counts.items() if count.total}


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

    def by_percentile(self) -> tuple[float, float]:
        """The range that leaves out the outermost values, as many on each side."""
        share = np.cumsum(self.counts) / self.total
        first, last = np.searchsorted(share, [_CUT_OFF / 2, 1 - _CUT_OFF / 2])
        return max(self.low, self._edge(int(first))), min(self.high, self._edge(int(last) + 1))

    def by_entropy(self) -> tuple[float, float]:
        """The range whose 256 steps lose least of how the values are distributed: with the least Kullback-Leibler
        divergence, where what lies outside is moved to the ends (S. Migacz, "8-bit inference with TensorRT", 2017)."""
        thresholds = [self.end * (i + 1) / _CANDIDATES for i in range(_CANDIDATES)]
        within = [t for t in thresholds if (self._place(t) - self._place(-t)) >= 2 * _STEPS] or thresholds[-1:]
        best = min(within, key=self._divergence)
        return max(self.low, -best), min(self.high, best)

    def _divergence(self, threshold: float) -> float:
        first, last = self._place(max(self.low, -threshold)), self._place(min(self.high, threshold)) + 1
        inside = self.counts[first:last].astype(np.float64)
        if not inside.any():
            return np.inf
        wanted = inside.copy()
        wanted[0] += self.counts[:first].sum()
        wanted[-1] += self.counts[last:].sum()
        step = np.arange(len(inside)) * _STEPS // len(inside)
        there = inside > 0
        sums, filled = np.bincount(step, inside), np.bincount(step, there)
        found = np.where(there, (sums / np.maximum(filled, 1))[step], 0.0)
        asked = wanted > 0
        p, q = wanted[asked] / wanted.sum(), found[asked] / found.sum()
        return float((p * np.log(p / np.maximum(q, 1e-12))).sum())

    def _widen(self, largest: float) -> None:
        if self.end == 0.0:
            self.end = largest or 1.0
        while largest > self.end:
            halved = self.counts.reshape(-1, 2).sum(1)
            self.counts = np.concatenate([np.zeros(_BINS // 4, np.int64), halved, np.zeros(_BINS // 4, np.int64)])
            self.end *= 2

    def _place(self, value: float) -> int:
        return min(_BINS - 1, max(0, int((value / self.end + 1) * (_BINS / 2))))

    def _edge(self, place: int) -> float:
        return (place / (_BINS / 2) - 1) * self.end


def overrides(ranges: Mapping[str, tuple[float, float]]) -> dict[str, list[dict[str, Any]]]:
    """In the form in which ``quantize_static`` takes them (``TensorQuantOverrides``)."""
    return {
        name: [{"rmin": np.array(low, np.float32), "rmax": np.array(high, np.float32)}]
        for name, (low, high) in ranges.items()
    }
