"""The rule ``bias-before-norm``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import percent, plural, size
from togi.lint.finding import Cost, Finding
from togi.lint.module.context import ModuleContext, layers
from togi.lint.module.forward_pass import AtenCall, bias_of, is_linear, uses_batch_statistics
from togi.lint.rule import ModuleRule

LEAST_SHARE = 0.01
"""Of the bytes that a pass moves: below this, the results that get the bias are too small to matter."""


class BiasBeforeNorm(ModuleRule):
    """A convolution or linear layer has a bias, and the norm after it takes the bias out again.

    What it reports: layers with a bias whose only use is a norm that subtracts a mean per channel: a batch norm, an
    instance norm, or a group norm with one channel per group.

    Why it costs: the parameters do nothing. On a GPU, eager mode adds the bias of a convolution in a pass of its own
    over the result; in training, its gradient is another pass over the result's gradient in every step. Where the norm
    is folded for inference, it costs nothing.

    When it stays silent: something else reads the layer's result, it is returned, or the layer is used in another place
    without a norm. The norm takes its mean over several channels (layer norm, group norm), which keeps the bias. The
    results are under 1 % of what the pass moves.

    Example: ``nn.Sequential(nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64))``

    Use instead: ``nn.Conv2d(64, 64, 3, bias=False)``. In a trained model with running statistics,
    subtract the bias from the norm's ``running_mean`` when it is removed; ``togi tune`` does it with
    ``fold_batch_norm``.

    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html, "Disable bias for convolutions
    directly followed by a batch norm"; S. Ioffe, C. Szegedy, https://arxiv.org/abs/1502.03167, section 3.2.
    """

    id = "bias-before-norm"
    technique = "fold_batch_norm"

    def check(self, context: ModuleContext) -> Iterable[Finding]:
        biased = [call for call in context.forward.calls if _bias_is_taken_out(context, call)]
        moved = sum(value.bytes for call in biased for value in call.outputs)
        if not biased or moved < LEAST_SHARE * context.costs.bytes:
            return
        biases = {bias.number: bias for call in biased if (bias := bias_of(call))}
        names = list(dict.fromkeys(call.layer for call in biased))
        running = not any(uses_batch_statistics(call) for call in _norms(context, biased))
        yield Finding(
            rule=self.id,
            layer=names[0],
            count=len(names),
            message=f"{plural(len(names), 'layer')} with a bias before a norm that subtracts it again.",
            evidence=f"{layers(names)}: nothing but the norm reads the result.",
            remedy=f"Build {'them' if len(names) > 1 else 'it'} with bias=False"
            + (
                "; for trained weights subtract the bias from the norm's running_mean (fold_batch_norm does both)."
                if running
                else "; the norm computes its mean from the batch, so nothing else changes."
            ),
            cost=Cost(
                text=f"{sum(bias.elements for bias in biases.values()):,} parameters without effect; in training a "
                f"pass over gradients of {size(moved)}, on a GPU in eager mode a pass over results of that size "
                f"({percent(2 * moved / (context.costs.bytes + 2 * moved))} of all bytes there)",
                measured=False,
                bytes=2 * moved if context.costs.figures.call_s == 0 or context.device == "cuda" else 0,
            ),
        )


def _norms(context: ModuleContext, biased: Iterable[AtenCall]) -> list[AtenCall]:
    return [norm for call in biased if (norm := context.flow.only_user(call.outputs[0]))]


def _bias_is_taken_out(context: ModuleContext, call: AtenCall) -> bool:
    bias = bias_of(call) if is_linear(call) else None
    if bias is None:
        return False
    return all(is_linear(user) and _before_norm(context, user) for user in context.flow.users(bias))


def _before_norm(context: ModuleContext, call: AtenCall) -> bool:
    norm = context.flow.only_user(call.outputs[0])
    if norm is None:
        return False
    if norm.name == "native_group_norm":
        return bool(norm.given["group"] == norm.given["C"])
    return norm.name == "cudnn_batch_norm" or norm.name.startswith(("native_batch_norm", "_native_batch_norm"))
