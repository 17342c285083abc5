"""Error measures: how far an output is from the truth. Pure functions of tensors.

Everything accumulates in float64 and is computed in blocks, so that comparing takes little memory besides the tensors.
NaN is never "equal by accident": ``0/0`` and ``NaN > tolerance`` do not occur, since every element is classified first.

An element is *special* where the truth or plain eager is not finite, or where eager holds a sentinel (a mask value such
as ``-1e9`` or ``finfo.min`` among ordinary logits: it would drown all else in a root mean square). Special elements
must be what eager, or the truth, has there. All others are *ordinary*, and are measured. Other large numbers
(prices, counts) are measured apart from the rest, which they would drown as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
_LARGEST = frozenset(float(torch.finfo(dtype).max) for dtype in (torch.float16, torch.bfloat16, torch.float32))
"""One of them alone is a sentinel; any other number must stand there twice at least."""

_LARGE_INTEGER = 1 << 20
"""From here on an integer is a number that was computed; smaller ones are mostly indices, which a tie may move far."""
COLUMNS_RATIO = 1e4
"""How many times larger one column is than another of another kind: each kind is an output of its own."""
COLUMNS_GAP = 10.0
"""How many times larger one column is than the next smaller one that has a unit of its own. Quantities of one kind, as
the scores of many classes, come in all sizes between their smallest and their largest."""
_BY_CHANCE = 1e-6
"""Columns of few numbers are small by chance: the gap is as large as one column in so many shows. That is the ratio
above for one number, 1,000 for two, and the least for six and more."""
_MOST_COLUMNS, _FEWEST = 64, 3
"""Of more columns, all between the smallest and the largest without a gap are of one kind, as classes are; those that
hold fewer numbers are small by chance whatever the gap."""


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
    ordinary: int = 0
    """Elements measured; 0 where nobody asked for ``systematic``."""
    systematic: float = 0.0
    """What of ``rms`` all elements share: the error of a factor, or of a shift."""

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


def threshold_of_large(eager: Tensor, below: float = math.inf) -> float:
    """Magnitude from which elements of ``eager`` would drown all others, of those ``below`` a magnitude; infinite when
    there are none."""
    values = _finite_magnitudes(eager)
    values = values[values < below]
    large = values >= SENTINEL_LEAST
    if not bool(large.any()) or bool(large.all()):
        return math.inf
    rest = float(values[~large].square().mean().sqrt())
    least = float(values[large].min())
    return least if least > SENTINEL_RATIO * rest else math.inf


def sentinel_threshold(eager: Tensor) -> float:
    """Magnitude of the sentinels in ``eager``: the largest, if it stands there again and again; infinite when there are
    none."""
    values = _finite_magnitudes(eager)
    largest = float(values.max()) if len(values) else 0.0
    if largest < SENTINEL_LEAST:
        return math.inf
    rest = values[values < largest]
    if not len(rest) or (len(values) - len(rest) < 2 and largest not in _LARGEST):
        return math.inf
    return largest if largest > SENTINEL_RATIO * float(rest.square().mean().sqrt()) else math.inf


def between(least: float, below: float, truth: Tensor, eager: Tensor) -> Tensor:
    """Where elements of ``eager`` or the truth are at least so large, and ``below`` a magnitude: flat."""
    e, t = (plain(x).reshape(-1).double().abs() for x in (eager, truth))
    largest = torch.maximum(e, t)
    return (largest >= least) & (largest < below)


def _finite_magnitudes(tensor: Tensor) -> Tensor:
    values = plain(tensor).double().abs().flatten()
    return values[values.isfinite()]


class Columns(NamedTuple):
    """Columns of one output that hold quantities of one magnitude."""

    dim: int
    indices: tuple[int, ...]
    kind: int
    """A number; those of one kind are within ``COLUMNS_RATIO`` of each other."""


def columns_apart(outputs: Sequence[Tensor]) -> list[Columns]:
    """Columns of one output that hold quantities of other magnitudes: a score next to a timestamp must not be measured
    by the timestamp, nor by the pixels of a box. ``outputs``: on several inputs. Empty where all are alike.

    A column counts with its largest finite value on all inputs; one of zeros alone goes with the smallest others. It is
    the dimension along which magnitudes differ most.
    """
    found: list[Columns] = []
    widest = 0.0
    for dim, largest in _largest_by_column(outputs).items():
        apart = _magnitudes(dim, largest, sum(t.numel() for t in outputs) / len(largest))
        spread = float(largest.max() / largest[largest > 0].min()) if apart else 0.0
        if spread > widest:
            found, widest = apart, spread
    return found


def _largest_by_column(outputs: Sequence[Tensor]) -> dict[int, Tensor]:
    """The largest magnitude in each column, by dimension, from the last to the first; of those of one size alone."""
    found: dict[int, Tensor] = {}
    if len({t.dim() for t in outputs}) != 1:
        return found
    sizes = [{t.shape[dim] for t in outputs} for dim in range(outputs[0].dim())]
    dims = [dim for dim in reversed(range(len(sizes))) if len(sizes[dim]) == 1 and max(sizes[dim]) > 1]
    for tensor in outputs if dims else ():
        if tensor.numel():
            magnitudes = plain(tensor).double().abs().nan_to_num(0.0, 0.0, 0.0)
            for dim in dims:
                largest = magnitudes.movedim(dim, 0).reshape(magnitudes.shape[dim], -1).amax(1)
                found[dim] = torch.maximum(found[dim], largest) if dim in found else largest
    return found


def _magnitudes(dim: int, largest: Tensor, each: float) -> list[Columns]:
    """``each``: numbers in a column. Empty where all columns are alike."""
    if len(largest) > _MOST_COLUMNS and each < _FEWEST:
        return []
    gap = min(max(COLUMNS_GAP, _BY_CHANCE ** (-1 / each)), COLUMNS_RATIO)
    sizes, order = largest.sort(descending=True, stable=True)
    some = sizes[sizes > 0]
    if len(some) < 2 or (float((some[:-1] / some[1:]).max()) <= gap and float(some[0] / some[-1]) <= COLUMNS_RATIO):
        return []
    groups: list[tuple[int, list[int]]] = [(0, [])]
    of_kind = of_group = before = float(sizes[0])
    for size, column in zip(sizes.tolist(), order.tolist(), strict=True):
        spread = len(largest) <= _MOST_COLUMNS and size < of_group / COLUMNS_RATIO
        if size and (spread or size < before / gap):
            another = spread or size < of_kind / COLUMNS_RATIO
            groups.append((groups[-1][0] + another, []))
            of_kind, of_group = size if another else of_kind, size
        groups[-1][1].append(column)
        before = size
    return [Columns(dim, tuple(sorted(columns)), kind) for kind, columns in groups] if len(groups) > 1 else []


def difference(output: Tensor, truth: Tensor, eager: Tensor, threshold: float = math.inf) -> Difference:
    """Distance of a floating or complex ``output`` from ``truth``; ``eager`` says what is special. Same shapes.

    Args:
        threshold: magnitude from which an element is a sentinel (``sentinel_threshold``).
    """
    squares = truth_squares = peak = largest = shift = along = 0.0
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
        shift, along = shift + float(error.sum()), along + float((error * magnitude).sum())
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
        ordinary=ordinary,
        systematic=_systematic(shift, along, truth_squares, ordinary),
    )


def _systematic(shift: float, along: float, truth_squares: float, count: int) -> float:
    """``shift``: the sum of all errors; ``along``: the same, each times the truth that it belongs to."""
    factor = abs(along) / math.sqrt(truth_squares * count) if truth_squares else 0.0
    return max(factor, abs(shift) / max(count, 1))


def together(parts: Sequence[Difference]) -> Difference:
    """An output that was measured in parts, against the truth of all of it."""
    count = max(sum(part.ordinary for part in parts), 1)
    misplaced = sum(part.misplaced for part in parts)
    squares = 0.0 if misplaced else sum(part.rms**2 * part.ordinary for part in parts)
    return Difference(
        rms=math.inf if misplaced else math.sqrt(squares / count),
        peak=max(part.peak for part in parts),
        scale=math.sqrt(sum(part.scale**2 * part.ordinary for part in parts) / count),
        largest=max(part.largest for part in parts),
        count=sum(part.count for part in parts),
        misplaced=misplaced,
        ordinary=count,
    )


def hides(output: Tensor, truth: Tensor, eager: Tensor) -> bool:
    """Whether ``output`` is a number where plain eager shows NaN or infinity, or the other infinity, and the truth is
    that neither."""
    return any(
        bool(((o.isfinite() | (o.isinf() & (o == -e))) & ~e.isfinite() & ~_same(o, t)).any())
        for o, t, e in _blocks(output, truth, eager)
    )


def mismatches(output: Tensor, truth: Tensor, eager: Tensor, farther_than: float = 0.0) -> int:
    """Count the elements of an integer or bool ``output`` that are neither the truth's nor eager's, and are
    ``farther_than`` that away from both.

    Both are right answers: they differ only where the decision behind them is a tie within rounding.
    """
    wrong = 0
    for start in range(0, output.numel(), _BLOCK):
        o, t, e = (plain(x).reshape(-1)[start : start + _BLOCK] for x in (output, truth, eager))
        off = (o != t) & (o != e)
        if farther_than:
            off &= _from_either(o, t, e) > farther_than
        wrong += int(off.sum())
    return wrong


def farthest(output: Tensor, truth: Tensor, eager: Tensor) -> float:
    """The largest distance of an integer or bool ``output`` from the truth's or eager's, whichever is nearer."""
    return max((float(_from_either(o, t, e).max()) for o, t, e in _blocks(output, truth, eager)), default=0.0)


def _from_either(o: Tensor, t: Tensor, e: Tensor) -> Tensor:
    return torch.minimum((o.double() - t.double()).abs(), (o.double() - e.double()).abs())


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
    if torch.equal(a, b):  # a sixth of the time
        return True
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _same(o: Tensor, reference: Tensor, tolerance: float = SPECIAL_TOLERANCE) -> Tensor:
    """Elementwise: both NaN, equal (also infinities), or within the tolerance of a sentinel."""
    near = (o - reference).abs() <= tolerance * reference.abs()
    return (o == reference) | (o.isnan() & reference.isnan()) | (near & o.isfinite() & reference.isfinite())


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    flat = [plain(t).reshape(-1) for t in tensors]
    for start in range(0, flat[0].numel(), _BLOCK):
        yield tuple(t[start : start + _BLOCK].double() for t in flat)
