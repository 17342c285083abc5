"""The rule ``memory-bound-separable-convolution``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from togi.core.quantities import percent, plural
from togi.lint.finding import Cost, Finding
from togi.lint.module.context import ModuleContext, layers
from togi.lint.module.forward_pass import CONVOLUTIONS, AtenCall, AtenTensor, is_linear
from togi.lint.roofline.costs import Work, predicted, work
from togi.lint.rule import ModuleRule

LEAST_SHARE = 0.05
BETWEEN = frozenset(
    """native_batch_norm cudnn_batch_norm native_layer_norm clone gelu clamp clamp_min clamp_min_ relu relu_ leaky_relu
    leaky_relu_ silu silu_ hardtanh hardtanh_ hardswish hardswish_""".split()
)
"""What usually stands between the two halves."""


class MemoryBoundSeparableConvolution(ModuleRule):
    """A depthwise convolution saves arithmetic that this device has plenty of, and is bound by memory instead.

    What it reports: depthwise convolutions with the pointwise one after them, if the two take at least 5 % of the
    predicted time. The roofline of the target device says that one dense convolution of the same kernel would take no
    longer, although it has many times the FLOPs. It is a prediction from the device's best figures and says nothing
    about accuracy: a different layer has to be trained.

    Why it costs: a depthwise convolution does a few FLOPs for each byte that it moves. Fewer FLOPs do not make it
    faster where bytes are what it waits for.

    When it stays silent: the target device is short of arithmetic (most processors in float32), the pair hardly counts,
    or a dense convolution is predicted to be slower.

    Example: ``Conv2d(24, 24, 3, groups=24)`` then ``Conv2d(24, 48, 1)`` at 112 x 112 on a GPU in half precision

    Use instead: where the model is trained anew, try a dense or grouped convolution in the early, wide layers
    (EfficientNetV2's fused blocks), and measure that shape on the device first.

    Source: M. Tan, Q. Le, EfficientNetV2, https://arxiv.org/abs/2104.00298, section 3.2; N. Ma et al., ShuffleNet V2,
    https://arxiv.org/abs/1807.11164.
    """

    id = "memory-bound-separable-convolution"

    def check(self, context: ModuleContext) -> Iterable[Finding]:
        pairs = [pair for call in context.forward.calls if (pair := _pair(context, call)) is not None]
        worse = [pair for pair in pairs if pair.bound_by_memory and pair.dense_s <= pair.seconds]
        calls = [call for pair in worse for call in (pair.depthwise, pair.pointwise)]
        share = context.share(calls)
        if not worse or share < LEAST_SHARE:
            return
        first = max(worse, key=lambda pair: pair.seconds)
        seconds, dense_s = sum(pair.seconds for pair in worse), sum(pair.dense_s for pair in worse)
        yield Finding(
            rule=self.id,
            layer=first.depthwise.layer,
            count=len(worse),
            message=f"{plural(len(worse), 'separable convolution')} predicted to wait for memory on "
            f"{context.costs.figures.name}: their few FLOPs are not what takes the time.",
            evidence=f"{layers(pair.depthwise.layer for pair in worse)}; largest at "
            f"{first.depthwise.outputs[0].shape}: {first.intensity:.1f} FLOP/byte.",
            remedy="If you train it anew, measure a dense or grouped convolution at these shapes on the device first: "
            "the prediction knows its best figures only, and nothing of accuracy.",
            cost=Cost(
                text=f"{percent(share)} of the predicted time; predicted {seconds * 1e3:.3g} ms, one dense convolution "
                f"each {dense_s * 1e3:.3g} ms (not measured)",
                measured=False,
                seconds=seconds,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A depthwise convolution and the pointwise one after it."""

    depthwise: AtenCall
    pointwise: AtenCall
    seconds: float
    """Predicted for both."""
    dense_s: float
    """Predicted for one dense convolution in their place."""
    bound_by_memory: bool
    intensity: float
    """FLOP per byte of the depthwise one."""


def _pair(context: ModuleContext, call: AtenCall) -> _Pair | None:
    if not _is_depthwise(call):
        return None
    user = context.flow.only_user(call.outputs[0])
    while user is not None and user.name in BETWEEN:
        user = context.flow.only_user(user.outputs[0])
    if user is None or not _is_pointwise(user):
        return None
    costs = context.costs
    own = work(call, costs.dtype)
    return _Pair(
        depthwise=call,
        pointwise=user,
        seconds=costs.seconds_of([call, user]),
        dense_s=predicted(_dense(call, user, context), costs.figures).seconds,
        bound_by_memory=costs.predictions[call.index].bound == "memory",
        intensity=own.flops / own.bytes,
    )


def _is_depthwise(call: AtenCall) -> bool:
    kernel = _kernel(call)
    return kernel is not None and kernel.shape[1] == 1 and int(call.given["groups"]) > 1 and _taps(kernel) > 1


def _is_pointwise(call: AtenCall) -> bool:
    kernel = _kernel(call)
    return kernel is not None and int(call.given["groups"]) == 1 and _taps(kernel) == 1


def _kernel(call: AtenCall) -> AtenTensor | None:
    """The weights of a convolution that is not transposed; None for other calls."""
    plain = call.name in CONVOLUTIONS and is_linear(call) and not call.given.get("transposed")
    return call.value("weight") if plain else None


def _taps(kernel: AtenTensor) -> int:
    return prod(kernel.shape[2:])


def _dense(depthwise: AtenCall, pointwise: AtenCall, context: ModuleContext) -> Work:
    """One convolution with the depthwise one's kernel, from its input to the pointwise one's result."""
    kernel = _kernel(depthwise)
    assert kernel is not None  # it is a convolution
    first, last = (work(call, context.costs.dtype) for call in (depthwise, pointwise))
    flops = (pointwise.flops or 0) * _taps(kernel)
    return replace(last, flops=flops, activations=first.activations, weights=last.weights * _taps(kernel))
