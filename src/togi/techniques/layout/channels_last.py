"""The technique ``channels_last``."""

from __future__ import annotations

from togi.techniques.innermost_channels import InnermostChannels


class ChannelsLast(InnermostChannels):
    """Keep two-dimensional activations and weights with the channels innermost in memory.

    What it does: converts weights (and four-dimensional inputs, per call) to ``torch.channels_last``, in which
    convolutions and most operations between them stay. Outputs are given back with the original's order of dimensions
    in memory, so that a caller's ``view`` still works. A module whose own code needs contiguous memory is captured.

    When it applies: the forward pass calls two-dimensional convolutions. Not before an engine that lays out memory by
    itself (OpenVINO, ONNX Runtime, TensorRT).

    When it refuses: no weight changes its layout (it is in this format already), or outputs hold something that is not
    a tensor and cannot be rebuilt.

    Claim: faster two-dimensional convolutions on most CPUs and, in half precision, on GPUs with tensor cores; not for
    every model. ``togi explain channels_last --prove`` measures it here.

    Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html

    Cost and risk: exact up to rounding (kernels add in another order). Operations without a channels-last kernel
    convert back and forth, which can make a model slower. Two copies of the weights exist while it is built.
    """

    id = "channels_last"
    dimensions = 2
