"""The rule ``handwritten-attention``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from togi.core.quantities import percent, plural, size
from togi.lint.finding import Cost, Finding
from togi.lint.module.context import ModuleContext, layers, place_of
from togi.lint.module.forward_pass import AtenCall, AtenTensor, Line
from togi.lint.rule import ModuleRule

LEAST_SHARE = 0.01
PRODUCTS = frozenset({"bmm", "baddbmm", "matmul"})
SCALE_AND_MASK = frozenset(
    {"mul", "mul_", "div", "div_", "add", "add_", "sub", "sub_", "masked_fill", "masked_fill_", "where"}
    | {"_to_copy", "clone", "copy_", "expand", "contiguous"}
)
"""What may stand between the first product and the softmax, and has a place in scaled_dot_product_attention."""
CASTS = frozenset({"_to_copy", "clone", "contiguous", "native_dropout"})


class HandwrittenAttention(ModuleRule):
    """Attention is computed by hand where ``scaled_dot_product_attention`` serves.

    What it reports: ``softmax(Q K^T * scale + mask) V`` in the operations of a pass, found by its data flow, however it
    is written (matmul, einsum, bmm), with the line that calls softmax.

    Why it costs: the scores, with as many elements as tokens squared for each head, are written and read at every step:
    product, scale, mask, softmax, product. The fused kernels keep them in registers, and memory grows with the number
    of tokens instead of its square.

    When it stays silent: the probabilities are used for something else or returned, something stands between that the
    fused function has no place for (a softcap, mixing of heads), or the steps it saves are predicted to take less
    than 1 % of the time.

    Example: ``(q @ k.transpose(-2, -1) / math.sqrt(d)).softmax(-1) @ v``

    Use instead: ``F.scaled_dot_product_attention(q, k, v, attn_mask=mask)``; for ``nn.MultiheadAttention``
    ``need_weights=False``; for transformers ``attn_implementation="sdpa"``.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html;
    T. Dao et al., FlashAttention, https://arxiv.org/abs/2205.14135.
    """

    id = "handwritten-attention"

    def check(self, context: ModuleContext) -> Iterable[Finding]:
        fused = {(call.layer, call.line) for call in context.forward.functions if call.name.startswith("scaled_dot")}
        attentions = [
            attention
            for call in context.calls("_softmax", "softmax")
            if (call.layer, call.line) not in fused and (attention := _attention(context, call)) is not None
        ]
        steps = [call for attention in attentions for call in attention.between]
        if not attentions or context.share(steps) < LEAST_SHARE:
            return
        by_line: dict[Line | None, list[_Attention]] = {}
        for attention in attentions:
            by_line.setdefault(attention.softmax.line, []).append(attention)
        for line, group in by_line.items():
            yield self._finding(context, line, group)

    def _finding(self, context: ModuleContext, line: Line | None, group: list[_Attention]) -> Finding:
        names = [attention.softmax.layer for attention in group]
        between = [call for attention in group for call in attention.between]
        saved = context.costs.bytes_of(between) + 2 * sum(attention.scores_bytes for attention in group)
        shape = group[0].softmax.outputs[0].shape
        return Finding(
            rule=self.id,
            place=place_of(line),
            layer=names[0],
            count=len(group),
            message=f"{plural(len(group), 'attention')} written by hand: the scores {shape} go through memory "
            f"{2 + len(group[0].between)} times.",
            evidence=f"{layers(names)}" + (f", softmax at {line}." if line else "."),
            remedy=_remedy(context, group[0]),
            cost=Cost(
                text=f"{size(saved)} moved per pass that a fused kernel keeps; scale, mask and softmax alone are "
                f"{percent(context.share(between))} of the predicted time",
                measured=False,
                bytes=saved,
                seconds=context.costs.seconds_of(between),
            ),
        )


@dataclass(frozen=True, kw_only=True)
class _Attention:
    """One attention in the operations of a pass."""

    softmax: AtenCall
    between: tuple[AtenCall, ...]
    """Scale, mask and softmax: the operations on the scores that a fused kernel does without memory."""
    scores_bytes: int


def _attention(context: ModuleContext, softmax: AtenCall) -> _Attention | None:
    scores, last = softmax.value("self"), len(softmax.outputs[0].shape) - 1
    if scores is None or softmax.given.get("dim") not in (-1, last) or last < 2:
        return None
    flow = context.flow
    first = flow.made_by(scores, lambda call: call.name in PRODUCTS, lambda call: call.name in SCALE_AND_MASK)
    if first is None or any(value.constant for value in first.inputs[:2]):
        return None
    user, probabilities = flow.only_user(softmax.outputs[0]), softmax.outputs[0]
    while user is not None and user.name in CASTS:
        probabilities = user.outputs[0]
        user = flow.only_user(probabilities)
    if user is None or user.name not in PRODUCTS or not _is_first(context, user, probabilities):
        return None
    between = [
        call
        for call in context.forward.calls[first.index + 1 : user.index]
        if not call.view
        and call.outputs
        and call.outputs[0].elements == scores.elements
        and call.layer == softmax.layer
    ]
    return _Attention(softmax=softmax, between=tuple(between), scores_bytes=scores.bytes)


def _is_first(context: ModuleContext, product: AtenCall, probabilities: AtenTensor) -> bool:
    """Whether the probabilities are the left side of the product."""
    left = product.value("self") if product.name != "baddbmm" else product.value("batch1")
    maker = context.flow.maker(left)
    return maker is not None and probabilities.number in [value.number for value in maker.outputs]


def _remedy(context: ModuleContext, attention: _Attention) -> str:
    layer = attention.softmax.layer
    kinds = [context.kinds.get(layer, ""), context.kinds.get(layer.rpartition(".")[0], "")]
    if "MultiheadAttention" in kinds:
        return "Call nn.MultiheadAttention with need_weights=False, which takes scaled_dot_product_attention."
    line = attention.softmax.line
    if line is not None and "/transformers/" in line.path.replace("\\", "/"):
        return 'Load the model with attn_implementation="sdpa".'
    return "Use torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=..., scale=...) for these lines."
