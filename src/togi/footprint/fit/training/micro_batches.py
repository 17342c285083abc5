"""Micro-batches: a batch goes through forward and backward in parts, and gradients accumulate.

Loss and gradients are those of the whole batch up to rounding where the loss is a mean over what the parts are weighted
by. That is not assumed but shown on the step itself (``judge``): batch normalisation, losses that compare rows with
each other, and means over tokens of which rows hold different numbers give other gradients. They are compared in
float64 on a copy where the module is small enough, to tell a wrong weight from rounding; else as they are. What
counts as rounding is measured: the same batch with its rows in reverse.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from togi.core.errors import FitError
from togi.footprint.fit.measure import random_state, same_start
from togi.footprint.step import Step
from togi.subject.behaviour import SavedBuffers
from togi.subject.inputs import Inputs
from togi.torch_internals.modules import BatchNorm

_COPIED_BYTES = 1 << 28
_ORDER_MATTERS = 1e-2
_FLOOR = {torch.float64: 1e-6, torch.float32: 3e-5}
"""Relative differences that are rounding in any case. float64: of a loss that is taken in float32 all the same."""
_HALF_FLOOR = 3e-2
_SMALL = 1e-3
"""Parameters whose gradient is below this share of the whole are compared with the whole: theirs may be noise alone."""
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
    for piece, share in zip(pieces, _shares(pieces, weigh), strict=True):
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
    return [_rows(sample, slice(start, stop)) for start, stop in itertools.pairwise(bounds)]


def rows_of(sample: Inputs) -> int:
    """The size of dimension 0, which all tensors that have one must share. Raises FitError else."""
    shapes = [tuple(tensor.shape) for tensor in sample.tensors()]
    sizes = {shape[0] for shape in shapes if shape}
    if len(sizes) != 1 or 0 in sizes:
        raise FitError(
            f"the sample cannot be divided into rows: its tensors have the shapes {', '.join(map(str, shapes))}. All "
            "with a dimension must have the rows of the batch in dimension 0: make masks and the like in the step."
        )
    return sizes.pop()


def accumulated(step: Step, parts: int) -> Step:
    """A step whose ``loss`` runs the backward passes of all parts but the caller's own.

    ``loss(module, sample).backward()`` leaves the gradients that it leaves in ``step``; the call of ``loss`` has made
    them, and its ``backward()`` adds nothing. Any other use of the loss raises FitError instead of being wrong.
    """

    def loss(module: nn.Module, sample: Inputs) -> Tensor:
        found = backward(module, sample, step.loss, parts).requires_grad_()
        found.register_hook(_check_upstream)  # type: ignore[no-untyped-call]
        return found

    return dataclasses.replace(step, loss=loss)


def _check_upstream(upstream: Tensor) -> None:
    if not bool((upstream == 1).all()):
        raise FitError(
            f"the loss of a step in micro-batches was scaled by {upstream.item():g} after its gradients were made: "
            "scale it in the step, or call micro_batches.backward with scale=."
        )


def shares_of(step: Step, parts: int, weigh: Weigh | None) -> list[tuple[Inputs, float]]:
    """The parts of the step's sample, and what each counts; the sum is 1."""
    pieces = split(step.sample, parts)
    return list(zip(pieces, _shares(pieces, weigh), strict=True))


def _shares(pieces: list[Any], weigh: Weigh | None) -> list[float]:
    weights = [float(rows_of(Inputs.of(one)) if weigh is None else weigh(one)) for one in pieces]
    if not all(0 <= weight < float("inf") for weight in weights) or sum(weights) == 0:
        raise FitError(f"the micro-batches weigh {weights}: weights are finite, none below 0, and not all of them 0")
    return [weight / sum(weights) for weight in weights]


def _rows(sample: Inputs, rows: slice) -> Inputs:
    return sample.map(lambda tensor: tensor[rows] if tensor.dim() else tensor)


def _like(piece: Inputs, given: Any) -> Any:
    """In the form in which the sample was given."""
    if isinstance(given, Inputs):
        return piece
    if isinstance(given, Mapping):
        return dict(piece.kwargs)
    return piece.args[0] if isinstance(given, Tensor) else piece.args


@final
@dataclass(frozen=True, kw_only=True)
class MicroBatchProof:
    """The gradients of the whole batch and of its parts, added up."""

    reason: str = ""
    """Why the step may not run in micro-batches; empty where it may."""
    approximate: bool = False
    """Random draws (dropout) differ between the whole batch and its parts; the rest was shown without them."""
    relative_difference: float | None = None
    """The worst parameter's, relative to the norm of its gradient."""
    dtype: torch.dtype | None = None
    """In which the gradients were compared."""


def judge(step: Step, parts: int, weigh: Weigh | None = None, rows: int | None = None) -> MicroBatchProof:
    """Runs the step on the whole batch, on it in reverse order, and in parts; module and gradients stay as they are.

    Args:
        rows: compare on so many rows of the sample only, where the whole batch does not fit (2 in 2 parts, say).
    """
    try:
        if rows is not None and rows < rows_of(step.sample):
            step = dataclasses.replace(step, sample=step.sample.map(lambda t: t[:rows] if t.dim() else t))
            parts = min(parts, rows)
        split(step.sample, parts)
    except FitError as error:
        return MicroBatchProof(reason=str(error))
    if parts == 1:
        return MicroBatchProof()
    if names := _batch_statistics(step.module):
        return MicroBatchProof(
            reason=f"{', '.join(names[:3])} {'uses' if len(names) == 1 else 'use'} the statistics of the batch, which "
            "differ in every micro-batch: put batch normalisation into eval mode, or replace it (GroupNorm)"
        )
    return _compared(step, parts, weigh)


def _compared(step: Step, parts: int, weigh: Weigh | None) -> MicroBatchProof:
    with _undisturbed(step.module):
        draws = _draws(step)
        if draws:
            step.module.eval()
            if _draws(step):
                return MicroBatchProof(
                    reason="the step draws random numbers even in eval mode, so its gradients cannot be compared"
                )
        for wide in _widened(step), step:
            if wide is not None and (found := _judged(wide, parts, weigh)) is not None:
                return dataclasses.replace(found, approximate=draws)
    return MicroBatchProof(reason="the loss depends on no parameter of the module")


def _judged(step: Step, parts: int, weigh: Weigh | None) -> MicroBatchProof | None:
    """None where nothing could be compared: a copy that the loss does not use."""
    parameters = {name: p for name, p in step.module.named_parameters() if p.requires_grad}
    state = SavedBuffers(step.module)
    whole = _gradients(step, parameters)
    moved = _buffers(step.module)
    if whole is None:
        return None
    if not all(bool(gradient.isfinite().all()) for gradient in whole.values()):
        state.restore()
        return MicroBatchProof(
            reason="the gradients of the whole batch hold NaN or infinities: nothing can be compared"
        )
    state.restore()
    backwards = step.sample.map(lambda t: t.flip(0) if t.dim() else t)
    turned = _gradients(dataclasses.replace(step, sample=backwards), parameters)
    state.restore()
    added: dict[str, Tensor] = {}
    for piece, share in shares_of(step, parts, weigh):
        found = _gradients(dataclasses.replace(step, sample=piece), parameters) or {}
        for name, gradient in found.items():
            added[name] = added[name] + gradient * share if name in added else gradient * share
    changed = [name for name, value in _buffers(step.module).items() if not torch.equal(value, moved[name])]
    state.restore()
    dtype = next(iter(whole.values())).dtype
    rounding, difference = _difference(whole, turned or {}), _difference(whole, added)
    return MicroBatchProof(
        reason=_reason(changed, rounding, difference, dtype, weigh is not None),
        relative_difference=difference,
        dtype=dtype,
    )


def _reason(changed: list[str], rounding: float, difference: float, dtype: torch.dtype, weighed: bool) -> str:
    if changed:
        return f"the buffer {changed[0]} moves with every call, and would move once per micro-batch"
    if not rounding <= _ORDER_MATTERS:
        return (
            f"the same rows in reverse order change the gradients by {rounding:.1e} (relative): the loss is not a mean "
            "over rows, or random"
        )
    if difference <= 10 * rounding + _FLOOR.get(dtype, _HALF_FLOOR):
        return ""
    said = "by weigh" if weighed else "by their rows"
    return (
        f"the gradients of the parts, weighted {said}, differ from the whole batch's by {difference:.1e} (relative; "
        f"rounding is {rounding:.1e}). A mean over tokens needs the number of tokens as weight (weigh=lambda part: "
        "(part['labels'] != -100).sum()); a sum over rows has to be divided by them; a loss that compares rows with "
        "each other (contrastive) cannot be divided at all"
    )


def _gradients(step: Step, parameters: dict[str, nn.Parameter]) -> dict[str, Tensor] | None:
    loss = step.loss(step.module, step.sample)
    if not loss.requires_grad:
        return None
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    named = {name: g.detach() for name, g in zip(parameters, found, strict=True) if g is not None}
    return named or None


def _difference(whole: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The worst parameter's. What is missing on one side is nothing but zeros; NaN counts as infinite."""
    norm = sum(float(g.double().square().sum()) for g in whole.values()) ** 0.5
    worst = 0.0
    for name in whole.keys() | other.keys():
        one, two = whole.get(name), other.get(name)
        gap = two if one is None else one if two is None else one.double() - two.double()
        assert gap is not None  # the name is from one of the two
        own = float(one.double().norm()) if one is not None else 0.0
        size = float(gap.double().norm())
        ratio = size / max(own, _SMALL * norm) if size else 0.0
        worst = max(worst, ratio if ratio == ratio else float("inf"))
    return worst


def _batch_statistics(module: nn.Module) -> list[str]:
    return [
        name or "the module"
        for name, part in module.named_modules()
        if isinstance(part, BatchNorm) and (part.training or part.running_mean is None)
    ]


def _draws(step: Step) -> bool:
    before = random_state(step.module)
    step.loss(step.module, step.sample)
    return not torch.equal(before, random_state(step.module))


def _widened(step: Step) -> Step | None:
    """The step in float64 on a copy; None where it is too large, or does not run so."""
    if sum(p.nbytes for p in step.module.parameters()) > _COPIED_BYTES:
        return None
    try:
        module = copy.deepcopy(step.module).double()
        sample = step.sample.map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
        wide = dataclasses.replace(step, module=module, sample=sample)
        step.loss(module, wide.sample)
    except Exception:  # foreign code that knows its own dtype only: it is compared in that one
        return None
    return wide


@contextmanager
def _undisturbed(module: nn.Module) -> Iterator[None]:
    """Buffers, gradients, modes and random states are afterwards what they were."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        with same_start(module, torch.initial_seed()):
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}
