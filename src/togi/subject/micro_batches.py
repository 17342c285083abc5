"""Micro-batches: a batch goes through forward and backward in parts, and gradients accumulate.

Loss and gradients are those of the whole batch up to rounding where the loss is a mean over what the parts are weighted
by. That is not assumed but shown on the step itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from togi.core.errors import FitError
from togi.subject.batch import shared_rows, sliced_rows
from togi.subject.inputs import Inputs
from togi.subject.training import LossFunction

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
        sample: a tensor, tuple, dict or ``Inputs``, with rows in dimension 0 of every tensor.
        step: returns the loss, one number, a mean over the rows of what it is given.
        parts: as equal as the number of rows allows; 1 runs the batch as it is.
        weigh: for a mean over something else, such as tokens: ``lambda part: (part["labels"] != -100).sum()``.
        scale: of each part's loss before its backward pass: ``torch.amp.GradScaler().scale``, for example.

    Returns:
        The loss of the whole batch, detached and not scaled.

    Raises:
        FitError: the tensors of the sample share no rows, there are fewer rows than parts, or a weight is not a number
            above zero in sum.
    """
    pieces = [_like(piece, sample) for piece in split(Inputs.of(sample), parts)]
    total: Tensor | None = None
    for piece, share in zip(pieces, shares_in(pieces, weigh), strict=True):
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
    """A loss that runs the backward passes of all parts but the caller's own.

    ``loss(module, sample).backward()`` leaves the gradients that ``loss_of`` leaves; the call of ``loss`` has made
    them, and its ``backward()`` adds nothing. Any other use of the loss raises FitError instead of being wrong.
    """

    def loss(module: nn.Module, sample: Inputs) -> Tensor:
        total = backward(module, sample, loss_of, parts).requires_grad_()
        total.register_hook(_check_upstream)  # type: ignore[no-untyped-call]
        return total

    return loss


def _check_upstream(upstream: Tensor) -> None:
    if not bool((upstream == 1).all()):
        raise FitError(
            f"the loss of a step in micro-batches was scaled by {upstream.item():g} after its gradients were made: "
            "scale it in the step, or call micro_batches.backward with scale=."
        )


def shares_in(pieces: list[Any], weigh: Weigh | None) -> list[float]:
    weights = [float(rows_of(Inputs.of(piece)) if weigh is None else weigh(piece)) for piece in pieces]
    if not all(0 <= weight < float("inf") for weight in weights) or sum(weights) == 0:
        raise FitError(f"the micro-batches weigh {weights}: weights are finite, none below 0, and not all of them 0")
    return [weight / sum(weights) for weight in weights]


def _like(piece: Inputs, given: Any) -> Any:
    """The piece in the form in which the sample was given."""
    if isinstance(given, Inputs):
        return piece
    if isinstance(given, Mapping):
        return dict(piece.kwargs)
    return piece.args[0] if isinstance(given, Tensor) else piece.args
