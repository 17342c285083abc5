"""Whether a step may run in parts of its batch, on batches that its samples do not show: rows that hold different
numbers of what counts, and fewer rows.

If all rows of a sample hold as many tokens that count, a mean over tokens equals a mean over rows, and the gradients of
the parts are those of the whole. The first batch with padding differs. So some rows of the sample run again with less
that counts in those of the first part: labels that a loss ignores, zeros in a mask, smaller lengths. Whatever the step
does not take, or has no finite loss for, shows nothing and is left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from togi.core.quantities import first_line
from togi.subject.batch import shared_rows, sliced_rows
from togi.subject.inputs import Inputs

Gradients = Mapping[str, Tensor]
GradientsOf = Callable[[Inputs], Gradients]
"""The gradients of a step on a sample, by name. Raises whatever the step raises."""

IGNORED = (-100, -1, 0, 1, 255)
"""What says that nothing is there: torch's label to ignore, those of data sets, and the padding of vocabularies. Where
they are classes or words of their own, the row is another, and as much of it counts."""
_ROWS = 3
"""That are run: the parts hold one and two of them, or one each."""
_SMALL = 1e-3
"""Parameters whose gradient is below this share of the whole are compared with the whole: theirs may be noise alone."""


def why_not_in_parts(sample: Inputs, whole: GradientsOf, in_parts: GradientsOf, limit: float, remedy: str) -> str:
    """Why gradients in parts are wrong for other batches than the sample; empty where they are right.

    Args:
        limit: differences relative to a gradient's size that are rounding.
        remedy: what to do about a mean over tokens, in a sentence.
    """
    few = _fewer_rows(sample, whole)
    if few is None:
        return ""
    if other := _differ(few, whole, in_parts, limit):
        return f"not the same for a batch of {shared_rows(few)} rows, such as the last of an epoch: {other}"
    for change, uneven in uneven_rows(few):
        if other := _differ(uneven, whole, in_parts, limit):
            return f"a mean over tokens, not rows: with {change}, {other}. {remedy}"
    return ""


def uneven_rows(sample: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Copies of the sample whose first row holds less that counts, with what was changed."""
    for place, tensor in enumerate(sample.tensors()):
        if not tensor.dim() or not tensor.numel():
            continue
        for change, value in _changes(tensor):
            yield (
                f"{change} in the first row of input {place + 1} of shape {tuple(tensor.shape)}",
                _changed(sample, place, value),
            )


def _changes(tensor: Tensor) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """What makes less of a row count, as a function of the row."""
    if bool(((tensor == 0) | (tensor == 1)).all()):
        yield "zeros", functools.partial(_second_half, value=0)
    elif tensor.is_floating_point() or tensor.is_complex():
        return
    elif tensor.dim() > 1 or bool((tensor < 0).any()):
        # out of range an index raises on the CPU, but on a GPU it ends the process's use of the device
        for ignored in IGNORED if tensor.device.type == "cpu" else (0, 1):
            if ignored >= 0 or tensor.dtype.is_signed:
                yield str(ignored), functools.partial(_second_half, value=ignored)
    else:
        yield "half of the length", lambda row: (row + 1) // 2


def _second_half(row: Tensor, value: int) -> Tensor:
    """A row with ``value`` in its second half; one number is all of it."""
    row = row.clone()
    if row.dim():
        row[..., (row.shape[-1] + 1) // 2 :] = value
    else:
        row.fill_(value)
    return row


def _changed(sample: Inputs, place: int, value: Callable[[Tensor], Tensor]) -> Inputs:
    """By place: one tensor may be given as words and as labels."""
    copied = sample.clone()
    target = copied.tensors()[place]
    target[0] = value(target[0])
    return copied


def _fewer_rows(sample: Inputs, whole: GradientsOf) -> Inputs | None:
    """The first rows where the step takes so few, else all of them; None where nothing can be divided."""
    rows = shared_rows(sample)
    if rows is None or rows < 2:
        return None
    few = sliced_rows(sample, slice(_ROWS)).map(torch.clone)  # copies of views would copy the whole batch
    return few if _finite(whole, few) is not None else sample


def _differ(sample: Inputs, whole: GradientsOf, in_parts: GradientsOf, limit: float) -> str:
    expected = _finite(whole, sample)
    if expected is None:
        return ""
    try:
        off = worst_difference(expected, in_parts(sample.clone()))
    except Exception as error:  # the user's step
        return f"the step fails in parts ({first_line(error)})"
    return "" if off <= limit else f"the gradients of the parts differ from the whole batch's by {off:.1e} (relative)"


def _finite(whole: GradientsOf, sample: Inputs) -> Gradients | None:
    """None: the step does not take such a sample."""
    try:
        found = whole(sample.clone())
    except Exception:  # the user's step: a label may be no class, and a size fixed
        return None
    return found if found and all(bool(gradient.isfinite().all()) for gradient in found.values()) else None


def worst_difference(whole: Gradients, other: Gradients) -> float:
    """The worst parameter's. What is missing on one side is nothing but zeros; NaN counts as infinite."""
    norm = sum(float(g.double().square().sum()) for g in whole.values()) ** 0.5
    worst = 0.0
    for name in whole.keys() | other.keys():
        own_gradient, two = whole.get(name), other.get(name)
        gap = two if own_gradient is None else own_gradient if two is None else own_gradient.double() - two.double()
        assert gap is not None  # the name is from one of the two
        own = float(own_gradient.double().norm()) if own_gradient is not None else 0.0
        size = float(gap.double().norm())
        ratio = size / max(own, _SMALL * norm) if size else 0.0
        worst = max(worst, ratio if ratio == ratio else math.inf)
    return worst
