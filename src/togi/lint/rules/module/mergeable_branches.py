"""The rule ``mergeable-branches``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import plural
from togi.lint.finding import Cost, Finding
from togi.lint.module.context import ModuleContext, layer_of, layers
from togi.lint.rule import ModuleRule


class MergeableBranches(ModuleRule):
    """Parallel branches that are linear in the same input are only added: one layer can do the work of all.

    What it reports: sums in the captured graph of which several terms are convolutions, linear layers, batch norms,
    average pools or the input itself, of the same input and of sizes that fit into one kernel. Examples are RepVGG,
    MobileOne, ACNet and LoRA blocks in their training form.

    Why it costs: every branch reads the input and writes a result of full size, and every addition reads two and writes
    one. A merged layer reads once and writes once.

    When it stays silent: the module cannot be captured as a graph, a branch's result is used elsewhere, strides or
    groups differ, or the merged kernel would cost more than 1.5 times the branches' multiplications.

    Example: ``y = self.conv3x3(x) + self.conv1x1(x) + x``

    Use instead: ``togi tune`` with ``merge_branches``; or the model's own method
    (``reparameterize_model``, ``switch_to_deploy``, ``merge_and_unload``) before inference.

    Source: Ding et al., RepVGG, https://arxiv.org/abs/2101.03697; Vasu et al., MobileOne,
    https://arxiv.org/abs/2206.04040.
    """

    id = "mergeable-branches"
    technique = "merge_branches"

    def check(self, context: ModuleContext) -> Iterable[Finding]:
        from togi.graph.merged_branches import merge_sums

        graph = context.graph()
        if graph is None:
            return
        merged = merge_sums(graph)
        if not merged:
            return
        names = [layer_of(root) for root in merged]
        branches = sum(merged.values())
        yield Finding(
            rule=self.id,
            layer=names[0],
            count=len(merged),
            message=f"{branches:,} parallel branch{'es' if branches > 1 else ''} in "
            f"{plural(len(merged), 'sum')} can be merged into the layers next to them.",
            evidence=f"{layers(names)}: the terms are linear in the same input and used only in the sum.",
            remedy="togi tune does it with merge_branches; or call the model's own method for it before inference.",
            cost=Cost(text=f"{branches} passes over input and result more than needed", measured=False),
        )
