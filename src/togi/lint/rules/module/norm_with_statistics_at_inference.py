"""The rule ``norm-with-statistics-at-inference``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import percent, plural, size
from togi.lint.finding import Cost, Finding
from togi.lint.module.context import ModuleContext, layers
from togi.lint.module.forward_pass import AtenCall, uses_batch_statistics
from togi.lint.rule import ModuleRule

LEAST_SHARE = 0.1
NORMS = {
    "native_layer_norm": "layer norm",
    "native_group_norm": "group norm",
    "_fused_rms_norm": "RMS norm",
    "native_batch_norm": "batch or instance norm",
}

OF_WEIGHTS = "weight standardisation"


class NormWithStatisticsAtInference(ModuleRule):
    """Norms that compute a mean and a variance from every input take a good part of the time.

    What it reports: layer norms, group norms, instance norms and batch norms without running statistics, by kind, where
    one kind is predicted to take at least 10 % of the time. Weights that are standardised anew in every pass count too.

    Why it costs: statistics of the input need a pass over the activations before the pass that applies them, and can
    never be folded into a neighbour. A batch norm with running statistics is folded away at inference.

    When it stays silent: the kind is predicted to take less than 10 %, as the layer norms of most transformers.

    Example: ``nn.InstanceNorm2d(64)`` or ``nn.BatchNorm2d(64, track_running_stats=False)`` behind every convolution of
    a network for images.

    Use instead: ``nn.BatchNorm2d(64)`` where the model is trained anew and batches are large enough; else let
    ``torch.compile`` fuse the norm with what follows it. It is a matter of the architecture: a trained model cannot
    simply be given another norm.

    Source: S. Ioffe, C. Szegedy, https://arxiv.org/abs/1502.03167; Y. Wu, K. He, Group Normalization,
    https://arxiv.org/abs/1803.08494.
    """

    id = "norm-with-statistics-at-inference"

    def check(self, context: ModuleContext) -> Iterable[Finding]:
        by_kind: dict[str, list[AtenCall]] = {}
        for call in context.forward.calls:
            if kind := _kind(call):
                by_kind.setdefault(kind, []).append(call)
        for kind, calls in by_kind.items():
            share = context.share(calls)
            if share < LEAST_SHARE:
                continue
            names = list(dict.fromkeys(call.layer for call in calls))
            of_weights = kind == OF_WEIGHTS
            moved = context.costs.bytes_of(calls)
            yield Finding(
                rule=self.id,
                layer=names[0],
                count=len(names),
                message=f"{plural(len(names), kind)} compute{'s' * (len(names) == 1)} statistics at inference.",
                evidence=f"{layers(names)}: mean and variance come from "
                f"{'the weights, which stay the same' if of_weights else 'each input'}.",
                remedy="Standardise the weights once, before inference, and store the result in a plain convolution."
                if of_weights
                else "If you train it anew, use norms with running statistics, which fold away; else torch.compile "
                "fuses a norm with its neighbours (togi tune tries it).",
                cost=Cost(
                    text=f"at least {size(moved)} moved per pass, {percent(share)} of the predicted time",
                    measured=False,
                    seconds=context.costs.seconds_of(calls),
                    bytes=moved,
                ),
            )


def _kind(call: AtenCall) -> str:
    if call.name in NORMS and (source := call.value("input")) is not None and source.constant:
        return OF_WEIGHTS
    if call.name in NORMS and call.name != "native_batch_norm":
        return NORMS[call.name]
    return NORMS["native_batch_norm"] if uses_batch_statistics(call) else ""
