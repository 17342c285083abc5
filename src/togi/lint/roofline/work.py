"""What one operation has to do, and how long that takes at best.

Unfused eager execution: every operation reads its inputs from memory and writes its results there; making a view is
free. That is what "memory access cost" counts (N. Ma et al., "ShuffleNet V2", 2018, arXiv:1807.11164, guideline G1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from togi.lint.module.forward_pass import Call, Value
from togi.lint.roofline.figures import Figures

_LOOKUPS = frozenset({"embedding", "index", "index_select", "gather", "take", "_embedding_bag"})
"""They read the rows that they return, not the whole table."""
_WRITE_ONLY = frozenset({"fill_", "zero_", "copy_", "bernoulli_", "normal_", "uniform_"})
"""In place, without reading what they write over."""
_CONVOLUTIONS = frozenset({"convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution"})

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
class Prediction:
    """The time of some work on a device, and what bounds it."""

    seconds: float
    bound: Bound


def work(call: Call, dtype: str | None = None) -> Work:
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
        convolution=call.name in _CONVOLUTIONS,
        elements=largest,
        ceiling=_ceiling(call),
    )


def _ceiling(call: Call) -> str:
    weight = call.value("weight")
    if call.name in _CONVOLUTIONS and weight is not None:
        return "depthwise" if int(call.given.get("groups") or 1) > 1 and weight.shape[1] == 1 else ""
    return next((kind for kind, names in CEILINGS.items() if call.name in names), "")


def bytes_of(value: Value, dtype: str | None = None) -> int:
    """Bytes of a value; with ``dtype``, as if it were of that one (integers stay)."""
    return value.elements * (_ITEMSIZE.get(dtype, value.itemsize) if dtype and value.floating else value.itemsize)


_ITEMSIZE = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


def predicted(work: Work, figures: Figures, model_weights: int = 0) -> Prediction:
    """The roofline's answer for ``work``.

    Args:
        work: of one call.
        figures: of the device.
        model_weights: bytes of all weights that a pass reads. Between two uses of a weight lie all others, so weights
            come at the bandwidth of that working set, activations at that of the operation's own.
    """
    if not work.bytes:
        return Prediction(seconds=0.0, bound="-")
    own = work.activations + work.written
    moving_s = own / figures.bandwidth(work.bytes) + work.weights / figures.bandwidth(max(work.bytes, model_weights))
    computing_s = work.flops / figures.peak(work.dtype, convolution=work.convolution) if work.product else 0.0
    if work.ceiling in figures.ceilings:
        computing_s = max(computing_s, work.elements / figures.ceilings[work.ceiling])
    longest = max(moving_s, computing_s)
    bound: Bound = "arithmetic" if computing_s > moving_s else "memory"
    call_s = figures.product_call_s if work.product else figures.call_s
    return Prediction(seconds=longest + call_s, bound="calls" if call_s > longest else bound)


def _reads(call: Call, dtype: str | None) -> Iterator[tuple[int, bool]]:
    """``(bytes, constant)`` of everything that the call reads."""
    written = sum(bytes_of(value, dtype) for value in call.outputs)
    for number, (name, given) in enumerate(call.given.items()):
        if name in call.written and call.name in _WRITE_ONLY:
            continue
        for value in _values(given):
            table = number == 0 and call.name in _LOOKUPS
            count = bytes_of(value, dtype)
            yield (min(count, written) if table else count), value.constant


def _values(given: object) -> Iterable[Value]:
    if isinstance(given, Value):
        return (given,)
    return [item for item in given if isinstance(item, Value)] if isinstance(given, tuple) else ()


def _dtype(call: Call, dtype: str | None) -> str:
    floating = [value for value in (*call.outputs, *call.inputs) if value.floating]
    if not floating:
        return (call.outputs or call.inputs)[0].dtype if call.outputs or call.inputs else "float32"
    return dtype or floating[0].dtype
