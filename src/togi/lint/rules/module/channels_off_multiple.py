"""The rule ``channels-off-multiple``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from togi.core.quantities import percent, plural
from togi.lint.finding import Cost, Finding
from togi.lint.module.context import ModuleContext, layers
from togi.lint.module.forward_pass import CONVOLUTIONS, AtenCall, is_linear
from togi.lint.rule import ModuleRule

LEAST_SHARE = 0.05
FLOAT_MULTIPLE = 8
INT8_MULTIPLE = 32


class ChannelsOffMultiple(ModuleRule):
    """Layers have a number of output channels that matrix units do not like.

    What it reports: convolutions and linear layers whose output channels are not a multiple of 8 (32 where the times
    are predicted for int8), where such layers take at least 5 % of the predicted time, with what padding would cost.

    Why it costs: kernels work on blocks of channels. The last block is filled up with work for nothing, or a slower
    kernel is taken; half precision on tensor cores wants multiples of 8, int8 of 16 or 32.

    When it stays silent: depthwise and grouped convolutions, layers whose padding would add more than half of their
    work (3 channels are not padded to 8), and models where such layers hardly count. Where padding was tried and is not
    faster here, too.

    Example: ``nn.Linear(768, 50257)``, ``nn.Conv2d(60, 60, 3)``

    Use instead: a width that is a multiple (50304, 64) when the model is built. For a trained one ``togi tune`` pads
    with zeros where that is exact (``pad_channels``).

    Source: https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/index.html, "Channels in and
    out"; https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html.
    """

    id = "channels-off-multiple"
    technique = "pad_channels"

    def check(self, context: ModuleContext) -> Iterable[Finding]:
        multiple = INT8_MULTIPLE if context.costs.dtype == "int8" else FLOAT_MULTIPLE
        off_multiple = [off for call in context.forward.calls if (off := _off(call, multiple)) is not None]
        calls = [off.call for off in off_multiple]
        share = context.share(calls)
        if not off_multiple or share < LEAST_SHARE:
            return
        names = list(dict.fromkeys(call.layer for call in calls))
        paddable = _paddable(context, multiple) & set(names)
        more = sum(off.added_flops for off in off_multiple) / max(1, sum(call.flops or 0 for call in calls))
        counts = sorted({(off.channels, off.padded) for off in off_multiple})
        yield Finding(
            rule=self.id,
            layer=names[0],
            count=len(names),
            message=f"{plural(len(names), 'layer')} whose output channels are not a multiple of {multiple}: "
            f"{', '.join(f'{channels} (next: {padded})' for channels, padded in counts[:4])}"
            f"{', ...' * (len(counts) > 4)}.",
            evidence=f"{layers(names)}; {_how_many(len(paddable), len(names))} can be padded exactly.",
            remedy="Choose widths that are multiples when the model is built"
            + ("; togi tune pads this one with pad_channels." if paddable else "."),
            cost=Cost(
                text=f"these layers take {percent(share)} of the predicted time; padding adds {percent(more)} to their "
                "multiplications",
                measured=False,
                seconds=context.costs.seconds_of(calls),
            ),
        )


@dataclass(frozen=True)
class _Off:
    """A layer whose output channels are not a multiple, with the number they would be padded to."""

    call: AtenCall
    channels: int
    padded: int

    @property
    def added_flops(self) -> float:
        return (self.call.flops or 0) * (self.padded / self.channels - 1)


def _off(call: AtenCall, multiple: int) -> _Off | None:
    from togi.graph.channels import GROWTH_AT_MOST

    if not is_linear(call) or call.flops is None or not call.outputs or int(call.given.get("groups") or 1) != 1:
        return None
    channels = _channels(call)
    padded = -(-channels // multiple) * multiple
    return _Off(call, channels, padded) if channels < padded <= GROWTH_AT_MOST * channels else None


def _channels(call: AtenCall) -> int:
    weight = call.value("weight") if call.name in CONVOLUTIONS else None
    if weight is None:
        return call.outputs[0].shape[-1]
    return weight.shape[1 if call.given.get("transposed") else 0]


def _paddable(context: ModuleContext, multiple: int) -> set[str]:
    """Layers that ``pad_channels`` would pad."""
    from togi.graph.channels import group_of, layer
    from togi.lint.module.context import layer_of

    graph = context.graph()
    if graph is None:
        return set()
    groups = [group for node in graph.nodes if (group := group_of(graph, node, multiple)) is not None]
    return {layer_of(node) for group in groups for node in group.layouts if layer(graph, node) is not None}


def _how_many(count: int, of: int) -> str:
    return "none" if not count else "all" if count == of else str(count)
