"""Micro-batches: a batch goes through forward and backward in parts, and gradients accumulate.

Loss and gradients are those of the whole batch up to rounding where the loss is a mean over what the parts are weighted
by. That is not assumed but shown on the step itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from togi.core.errors import FitError
from togi.subject.batch import shared_rows, sliced_rows
from togi.subject.inputs import Inputs, as_given, step_sample
from togi.subject.training import LossFunction
from togi.torch_internals.autograd import leaves_of, without_saved_tensor_hooks

Weigh = Callable[[Any], Any]
"""How much a part counts in the mean, from what the step is given; the number of its rows where there is none."""


def backward(
    module: nn.Module,
    sample: Any,
    step: Callable[[nn.Module, Any], Tensor],
    parts: int,
    *,
    weigh: Weigh | None = None,
    scale: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """``loss = step(module, sample); loss.backward()`` in ``parts``: gradients are added to ``.grad``.

    Args:
        sample: what ``step`` takes, with rows in dimension 0 of every tensor in it.
        step: returns the loss, one number, a mean over the rows of what it is given.
        parts: as equal as the number of rows allows; 1 runs the batch as it is.
        weigh: for a mean over something else, such as tokens: ``lambda part: (part["labels"] != -100).sum()``. A part
            that weighs nothing is not run.
        scale: of each part's loss before its backward pass: ``torch.amp.GradScaler().scale``, for example.

    Returns:
        The loss of the whole batch, detached and not scaled.

    Raises:
        FitError: the tensors of the sample share no rows, there are fewer rows than parts, or a weight is not a number
            above zero in sum.
    """
    pieces = [_like(piece, sample) for piece in split(step_sample(sample), parts)]
    total: Tensor | None = None
    for piece, share in weighted(pieces, weigh):
        loss = step(module, piece) * share
        (loss if scale is None else scale(loss)).backward()  # type: ignore[no-untyped-call]
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None  # there is a part
    return total


def split(sample: Inputs, parts: int) -> list[Inputs]:
    """Views of the sample: dimension 0 of every tensor that has one, in ``parts`` that differ by one row at most."""
    rows = rows_of(sample)
    if not 1 <= parts <= rows:
        raise FitError(f"{rows} rows cannot be run in {parts} micro-batches: give from 1 to {rows}")
    bounds = [rows * at // parts for at in range(parts + 1)]
    return [sliced_rows(sample, slice(start, stop)) for start, stop in itertools.pairwise(bounds)]


def rows_of(sample: Inputs) -> int:
    """The size of dimension 0, which all tensors that have one must share. Raises FitError else."""
    rows = shared_rows(sample)
    if not rows:
        shapes = [tuple(tensor.shape) for tensor in sample.tensors()]
        raise FitError(
            f"the sample cannot be divided into rows: its tensors have the shapes {', '.join(map(str, shapes))}. All "
            "with a dimension must have the rows of the batch in dimension 0: make masks and the like in the step."
        )
    return rows


def accumulated_loss(loss_of: LossFunction, parts: int) -> LossFunction:
    """A loss whose gradients are made in parts while it is computed, and are added to ``.grad`` by its backward pass.

    So scaling it, dividing it, dropping gradients before its backward pass, or leaving that out mean what they mean for
    ``loss_of``. A batch of fewer rows than ``parts`` runs row by row. From its call to its backward pass the loss holds
    one gradient of each parameter in place of the activations. For float16, scale the loss inside ``loss_of``: a
    factor that comes later cannot save what was too small in between.
    """

    def loss(module: nn.Module, sample: Inputs) -> Tensor:
        if not torch.is_grad_enabled():
            return loss_of(module, sample)
        pieces = split(sample, min(parts, rows_of(sample)))
        made = _GradientsOfParts()
        losses = [made.add(loss_of(module, piece) * share) for piece, share in weighted(pieces, None)]
        with without_saved_tensor_hooks():  # of activations: they may keep what they are given in fewer bits
            total: Tensor = _LossWithGradients.apply(sum(losses), made.gradients, *made.leaves)
        return total

    return loss


class _GradientsOfParts:
    """The gradients of losses, added up, by the leaves that any of them depends on."""

    def __init__(self) -> None:
        self._by_leaf: dict[Tensor, Tensor | None] = {}

    @property
    def leaves(self) -> list[Tensor]:
        return list(self._by_leaf)

    @property
    def gradients(self) -> list[Tensor | None]:
        return list(self._by_leaf.values())

    def add(self, loss: Tensor) -> Tensor:
        """Run the backward pass of ``loss`` and return it detached."""
        leaves = leaves_of(loss)
        for leaf, gradient in zip(leaves, torch.autograd.grad(loss, leaves, allow_unused=True), strict=True):
            self._by_leaf[leaf] = _added(self._by_leaf.get(leaf), gradient)
        return loss.detach()


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """A new tensor, since autograd may give two leaves the same one."""
    if one is None or other is None:
        return other if one is None else one
    return other + one if one.is_sparse else one + other


class _LossWithGradients(torch.autograd.Function):
    """A loss whose gradients are known."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor | None], *_leaves: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        # togi: ignore[scalar-from-tensor] - one wait of the step, in place of a copy of all its gradients
        if bool((upstream == 1).all()):
            return None, None, *ctx.saved_tensors  # become ``.grad`` without a copy where the graph is not kept
        factor = upstream.reshape(())
        return None, None, *(None if one is None else one * factor.to(one.device) for one in ctx.saved_tensors)


def weighted(pieces: list[Any], weigh: Weigh | None) -> list[tuple[Any, float]]:
    """The pieces that count, each with its share; the sum is 1. One that weighs nothing does not: the mean over no
    tokens is NaN.
    """
    weights = [float(rows_of(step_sample(piece)) if weigh is None else weigh(piece)) for piece in pieces]
    if not all(0 <= weight < float("inf") for weight in weights) or sum(weights) == 0:
        raise FitError(f"the micro-batches weigh {weights}: weights are finite, none below 0, and not all of them 0")
    return [(piece, weight / sum(weights)) for piece, weight in zip(pieces, weights, strict=True) if weight]


def _like(piece: Inputs, given: Any) -> Any:
    """The piece in the form in which the sample was given."""
    return piece if isinstance(given, Inputs) else as_given(piece)
