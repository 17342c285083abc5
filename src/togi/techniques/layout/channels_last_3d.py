"""The technique ``channels_last_3d``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.records import Facts, Stage
from togi.techniques.base import Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate


class ChannelsLast3d(Technique):
    """Keep three-dimensional activations and weights with the channels innermost in memory.

    What it does: converts weights (and five-dimensional inputs, per call) to ``torch.channels_last_3d``, in which
    convolutions and most operations between them stay. Outputs are given back with the original's order of dimensions
    in memory, so that a caller's ``view`` still works. A module whose own code needs contiguous memory is captured.

    When it applies: the forward pass calls three-dimensional convolutions.

    When it refuses: no weight changes its layout (it is in this format already), or outputs hold something that is not
    a tensor and cannot be rebuilt.

    Claim: faster three-dimensional convolutions on most CPUs and, in half precision, on GPUs with tensor cores; not
    for every model. ``togi explain channels_last_3d --prove`` measures it here.

    Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html

    Cost and risk: exact up to rounding (kernels add in another order). Operations without a channels-last kernel
    convert back and forth, which can make a model slower. Two copies of the weights exist while it is built.
    """

    id = "channels_last_3d"
    stage = Stage.LAYOUT
    provides = frozenset({"memory_format"})
    conflicts = frozenset({"memory_format"})

    def applies(self, facts: Facts) -> Applies | Refuses:
        known = {*facts.functions, *facts.modules}
        if known & {"conv3d", "conv_transpose3d", "convolution", "Conv3d", "ConvTranspose3d"}:
            return Applies()
        return Refuses("it has no three-dimensional convolution, which is what this layout is for")

    def promise(self, facts: Facts, options: Options) -> float:
        return 1.2

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 0.1 + 3e-3 * (facts.latency_ms or 0.0)

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        import torch

        from togi.techniques.memory_format import with_memory_format

        return with_memory_format(candidate, torch.channels_last_3d)
