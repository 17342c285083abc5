"""The technique ``pad_channels``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from togi.core.errors import Refused
from togi.core.records import Facts
from togi.techniques.base import Applies, GraphRewrite, Options, Refuses

if TYPE_CHECKING:
    from togi.graph.edit import EditableGraph


class PadChannels(GraphRewrite):
    """Pad inner channel counts to a multiple of 8 or 16 with zeros.

    What it does: adds channels of zeros to convolutions and linear layers whose output channels are not a multiple, and
    zeros to the weights of the layers that take them. Batch norms, activations, pools, sums, products,
    concatenations and depthwise convolutions between are widened with them. Inputs and outputs keep their sizes.

    When it applies: there are convolutions or linear layers.

    When it refuses: all counts are multiples; or the channels reach an output, or a call between that mixes channels
    in a way it does not know (attention, layer norm, a split). Layers that would grow by more than half stay as they
    are.

    Claim: kernels without remainder loops, and tensor cores for half precision, where the count is odd; a loss where
    the library handles remainders well. ``togi explain pad_channels --prove`` measures it here.

    Source: https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/index.html (channels in and
    out).

    Cost and risk: exact up to rounding (sums have zeros among their terms). More multiplications and memory, in
    proportion.
    """

    id = "pad_channels"
    rank = 30

    def applies(self, facts: Facts) -> Applies | Refuses:
        known = [name.lower() for name in (*facts.functions, *facts.modules)]
        if any(name.startswith(("conv", "linear")) for name in known):
            return Applies()
        return Refuses("it has no convolution or linear layer whose channels could be padded")

    def options(self, facts: Facts) -> Sequence[Options]:
        multiples = (8, 16) if facts.device == "cuda" else (16, 8)
        return [{"multiple": multiple} for multiple in multiples]

    def edit(self, graph: EditableGraph, options: Options) -> str:
        from togi.graph.channels import group_of, layer, pad_group

        multiple = options.get("multiple", 16)
        if type(multiple) is not int or multiple < 2:
            raise Refused(f"multiple must be a whole number from 2 on, not {multiple!r}")
        padded = 0
        for node in graph.nodes:
            group = group_of(graph, node, multiple)
            if group is not None:
                pad_group(graph, group)
                padded += sum(layer(graph, member) is not None for member in group.layouts)
        if not padded:
            raise Refused(f"no layer inside has a number of channels that can be padded to a multiple of {multiple}")
        return f"padded {padded} layers to a multiple of {multiple} channels"
