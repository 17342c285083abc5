"""The work of one operation, how long it takes at best, and the memory access cost of a pass, layer by layer.

Unfused eager execution: every operation reads its inputs from memory and writes its results there; making a view is
free. That is what "memory access cost" counts (N. Ma et al., "ShuffleNet V2", 2018, arXiv:1807.11164, guideline G1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from togi.core.quantities import significant, size
from togi.core.record import Scalar
from togi.lint.finding import Table
from togi.lint.module.forward_pass import CONVOLUTIONS, AtenCall, AtenTensor
from togi.lint.roofline.devices import Figures

_LOOKUPS = frozenset({"embedding", "index", "index_select", "gather", "take", "_embedding_bag"})
"""They read the rows that they return, not the whole table."""
_WRITE_ONLY = frozenset({"fill_", "zero_", "copy_", "bernoulli_", "normal_", "uniform_"})
"""In place, without reading what they write over."""

CEILINGS: dict[str, frozenset[str]] = {
    "depthwise": frozenset(),
    "special": frozenset(
        {"gelu", "silu", "silu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "exp", "erf", "pow", "mish", "softplus"}
        | {"_softmax", "_log_softmax", "log", "sin", "cos", "sqrt", "rsqrt", "elu", "elu_"}
    ),
    "norm": frozenset({"native_layer_norm", "native_group_norm", "_fused_rms_norm"}),
    "batch norm": frozenset({"native_batch_norm", "_native_batch_norm_legit"}),
    "pool": frozenset({"max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"}),
}
"""Kinds of operations with a ceiling of their own below the roof, where the device was measured: names of ATen calls.
``depthwise``: convolutions with one input channel per group (their time hardly depends on the kernel's size)."""

Bound = Literal["memory", "arithmetic", "calls", "-"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Bytes and floating-point operations of one call."""

    flops: int
    """A multiplication and an addition are two. Other than products: one for each element of the largest tensor."""
    activations: int
    """Bytes read that an earlier operation wrote."""
    weights: int
    """Bytes read of parameters and buffers."""
    written: int
    dtype: str
    product: bool
    """A matrix product, convolution or attention: these run on matrix units."""
    convolution: bool
    elements: int = 0
    """Of the largest tensor."""
    ceiling: str = ""
    """Key of ``CEILINGS``, or empty."""

    @property
    def bytes(self) -> int:
        return self.activations + self.weights + self.written


@dataclass(frozen=True, kw_only=True)
class WorkTime:
    """The time of some work on a device, and what bounds it."""

    seconds: float
    bound: Bound


def work(call: AtenCall, dtype: str | None = None) -> Work:
    """What ``call`` does; with ``dtype``, as if floating-point tensors were of that one (``float16``)."""
    if call.view:
        return Work(flops=0, activations=0, weights=0, written=0, dtype="", product=False, convolution=False)
    reads = list(_reads(call, dtype))
    largest = max((value.elements for value in (*call.inputs, *call.outputs)), default=0)
    return Work(
        flops=largest if call.flops is None else call.flops,
        activations=sum(count for count, constant in reads if not constant),
        weights=sum(count for count, constant in reads if constant),
        written=sum(bytes_of(value, dtype) for value in call.outputs),
        dtype=_dtype(call, dtype),
        product=call.flops is not None,
        convolution=call.name in CONVOLUTIONS,
        elements=largest,
        ceiling=_ceiling(call),
    )


def _ceiling(call: AtenCall) -> str:
    weight = call.value("weight")
    if call.name in CONVOLUTIONS and weight is not None:
        return "depthwise" if int(call.given.get("groups") or 1) > 1 and weight.shape[1] == 1 else ""
    return next((kind for kind, names in CEILINGS.items() if call.name in names), "")


def bytes_of(value: AtenTensor, dtype: str | None = None) -> int:
    """Bytes of a value; with ``dtype``, as if it were of that one (integers stay)."""
    return value.elements * (_ITEMSIZE.get(dtype, value.itemsize) if dtype and value.floating else value.itemsize)


_ITEMSIZE = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


def predicted(work: Work, figures: Figures, model_weights: int = 0) -> WorkTime:
    """The roofline's answer for ``work``.

    Args:
        work: of one call.
        figures: of the device.
        model_weights: bytes of all weights that a pass reads. Between two uses of a weight lie all others, so weights
            come at the bandwidth of that working set, activations at that of the operation's own.
    """
    if not work.bytes:
        return WorkTime(seconds=0.0, bound="-")
    own = work.activations + work.written
    moving_s = own / figures.bandwidth(work.bytes) + work.weights / figures.bandwidth(max(work.bytes, model_weights))
    computing_s = work.flops / figures.peak(work.dtype, convolution=work.convolution) if work.product else 0.0
    if work.ceiling in figures.ceilings:
        computing_s = max(computing_s, work.elements / figures.ceilings[work.ceiling])
    longest = max(moving_s, computing_s)
    bound: Bound = "arithmetic" if computing_s > moving_s else "memory"
    call_s = figures.product_call_s if work.product else figures.call_s
    return WorkTime(seconds=longest + call_s, bound="calls" if call_s > longest else bound)


def _reads(call: AtenCall, dtype: str | None) -> Iterator[tuple[int, bool]]:
    """``(bytes, constant)`` of everything that the call reads."""
    written = sum(bytes_of(value, dtype) for value in call.outputs)
    for number, (name, argument) in enumerate(call.given.items()):
        if name in call.written and call.name in _WRITE_ONLY:
            continue
        for value in _values(argument):
            table = number == 0 and call.name in _LOOKUPS
            count = bytes_of(value, dtype)
            yield (min(count, written) if table else count), value.constant


def _values(argument: object) -> Iterable[AtenTensor]:
    if isinstance(argument, AtenTensor):
        return (argument,)
    return [item for item in argument if isinstance(item, AtenTensor)] if isinstance(argument, tuple) else ()


def _dtype(call: AtenCall, dtype: str | None) -> str:
    floating = [value for value in (*call.outputs, *call.inputs) if value.floating]
    if not floating:
        return (call.outputs or call.inputs)[0].dtype if call.outputs or call.inputs else "float32"
    return dtype or floating[0].dtype


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

    calls: Sequence[AtenCall]
    works: Sequence[Work]
    predictions: Sequence[WorkTime]
    figures: Figures
    dtype: str | None = None

    @classmethod
    def of(cls, calls: Sequence[AtenCall], figures: Figures, dtype: str | None = None) -> Costs:
        works = [work(call, dtype) for call in calls]
        weights = sum(amount.weights for amount in works)
        return cls(
            calls=calls,
            works=works,
            predictions=[predicted(amount, figures, weights) for amount in works],
            figures=figures,
            dtype=dtype,
        )

    @property
    def seconds(self) -> float:
        """Predicted for the whole pass."""
        return sum(prediction.seconds for prediction in self.predictions)

    @property
    def bytes(self) -> int:
        return sum(amount.bytes for amount in self.works)

    def seconds_of(self, calls: Sequence[AtenCall]) -> float:
        return sum(self.predictions[call.index].seconds for call in calls)

    def bytes_of(self, calls: Sequence[AtenCall]) -> int:
        return sum(self.works[call.index].bytes for call in calls)

    def share(self, calls: Sequence[AtenCall]) -> float:
        """The part of the predicted time that these calls take, from 0 to 1."""
        return self.seconds_of(calls) / self.seconds if self.seconds else 0.0


def cost_table(costs: Costs, kinds: Mapping[str, str], *, most_rows: int = 20) -> Table:
    """The layers that take longest, the others in one row, and the sum.

    Args:
        costs: of one pass.
        kinds: class of each layer by its name.
        most_rows: layers listed.
    """
    layers: defaultdict[str, list[AtenCall]] = defaultdict(list)
    for call in costs.calls:
        if not call.view:
            layers[call.layer].append(call)
    ordered = sorted(layers, key=lambda name: -costs.seconds_of(layers[name]))
    rows = [_row(name or "(module)", kinds.get(name, ""), layers[name], costs) for name in ordered[:most_rows]]
    unlisted = [call for name in ordered[most_rows:] for call in layers[name]]
    if unlisted:
        rows.append(_row(f"{len(ordered) - most_rows} others", "", unlisted, costs))
    rows.append(_row("all", "", [call for calls in layers.values() for call in calls], costs))
    return Table(title=_title(costs), columns=COLUMNS, rows=tuple(rows))


def _row(name: str, kind: str, calls: Sequence[AtenCall], costs: Costs) -> tuple[Scalar, ...]:
    works = [costs.works[call.index] for call in calls]
    flops, moved = sum(amount.flops for amount in works), sum(amount.bytes for amount in works)
    read = sum(amount.activations + amount.weights for amount in works)
    seconds = costs.seconds_of(calls)
    return (
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
    )


def _bound(calls: Sequence[AtenCall], costs: Costs) -> str:
    """The bound of the calls that take the most time of these."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for prediction in (costs.predictions[call.index] for call in calls):
        seconds[prediction.bound] += prediction.seconds
    return max(seconds, key=lambda bound: seconds[bound], default="-")


def _number(value: float) -> float:
    """Three significant digits: the model is no more exact than that."""
    return float(f"{value:.3g}")


def _title(costs: Costs) -> str:
    figures = costs.figures
    product = next((amount.dtype for amount in costs.works if amount.product), "float32")
    peak = f"{significant(figures.peak(product) / 1e9)} GFLOP/s in {product}"
    bandwidth = f"{size(figures.bandwidths[-1].bytes_per_s)}/s"
    cast = f", floating-point tensors taken as {costs.dtype}" if costs.dtype else ""
    noise = "" if figures.steady else " while other processes were busy, so it can probably do more"
    launches = "" if figures.call_s else "; without the time to launch an operation"
    figures_text = f"{peak}, {bandwidth}; {figures.source}{noise}{launches}"
    return f"Memory access cost, predicted for {figures.name} ({figures_text}){cast}"
