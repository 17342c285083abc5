"""The refusals of ``linear_cross_entropy``, in words: every message names the argument, its shape and the fix."""

from __future__ import annotations

import torch
from torch import Tensor

from togi.core.errors import TogiError
from togi.core.quantities import a_type
from togi.ops.arguments import DTYPES, REDUCTIONS, check_one_of, form_of


class CrossEntropyError(TogiError, ValueError):
    """Shapes, types or options that the loss cannot work with."""


class TargetError(CrossEntropyError, IndexError):
    """A target outside of the vocabulary."""


def check_options(reduction: str, label_smoothing: float) -> None:
    """Raises CrossEntropyError for an unknown reduction, or a smoothing that is none."""
    check_one_of("reduction", reduction, REDUCTIONS, CrossEntropyError)
    if not 0 <= label_smoothing <= 1:
        raise CrossEntropyError(
            f"label_smoothing={label_smoothing} is not a share of the loss: give a number from 0 to 1, such as 0.1."
        )


def check_tensors(**given: object) -> None:
    """Raises CrossEntropyError for what is not a tensor."""
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise CrossEntropyError(
                f"{name} is {a_type(value)}: give a tensor (a layer's weight, such as model.lm_head.weight)."
            )


def check_shapes(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> None:
    """Raises CrossEntropyError unless shapes, devices and the type of the target go together."""
    if hidden.dim() < 1 or weight.dim() != 2 or hidden.shape[-1] != weight.shape[1]:
        raise CrossEntropyError(
            f"{form_of('hidden', hidden)} and {form_of('weight', weight)}: hidden has to be [..., D] and weight "
            "[V, D]. Is the weight stored the other way round? Then give weight.T."
        )
    if len(weight) == 0:
        raise CrossEntropyError(
            f"{form_of('weight', weight)}: a vocabulary of 0 has no loss; give [V, D] with V of 1 or more."
        )
    if target.shape != hidden.shape[:-1]:
        raise CrossEntropyError(
            f"{form_of('target', target)} has to be of the shape {list(hidden.shape[:-1])}: one class per row of "
            f"{form_of('hidden', hidden)}. To predict the next token give hidden[:, :-1] and tokens[:, 1:]."
        )
    if target.dtype != torch.int64:
        raise CrossEntropyError(
            f"{form_of('target', target)}: classes are int64, so write target.long(). Probabilities per class are not "
            "supported here: they would be N x V themselves."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise CrossEntropyError(
            f"{form_of('bias', bias)} has to be {[len(weight)]}: one per row of {form_of('weight', weight)}."
        )
    devices = {t.device for t in (hidden, weight, target, bias) if t is not None}
    if len(devices) > 1:
        raise CrossEntropyError(
            f"hidden is on {hidden.device}, weight on {weight.device} and target on {target.device}"
            f"{f' and bias on {bias.device}' if bias is not None else ''}: move them to one, such as "
            "target.to(hidden.device)."
        )


def check_dtypes(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raises CrossEntropyError unless all are of one floating dtype."""
    dtypes = {t.dtype for t in (hidden, weight, bias) if t is not None}
    if len(dtypes) > 1:
        described_bias = "" if bias is None else f" and {form_of('bias', bias)}"
        raise CrossEntropyError(
            f"{form_of('hidden', hidden)} and {form_of('weight', weight)}"
            f"{described_bias} differ in dtype. Run it under torch.autocast, or convert one: hidden.to(weight.dtype)."
        )
    if hidden.dtype not in DTYPES:
        raise CrossEntropyError(f"{form_of('hidden', hidden)}: give float32, float64, float16 or bfloat16.")


def check_range(targets: Tensor, vocabulary: int) -> None:
    """Raises TargetError for a target below 0, or not below the size of the vocabulary."""
    wrong = targets[(targets < 0) | (targets >= vocabulary)]
    if len(wrong):
        raise TargetError(
            f"target {int(wrong[0])} is out of bounds for a vocabulary of {vocabulary} ({len(wrong)} such targets). Is "
            "the tokenizer larger than the weight, or is padding marked by another number? Then say ignore_index."
        )
