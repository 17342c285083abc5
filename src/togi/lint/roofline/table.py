"""The memory access cost of a pass, layer by layer, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from togi.core.quantities import significant, size
from togi.lint.module.forward_pass import Call
from togi.lint.roofline.figures import Figures
from togi.lint.roofline.work import Prediction, Work, predicted, work

COLUMNS = (
    "layer",
    "kind",
    "calls",
    "MFLOP",
    "MiB read",
    "MiB written",
    "FLOP/byte",
    "bound by",
    "predicted ms",
    "share %",
)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The work of every call of a pass, and what a device needs for it."""

    calls: Sequence[Call]
    works: Sequence[Work]
    predictions: Sequence[Prediction]
    figures: Figures
    dtype: str | None = None

    @classmethod
    def of(cls, calls: Sequence[Call], figures: Figures, dtype: str | None = None) -> Costs:
        works = [work(call, dtype) for call in calls]
        weights = sum(one.weights for one in works)
        return cls(
            calls=calls,
            works=works,
            predictions=[predicted(one, figures, weights) for one in works],
            figures=figures,
            dtype=dtype,
        )

    @property
    def seconds(self) -> float:
        """Predicted for the whole pass."""
        return sum(prediction.seconds for prediction in self.predictions)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.works)

    def seconds_of(self, calls: Sequence[Call]) -> float:
        return sum(self.predictions[call.index].seconds for call in calls)

    def bytes_of(self, calls: Sequence[Call]) -> int:
        return sum(self.works[call.index].bytes for call in calls)

    def share(self, calls: Sequence[Call]) -> float:
        """The part of the predicted time that these calls take, from 0 to 1."""
        return self.seconds_of(calls) / self.seconds if self.seconds else 0.0


def cost_table(costs: Costs, kinds: Mapping[str, str], *, most_rows: int = 20) -> dict[str, Any]:
    """``{"title", "columns", "rows"}``: the layers that take longest, the others in one row, and the sum.

    Args:
        costs: of one pass.
        kinds: class of each layer by its name.
        most_rows: layers listed.
    """
    layers: dict[str, list[Call]] = {}
    for call in costs.calls:
        if not call.view:
            layers.setdefault(call.layer, []).append(call)
    ordered = sorted(layers, key=lambda name: -costs.seconds_of(layers[name]))
    rows = [_row(name or "(module)", kinds.get(name, ""), layers[name], costs) for name in ordered[:most_rows]]
    rest = [call for name in ordered[most_rows:] for call in layers[name]]
    if rest:
        rows.append(_row(f"{len(ordered) - most_rows} others", "", rest, costs))
    rows.append(_row("all", "", [call for calls in layers.values() for call in calls], costs))
    return {"title": _title(costs), "columns": list(COLUMNS), "rows": rows}


def _row(name: str, kind: str, calls: Sequence[Call], costs: Costs) -> list[Any]:
    works = [costs.works[call.index] for call in calls]
    flops, moved = sum(one.flops for one in works), sum(one.bytes for one in works)
    read = sum(one.activations + one.weights for one in works)
    seconds = costs.seconds_of(calls)
    return [
        name,
        kind,
        len(calls),
        _number(flops / 1e6),
        _number(read / 2**20),
        _number((moved - read) / 2**20),
        _number(flops / moved if moved else 0.0),
        _bound(calls, costs),
        _number(seconds * 1e3),
        _number(100 * seconds / costs.seconds if costs.seconds else 0.0),
    ]


def _bound(calls: Sequence[Call], costs: Costs) -> str:
    """What bounds the calls that take the most time of these."""
    by_bound: dict[str, float] = {}
    for call in calls:
        prediction = costs.predictions[call.index]
        by_bound[prediction.bound] = by_bound.get(prediction.bound, 0.0) + prediction.seconds
    return max(by_bound, key=lambda bound: by_bound[bound], default="-")


def _number(value: float) -> float:
    """Three significant digits: the model is no more exact than that."""
    return float(f"{value:.3g}")


def _title(costs: Costs) -> str:
    figures = costs.figures
    product = next((one.dtype for one in costs.works if one.product), "float32")
    peak = f"{significant(figures.peak(product) / 1e9)} GFLOP/s in {product}"
    bandwidth = f"{size(figures.bandwidths[-1].bytes_per_s)}/s"
    cast = f", floating-point tensors taken as {costs.dtype}" if costs.dtype else ""
    noise = "" if figures.steady else " while other processes were busy, so it can probably do more"
    launches = "" if figures.call_s else "; without the time to launch an operation"
    known = f"{peak}, {bandwidth}; {figures.source}{noise}{launches}"
    return f"Memory access cost, predicted for {figures.name} ({known}){cast}"
