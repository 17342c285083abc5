"""The technique ``fold_batch_norm``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.records import Facts
from togi.techniques.base import Applies, GraphRewrite, Options, Refuses

if TYPE_CHECKING:
    from togi.graph.edit import EditableGraph


class FoldBatchNorm(GraphRewrite):
    """Fold batch norms into the convolutions and linear layers next to them.

    What it does: a batch norm with running statistics is ``y * scale + shift`` per channel. Before it, a convolution
    (1d, 2d, 3d, transposed, grouped) or linear layer takes both into its weight and bias; after it, an unpadded
    convolution or a linear layer does. Frozen batch norms and other constant factors per channel (layer scale) are
    folded in the same way. Found in the captured graph, whatever classes wrote it; computed in float64, rounded once.

    When it applies: the forward pass calls a batch norm, or multiplies, next to a convolution or linear layer.

    When it refuses: nothing in the graph can be folded: the batch norm uses the statistics of the batch, the value
    between has other users, weights are computed from the input, or the folded weights would overflow their dtype.

    Claim: one pass over the activations less per folded norm. ``togi explain fold_batch_norm --prove`` measures it
    here.

    Source: Jacob et al., Quantization and Training of Neural Networks, https://arxiv.org/abs/1712.05877, section 3.2;
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.fusion.fuse_conv_bn_weights.html

    Cost and risk: exact up to rounding. A weight that several norms share is stored once per norm.
    """

    id = "fold_batch_norm"
    rank = 10
    nothing_to_do = "no batch norm or factor in the graph can be folded into a convolution or linear layer"

    def applies(self, facts: Facts) -> Applies | Refuses:
        factor = facts.functions.get("mul", 0) + facts.functions.get("mul_", 0)
        if not _normalises(facts) and not factor:
            return Refuses("it has no batch norm and no constant factors to fold")
        known = facts.functions or facts.modules
        if not any(word in name.lower() for name in known for word in ("conv", "linear", "addmm")):
            return Refuses("it has no convolution or linear layer to fold a batch norm into")
        return Applies()

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return 1.15 if _normalises(facts) else 1.0

    def edit(self, graph: EditableGraph, options: Options) -> str:
        from togi.graph.folding import fold_into_next, fold_into_previous

        folded = sum(fold_into_previous(graph, node) or fold_into_next(graph, node) for node in graph.nodes)
        return f"folded {folded} batch norms or constant factors" if folded else ""


def _normalises(facts: Facts) -> bool:
    return any("batch_norm" in name or "BatchNorm" in name for name in facts.functions or facts.modules)
