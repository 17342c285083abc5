"""The technique ``merge_branches``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.records import Facts
from togi.techniques.base import Applies, GraphRewrite, Options, Refuses

if TYPE_CHECKING:
    from togi.graph.edit import EditableGraph


class MergeBranches(GraphRewrite):
    """Merge parallel linear branches whose results are only added into one convolution or linear layer.

    What it does: finds sums in the captured graph whose terms are linear in the same input, places their kernels on a
    common grid and adds them. Such terms are convolutions of other kernel sizes (3x3, 1x1, 1x3 and 3x1), batch norms,
    factors and identity on the input, average pools, and low-rank adapters next to a linear layer. RepVGG, MobileOne,
    ACNet and LoRA blocks become one call each, whatever classes wrote them. Computed in float64, rounded once.

    When it applies: the forward pass adds, and has convolutions or linear layers.

    When it refuses: no sum in the graph has such terms; strides, groups or dilations differ; a branch's result has
    other users; the merged kernel would cost over 1.5 times the branches' multiplications.

    Claim: one pass over input and output instead of one per branch. ``togi explain merge_branches --prove`` measures
    it here.

    Source: Ding et al., RepVGG, https://arxiv.org/abs/2101.03697; ACNet, https://arxiv.org/abs/1908.03930;
    Vasu et al., MobileOne, https://arxiv.org/abs/2206.04040.

    Cost and risk: exact up to rounding; sums are taken in another order, which float16 and bfloat16 weights may show.
    """

    id = "merge_branches"
    rank = 20
    nothing_to_do = "no sum in the graph has two terms that are linear in the same input and fit together"

    def applies(self, facts: Facts) -> Applies | Refuses:
        if not facts.functions:
            return Applies()
        if not any(name.rstrip("_").strip("_") in ("add", "iadd", "radd", "sum") for name in facts.functions):
            return Refuses("it adds nothing, so there are no branches to merge")
        if not any(name.startswith(("conv", "linear")) for name in facts.functions):
            return Refuses("it has no convolution or linear layer")
        return Applies()

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        convolutions = facts.functions.get("conv2d", 0)
        return 1.3 if facts.functions.get("batch_norm", 0) > 1.2 * convolutions > 0 else 1.02

    def edit(self, graph: EditableGraph, options: Options) -> str:
        from togi.graph.merged_branches import merge_sums

        merged = sum(merge_sums(graph).values())
        return f"merged {merged} parallel branches" if merged else ""
