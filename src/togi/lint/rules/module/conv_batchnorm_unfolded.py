"""The rule ``conv-batchnorm-unfolded``."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.quantities import percent, plural, size
from togi.lint.finding import Cost, Finding
from togi.lint.module.context import ModuleContext, layers
from togi.lint.module.forward_pass import BATCH_NORMS, AtenCall, is_linear, uses_batch_statistics
from togi.lint.rule import ModuleRule

LEAST_SHARE = 0.01


class ConvBatchnormUnfolded(ModuleRule):
    """A batch norm whose statistics are fixed at inference runs behind a convolution that could hold it.

    What it reports: batch norms at inference whose input is the result of a convolution or linear layer that nothing
    else reads.

    Why it costs: with running statistics a batch norm is a scale and a shift per channel, and both fit into the weights
    before it. Left out of them, it reads and writes the whole activation once more.

    When it stays silent: something else reads what lies between, the statistics come from the batch, the weights are
    computed in the forward pass, or all such norms are predicted to take less than 1 % of the time.

    Example: ``nn.Sequential(nn.Conv2d(3, 64, 3, bias=False), nn.BatchNorm2d(64)).eval()``

    Use instead: ``togi tune`` with ``fold_batch_norm``; by hand
    ``torch.nn.utils.fusion.fuse_conv_bn_eval(conv, bn)``, for a transposed convolution with ``transpose=True``: without
    it the result is wrong, and nothing says so. Engines (TorchScript's freeze, ONNX Runtime, OpenVINO) fold by
    themselves.

    Source: https://arxiv.org/abs/1712.05877, section 3.2;
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.fusion.fuse_conv_bn_eval.html
    """

    id = "conv-batchnorm-unfolded"
    technique = "fold_batch_norm"

    def check(self, context: ModuleContext) -> Iterable[Finding]:
        norms = [call for call in context.calls(*BATCH_NORMS) if _foldable(context, call)]
        share = context.share(norms)
        if not norms or share < LEAST_SHARE:
            return
        names = list(dict.fromkeys(call.layer for call in norms))
        moved = context.costs.bytes_of(norms)
        yield Finding(
            rule=self.id,
            layer=names[0],
            count=len(names),
            message=f"{plural(len(names), 'batch norm')} could be part of the convolution or linear layer before "
            f"{'them' if len(names) > 1 else 'it'}.",
            evidence=f"{layers(names)}: at inference the statistics are fixed, and nothing else reads what lies "
            "between.",
            remedy="togi tune does it with fold_batch_norm; in code, torch.nn.utils.fusion.fuse_conv_bn_eval for each"
            f"{_where_transposed(context, norms)}.",
            cost=Cost(
                text=f"{size(moved)} moved per pass, {percent(share)} of the predicted time",
                measured=False,
                seconds=context.costs.seconds_of(norms),
                bytes=moved,
            ),
        )


def _where_transposed(context: ModuleContext, norms: list[AtenCall]) -> str:
    """What to add for transposed convolutions, where the function's own default is silently wrong."""
    makers = [context.flow.maker(norm.value("input")) for norm in norms]
    transposed = [maker is not None and bool(maker.given.get("transposed")) for maker in makers]
    if not any(transposed):
        return ""
    return ", with transpose=True" + ("" if all(transposed) else " where the convolution is transposed")


def _foldable(context: ModuleContext, norm: AtenCall) -> bool:
    source = norm.value("input")
    maker = context.flow.maker(source)
    if source is None or maker is None or uses_batch_statistics(norm) or not is_linear(maker):
        return False
    constants = [norm.value(name) for name in ("weight", "bias", "running_mean", "running_var")]
    return (
        all(value is None or value.constant for value in constants) and context.flow.only_user(maker.outputs[0]) is norm
    )
