"""Error measures: how far an output is from the truth. Pure functions of tensors.

Everything accumulates in float64 and is computed in blocks, so that comparing takes little memory besides the tensors.
NaN is never "equal by accident": ``0/0`` and ``NaN > tolerance`` do not occur, since every element is classified first.

An element is *special* where the truth or plain eager is not finite, or where eager holds a sentinel (a mask value such
as ``-1e9`` or ``finfo.min`` among ordinary logits: it would drown all else in a root mean square). Special elements
must be what eager, or the truth, has there. All others are *ordinary*, and are measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from togi.decide.faithful import in_units
from togi.subject.plain_tensors import plain

_BLOCK = 1 << 21
"""Elements compared at a time: 16 MiB in float64."""
SENTINEL_LEAST = 1e4
"""Smallest magnitude of a sentinel: smaller ones do not drown the rest."""
SENTINEL_RATIO = 1e3
"""How many times the root mean square of the rest a sentinel exceeds."""
SPECIAL_TOLERANCE = 1e-3
"""Relative difference allowed at a sentinel: it stands for "minus infinity", its digits mean nothing."""
SPECIAL_TOLERANCE_64 = 1e-9
"""The same in float64, where a large number among small ones may as well be a time in seconds."""

_LARGE_INTEGER = 1 << 20
"""From here on an integer is a number that was computed; smaller ones are mostly indices, which a tie may move far."""
COLUMNS_RATIO = 1e4
"""How many times larger one column is than another that is measured by itself."""
_MOST_COLUMNS = 64
"""Along a dimension with more, as of classes, all are of one kind."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An output against the truth. ``rms`` and ``peak`` are absolute, over ordinary elements; infinite when an element
    is of another class (NaN, inf, sentinel) than both eager and the truth allow."""

    rms: float
    peak: float
    scale: float
    """Root mean square of the truth."""
    largest: float
    """Largest magnitude of the truth."""
    count: int
    """Elements compared."""
    misplaced: int = 0
    """Elements that are NaN, infinite or a sentinel where they must not be, or are not where they must be."""
    first: int | None = None
    """Flat index of the first misplaced or most wrong element."""

    @property
    def rmse(self) -> float:
        """Root-mean-square error relative to the truth's root mean square."""
        return in_units(self.rms, self.scale)

    @property
    def max_abs(self) -> float:
        """Largest absolute error relative to the truth's root mean square."""
        return in_units(self.peak, self.scale)


def continuous(tensor: Tensor) -> bool:
    """Measured by distance (floating, complex, quantized) rather than by equality (integers, bool)."""
    return tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized


def sentinel_threshold(eager: Tensor) -> float:
    """Magnitude from which elements of ``eager`` are sentinels; infinite when there are none."""
    values = plain(eager).double().abs().flatten()
    values = values[values.isfinite()]
    large = values >= SENTINEL_LEAST
    if not bool(large.any()) or bool(large.all()):
        return math.inf
    rest = float(values[~large].square().mean().sqrt())
    least = float(values[large].min())
    return least if least > SENTINEL_RATIO * rest else math.inf


def columns_apart(outputs: Sequence[Tensor]) -> list[tuple[int, list[int]]]:
    """Columns of one output that hold quantities of other magnitudes, as ``(dimension, indices)`` of each magnitude: a
    score next to a timestamp must not be measured by the timestamp. ``outputs``: on several inputs. Empty where all are
    alike.

    A column counts with its largest finite value on all inputs; one of zeros alone goes with the smallest others.
    """
    shapes = {t.dim() for t in outputs}
    for dim in reversed(range(shapes.pop() if len(shapes) == 1 else 0)):
        sizes = {t.shape[dim] for t in outputs}
        if len(sizes) == 1 and 1 < max(sizes) <= _MOST_COLUMNS and len(groups := _magnitudes(outputs, dim)) > 1:
            return [(dim, sorted(columns)) for columns in groups]
    return []


def _magnitudes(outputs: Sequence[Tensor], dim: int) -> list[list[int]]:
    of_each = [
        plain(t).double().abs().nan_to_num(0.0, 0.0, 0.0).movedim(dim, 0).reshape(t.shape[dim], -1) for t in outputs
    ]
    largest = torch.cat(of_each, 1).amax(1) if sum(t.numel() for t in of_each) else torch.zeros(0)
    groups: list[list[int]] = []
    least = math.inf
    for size, column in sorted(((float(size), column) for column, size in enumerate(largest)), reverse=True):
        if size and size < least:
            groups, least = [*groups, []], size / COLUMNS_RATIO
        groups[-1:] = [[*groups[-1], column]] if groups else [[column]]
    return groups


def difference(output: Tensor, truth: Tensor, eager: Tensor, threshold: float = math.inf) -> Difference:
    """Distance of a floating or complex ``output`` from ``truth``; ``eager`` says what is special. Same shapes.

    Args:
        threshold: magnitude from which an element is a sentinel (``sentinel_threshold``).
    """
    squares = truth_squares = peak = largest = 0.0
    ordinary = misplaced = offset = 0
    first: int | None = None
    tolerance = SPECIAL_TOLERANCE_64 if eager.dtype is torch.float64 else SPECIAL_TOLERANCE
    for o, t, e in _blocks(output, truth, eager):
        special = ~(t.isfinite() & e.isfinite()) | (e.abs() >= threshold) | (t.abs() >= threshold)
        bad = torch.where(special, ~(_same(o, e, tolerance) | _same(o, t, tolerance)), ~o.isfinite())
        measured = ~(special | bad)
        error = torch.where(measured, o - t, 0.0)
        worst = float(error.abs().max())
        if bool(bad.any()) and not misplaced:
            first = offset + int(bad.int().argmax())
        elif worst > peak and not misplaced:
            first = offset + int(error.abs().argmax())
        magnitude = torch.where(special, 0.0, t)
        squares, peak = squares + float(error.square().sum()), max(peak, worst)
        truth_squares += float(magnitude.square().sum())
        largest = max(largest, float(magnitude.abs().max()))
        ordinary, misplaced = ordinary + int((~special).sum()), misplaced + int(bad.sum())
        offset += o.numel()
    return Difference(
        rms=math.inf if misplaced else math.sqrt(squares / max(ordinary, 1)),
        peak=math.inf if misplaced else peak,
        scale=math.sqrt(truth_squares / max(ordinary, 1)),
        largest=largest,
        count=offset,
        misplaced=misplaced,
        first=first,
    )


def hides(output: Tensor, truth: Tensor, eager: Tensor) -> bool:
    """Whether ``output`` is a number where plain eager shows NaN or infinity, and the truth is none either."""
    return any(bool((o.isfinite() & ~e.isfinite() & ~_same(o, t)).any()) for o, t, e in _blocks(output, truth, eager))


def mismatches(output: Tensor, truth: Tensor, eager: Tensor) -> int:
    """Count the elements of an integer or bool ``output`` that are neither the truth's nor eager's.

    Both are right answers: they differ only where the decision behind them is a tie within rounding.
    """
    wrong = 0
    for start in range(0, output.numel(), _BLOCK):
        o, t, e = (plain(x).reshape(-1)[start : start + _BLOCK] for x in (output, truth, eager))
        wrong += int(((o != t) & (o != e)).sum())
    return wrong


def far_off(output: Tensor, truth: Tensor, eager: Tensor) -> bool:
    """Whether a large integer is another number, where eager's and the truth's are one up to rounding.

    Where eager itself rounds before it casts, most of its integers are off by a little, and the share of those that
    differ says nothing.
    """
    for o, t, e in _blocks(output, truth, eager):
        agreed = (e.abs() >= _LARGE_INTEGER) & ((e - t).abs() <= SPECIAL_TOLERANCE * e.abs())
        if bool((agreed & ((o - e).abs() > SPECIAL_TOLERANCE * e.abs())).any()):
            return True
    return False


def identical(one: Tensor, other: Tensor) -> bool:
    """Whether both hold the same bits, up to the sign of zero and the payload of NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    a, b = plain(one), plain(other)
    if a.is_floating_point() and a.element_size() == 1:
        a, b = a.float(), b.float()
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _same(o: Tensor, reference: Tensor, tolerance: float = SPECIAL_TOLERANCE) -> Tensor:
    """Elementwise: both NaN, equal (also infinities), or within the tolerance of a sentinel."""
    near = (o - reference).abs() <= tolerance * reference.abs()
    return (o == reference) | (o.isnan() & reference.isnan()) | (near & o.isfinite() & reference.isfinite())


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    flat = [plain(t).reshape(-1) for t in tensors]
    for start in range(0, flat[0].numel(), _BLOCK):
        yield tuple(t[start : start + _BLOCK].double() for t in flat)
