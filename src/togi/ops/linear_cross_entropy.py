"""The last projection of a language model and its cross-entropy, without the N x V logits or their gradient.

Logits are made in blocks of some rows and some of the vocabulary, and reduced at once: a running maximum and sum give
the log-sum-exp of each row. The backward pass makes every block again from it. So a step multiplies matrices four times
instead of three, and can still take less time where logits do not fit the caches. Nothing but two numbers per row is
kept between the passes, every upstream gradient is right (a loss scale, weights per row), and the gradient of the
weight is rounded once.

The other way computes the gradients in the forward pass, for an upstream gradient of one (Liger, and torch's own
``torch.nn.functional.linear_cross_entropy`` with ``options``): three multiplications, and gradients that are kept from
then on.

Sources: arXiv:2411.09009 (Cut Cross-Entropy), arXiv:2410.10989 (Liger), arXiv:1805.02867 (running maximum and sum),
arXiv:2202.08906 (z-loss).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from togi.ops.linear_arguments import check_dtypes, check_options, check_range, check_shapes, check_tensors
from togi.ops.logit_blocks import LogitBlocks, add_product
from togi.ops.measures import compute_dtype


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    memory: str | int = "32MiB",
) -> Tensor:
    """torch's ``cross_entropy(linear(hidden, weight, bias), target)``, in blocks.

    Args:
        hidden: [..., D]; float32, float64, float16 or bfloat16. Autocast casts it, weight and bias as for ``linear``.
        weight: [V, D] in the dtype of ``hidden``, such as ``model.lm_head.weight``.
        target: [...], the shape of ``hidden`` without its last dimension; int64, from 0 to V - 1, or ``ignore_index``.
        bias: [V].
        ignore_index: rows with this target cost nothing: no mean counts them, and they are not computed.
        reduction: ``mean`` (over the rows that are not ignored; NaN where there are none), ``sum``, or ``none``, which
            gives [...] with 0 where ignored.
        label_smoothing: from 0 to 1.
        z_loss: adds ``z_loss * logsumexp(logits) ** 2`` to the loss of each row that is not ignored.
        memory: what a block of logits may take, ``"32MiB"`` or bytes. Besides it there are the gradients themselves, a
            few numbers per row, and where some rows are ignored a copy of the others of ``hidden``, and of their
            gradient. Half precision sums the gradient of ``hidden`` in float32; and that of a block of the weight,
            where ``memory`` does not hold 512 columns of all rows. Next to such a sum is the product that it gets.

    Returns:
        In the dtype of ``hidden``; float32 under autocast. Logits are rounded to the dtype of ``hidden``, as torch's
        are; what follows is computed in float32 (float64 in its own).

    The gradient of an ignored row is 0 even where its logits are NaN; torch's is NaN there. Can be differentiated once.
    Ignored rows are looked for on the host, which waits for the device twice per pass. torch.compile keeps each pass as
    one node.

    Raises:
        CrossEntropyError: shapes, dtypes, devices or options do not go together.
        TargetError: a target is neither in the vocabulary nor ``ignore_index``.
        BudgetError: ``memory`` is not a size.
    """
    from togi.core.quantities import parse_size  # here, so that the boxes import nothing but themselves

    memory_bytes = parse_size(memory, "memory")
    check_options(reduction, label_smoothing)
    check_tensors(hidden=hidden, weight=weight, target=target)
    check_shapes(hidden, weight, target, bias)
    is_cast = torch.is_autocast_enabled(hidden.device.type) and hidden.dtype != torch.float64
    if is_cast:
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    check_dtypes(hidden, weight, bias)
    rows, targets = hidden.reshape(target.numel(), hidden.shape[-1]), target.reshape(-1)
    losses, log_sums, _ = _rows(rows, weight, bias, targets, ignore_index, float(label_smoothing), memory_bytes)
    if z_loss:
        losses = losses + z_loss * log_sums.square()
    loss = _reduced(losses, target, ignore_index, reduction)
    return loss if is_cast else loss.to(hidden.dtype)


def _reduced(losses: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    if reduction == "none":
        return losses.view(target.shape)
    total = losses.sum()
    return total if reduction == "sum" else total / (target != ignore_index).sum()


@torch.library.custom_op("togi::linear_cross_entropy", mutates_args=())
def _rows(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    memory_bytes: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and log-sum-exp of every row of hidden [N, D], two of [N]; and [2, N], the largest logit and the sum of the
    exponentials relative to it, for the gradient. 0 where ignored."""
    losses, log_sums, scales = _like_rows(hidden)
    chosen = _chosen(target, ignore_index)
    targets = _taken(target, chosen)
    check_range(targets, len(weight))
    blocks = LogitBlocks(_taken(hidden, chosen), weight, bias, memory_bytes)
    top = losses.new_full((len(targets), 1), -torch.inf)
    total, at_target, sums = (torch.zeros_like(top) for _ in range(3))
    with torch.autocast(hidden.device.type, enabled=False):
        for columns in blocks.columns():
            for rows in blocks.rows():
                logits, work = blocks.logits(rows, columns)
                index, inside = _position(targets[rows], columns)
                at_target[rows] += torch.where(inside, logits.gather(1, index), 0)
                higher = torch.maximum(top[rows], logits.amax(1, keepdim=True))
                shift = higher.masked_fill(higher == -torch.inf, 0)  # nothing else so far: -inf less -inf is NaN
                total[rows] *= (top[rows] - shift).exp_()
                wide = blocks.widened(logits, work)
                if label_smoothing:
                    sums[rows] += wide.sum(1, keepdim=True)
                total[rows] += wide.sub_(shift).exp_().sum(1, keepdim=True)
                top[rows] = higher
    differences = top - (1 - label_smoothing) * at_target
    if label_smoothing:
        differences -= sums * (label_smoothing / len(weight))
    # the logarithm last: a large logit would swallow it
    for result, values in (
        (losses, differences + total.log()),
        (log_sums, top + total.log()),
        *zip(scales, (top, total), strict=True),
    ):
        _put(result, values[:, 0], chosen)
    return losses, log_sums, scales


@_rows.register_fake
def _(hidden: Tensor, *_others: object) -> tuple[Tensor, Tensor, Tensor]:
    return _like_rows(hidden)


@torch.library.custom_op("togi::linear_cross_entropy_gradient", mutates_args=())
def _gradient(
    upstream: Tensor,
    upstream_log_sums: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    scales: Tensor,
    ignore_index: int,
    label_smoothing: float,
    memory_bytes: int,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of ``_rows`` for hidden, weight and bias, in their dtypes; without rows what is not ``wanted``."""
    for_hidden, for_weight, for_bias = _like_gradients(hidden, weight, bias, wanted)
    chosen = _chosen(target, ignore_index)
    targets = _taken(target, chosen)
    per_row = [_taken(t, chosen)[:, None] for t in (upstream, upstream_log_sums, *scales)]
    blocks = LogitBlocks(_taken(hidden, chosen), weight, bias, memory_bytes)
    is_all = chosen is None or not wanted[0]
    hidden_sum = blocks.sum_over_columns(for_hidden if is_all else torch.zeros_like(blocks.hidden))
    with torch.autocast(hidden.device.type, enabled=False):
        for columns in blocks.columns():
            weight_sum, bias_sum = (blocks.sum_over_rows(t[columns]) for t in (for_weight, for_bias))
            for rows in blocks.rows():
                logits, work = blocks.logits(rows, columns)
                at = _position(targets[rows], columns)
                _replace_by_gradient(
                    logits, blocks.widened(logits, work), at, [t[rows] for t in per_row], label_smoothing, len(weight)
                )
                if wanted[0]:
                    add_product(hidden_sum[rows], logits, weight[columns])
                if wanted[1]:
                    add_product(weight_sum, logits.T, blocks.hidden[rows])
                if wanted[2]:
                    bias_sum += work.sum(0)
            for_weight[columns], for_bias[columns] = weight_sum, bias_sum
    if wanted[0] and hidden_sum is not for_hidden:
        _put(for_hidden, hidden_sum, chosen)
    return for_hidden, for_weight, for_bias


def _replace_by_gradient(
    logits: Tensor,
    work: Tensor,
    at: tuple[Tensor, Tensor],
    per_row: list[Tensor],
    label_smoothing: float,
    vocabulary: int,
) -> None:
    """Logits [R, C] become the gradient for them, in ``work`` before it is rounded."""
    upstream, upstream_log_sums, top, total = per_row
    index, inside = at
    work.sub_(top).exp_().mul_((upstream + upstream_log_sums) / total)
    work.scatter_add_(1, index, torch.where(inside, (label_smoothing - 1) * upstream, 0))
    if label_smoothing:
        work.sub_(upstream * (label_smoothing / vocabulary))
    if work is not logits:
        logits.copy_(work)


@_gradient.register_fake
def _(
    _upstream: Tensor,
    _upstream_log_sums: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    _target: Tensor,
    _scales: Tensor,
    _ignore_index: int,
    _label_smoothing: float,
    _memory_bytes: int,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    return _like_gradients(hidden, weight, bias, wanted)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], output[2])
    ctx.options = inputs[4:]


def _backward(
    ctx: Any, upstream: Tensor, upstream_log_sums: Tensor, _upstream_scales: Tensor
) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[:3])
    gradients = _gradient(upstream, upstream_log_sums, *ctx.saved_tensors, *ctx.options, wanted)
    for_inputs = (gradient if wants else None for gradient, wants in zip(gradients, wanted, strict=True))
    return (*for_inputs, None, None, None, None)


_rows.register_autograd(_backward, setup_context=_keep)


def _like_rows(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    count, dtype = len(hidden), compute_dtype(hidden.dtype)
    losses, log_sums = (hidden.new_zeros(count, dtype=dtype) for _ in range(2))
    return losses, log_sums, hidden.new_zeros((2, count), dtype=dtype)


def _like_gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    bias_size = len(weight) if wanted[2] and bias is not None else 0
    return (
        hidden.new_zeros(len(hidden) if wanted[0] else 0, hidden.shape[1]),
        weight.new_zeros(len(weight) if wanted[1] else 0, weight.shape[1]),
        weight.new_zeros(bias_size),
    )


def _chosen(target: Tensor, ignore_index: int) -> Tensor | None:
    """The rows that are not ignored; None where none is."""
    counts = target != ignore_index
    return None if bool(counts.all()) else counts.nonzero()[:, 0]


def _taken(tensor: Tensor, chosen: Tensor | None) -> Tensor:
    return tensor if chosen is None else tensor[chosen]


def _put(result: Tensor, values: Tensor, chosen: Tensor | None) -> None:
    if chosen is None:
        result.copy_(values)
    else:
        result[chosen] = values.to(result.dtype)


def _position(targets: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """The places of the targets among ``columns``, and whether they are: both [R, 1]."""
    index = (targets - columns.start)[:, None]
    last = columns.stop - columns.start - 1
    return index.clamp(0, last), (index >= 0) & (index <= last)
