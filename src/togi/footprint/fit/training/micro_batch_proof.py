"""Proof that a step may run in micro-batches, by its own gradients: of the whole batch, and of its parts added up.

Batch normalisation, losses that compare rows with each other, and means over tokens of which rows hold different
numbers give other gradients. They are compared in float64 on a copy where the module is small enough, to tell a wrong
weight from rounding; else as they are. What counts as rounding is measured: the same batch with its rows in reverse.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from togi.core.errors import FitError
from togi.footprint.fit.measure import random_state, same_start
from togi.footprint.fit.training.micro_batches import shares_of
from togi.footprint.step import Step
from togi.subject.batch import sliced_rows
from togi.subject.behaviour import SavedBuffers
from togi.subject.inputs import Inputs
from togi.subject.micro_batches import Weigh, rows_of, split
from togi.torch_internals.modules import BatchNorm
from togi.verify.uneven_rows import why_not_in_parts, worst_difference

_COPIED_BYTES = 1 << 28
_ORDER_MATTERS = 1e-2
_FLOOR = {torch.float64: 1e-6, torch.float32: 3e-5}
"""Relative differences that are rounding in any case. float64: of a loss that is taken in float32 all the same."""
_HALF_FLOOR = 3e-2


@dataclass(frozen=True, kw_only=True)
class MicroBatchProof:
    """The gradients of the whole batch and of its parts, added up."""

    reason: str = ""
    """Why the step may not run in micro-batches; empty where it may."""
    uneven: str = ""
    """What holds for this batch and not for others: with padding, say. Empty where nothing was found."""
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
            step = dataclasses.replace(step, sample=sliced_rows(step.sample, slice(rows)))
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
            if wide is not None and (proof := _judged(wide, parts, weigh)) is not None:
                return dataclasses.replace(proof, approximate=draws)
    return MicroBatchProof(reason="the loss depends on no parameter of the module")


def _judged(step: Step, parts: int, weigh: Weigh | None) -> MicroBatchProof | None:
    """Compare the gradients. None where nothing could be compared: a copy that the loss does not use."""
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
    added = _added_up(step, parts, weigh, parameters)
    changed = [name for name, value in _buffers(step.module).items() if not torch.equal(value, moved[name])]
    state.restore()
    dtype = next(iter(whole.values())).dtype
    rounding, difference = worst_difference(whole, turned or {}), worst_difference(whole, added)
    reason = _reason(changed, rounding, difference, dtype, weigh is not None)
    uneven = "" if reason else _uneven(step, parts, weigh, parameters, 10 * rounding + _FLOOR.get(dtype, _HALF_FLOOR))
    state.restore()
    return MicroBatchProof(
        reason=reason,
        uneven=uneven,
        relative_difference=difference,
        dtype=dtype,
    )


def _added_up(step: Step, parts: int, weigh: Weigh | None, parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """The gradients of the parts."""
    added: dict[str, Tensor] = {}
    for piece, share in shares_of(step, parts, weigh):
        gradients = _gradients(dataclasses.replace(step, sample=piece), parameters) or {}
        for name, gradient in gradients.items():
            added[name] = added[name] + gradient * share if name in added else gradient * share
    return added


def _uneven(step: Step, parts: int, weigh: Weigh | None, parameters: dict[str, nn.Parameter], rounding: float) -> str:
    def whole(sample: Inputs) -> dict[str, Tensor]:
        return _gradients(dataclasses.replace(step, sample=sample), parameters) or {}

    def in_parts(sample: Inputs) -> dict[str, Tensor]:
        return _added_up(dataclasses.replace(step, sample=sample), min(parts, rows_of(sample)), weigh, parameters)

    remedy = "Give plan.backward weigh=..., which counts them: lambda part: (part['labels'] != -100).sum()"
    return why_not_in_parts(step.sample, whole, in_parts, rounding, remedy)


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
    weighting = "by weigh" if weighed else "by their rows"
    return (
        f"the gradients of the parts, weighted {weighting}, differ from the whole batch's by {difference:.1e} "
        f"(relative; rounding is {rounding:.1e}). A mean over tokens needs the number of tokens as weight "
        "(weigh=lambda part: (part['labels'] != -100).sum()); a sum over rows has to be divided by them; a loss that "
        "compares rows with each other (contrastive) cannot be divided at all"
    )


def _gradients(step: Step, parameters: dict[str, nn.Parameter]) -> dict[str, Tensor] | None:
    loss = step.loss(step.module, step.sample)
    if not loss.requires_grad:
        return None
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    named = {name: g.detach() for name, g in zip(parameters, gradients, strict=True) if g is not None}
    return named or None


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
