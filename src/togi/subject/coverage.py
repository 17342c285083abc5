"""Whether calibration data are like the data that a model meets: warnings, since nothing here is wrong by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from togi.subject.calibration import are_first, calibration_inputs
from togi.subject.inputs import Inputs, Subject

_UNRELATED = 0.05
"""Correlation of neighbours below which they are unrelated."""
_LEAST_SIZE = 8
"""Of a dimension along which neighbours are compared."""
_LEAST_LENGTH = 1000
"""Of a row without further dimensions: shorter ones are features, whose order says nothing."""
_LEAST_PAIRS = 1000
_MARGIN = 0.05
"""Of the range: so little beyond it clips nothing that counts."""
_LEAST_SHARE = 1e-3
_LIKE = "give some hundred inputs like those that the model will meet (calibration=)"


def calibration_notes(subject: Subject) -> list[str]:
    """What a user should know of the calibration data."""
    given = calibration_inputs(subject)
    notes = []
    if subject.calibration is None:
        notes.append(
            f"No calibration data are given, so 8-bit recipes are calibrated on the samples that are timed: {_LIKE}"
        )
    elif len(given) == 1:
        notes.append(f"There is one calibration input, so 8-bit ranges are those of this one alone: {_LIKE}")
    if are_first(subject.calibration, given):
        notes.append(
            f"The calibration inputs are the first {len(given)} of an iterable, and data are often sorted by class: "
            "give a list, a data set or a DataLoader of one, from all of which togi takes some"
        )
    columns = _floating(given)
    for number, tensors in columns:
        if (correlation := _strongest(tensors)) is not None and correlation < _UNRELATED:
            notes.append(
                f"{_whose(subject)} look like noise: neighbouring values of input {number} are unrelated (correlation "
                f"{correlation:.2f}). Ranges of noise are not those of real inputs: {_LIKE}"
            )
    if subject.validation is not None:
        notes += _beyond(dict(columns), dict(_floating(subject.validation.inputs)))
    return notes


def _whose(subject: Subject) -> str:
    return "The samples that 8-bit recipes are calibrated on" if subject.calibration is None else "The calibration data"


def _floating(calls: Sequence[Inputs]) -> list[tuple[int, list[Tensor]]]:
    """By the number of the input: its values in all calls, where these are floating-point numbers."""
    columns = zip(*(call.tensors() for call in calls), strict=False)
    numbered = enumerate(map(list, columns), start=1)
    return [(number, tensors) for number, tensors in numbered if all(map(_has_floats, tensors))]


def _has_floats(tensor: Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_nested
    return plain and tensor.is_floating_point() and tensor.numel() > 0


def _strongest(tensors: Sequence[Tensor]) -> float | None:
    """The correlation of neighbours along the dimension in which they are most alike; None where too few have any."""
    found = [c for dim in range(1, tensors[0].dim()) if (c := _of_neighbours(tensors, dim)) is not None]
    return max(map(abs, found), default=None)


def _of_neighbours(tensors: Sequence[Tensor], dim: int) -> float | None:
    products = squares = 0.0
    pairs = 0
    for one, other in _neighbours(tensors, dim):
        products += float((one * other).sum())
        squares += float((one.square().sum() + other.square().sum()) / 2)
        pairs += one.numel()
    return products / squares if pairs >= _LEAST_PAIRS and squares > 0 else None


def _neighbours(tensors: Sequence[Tensor], dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    mean = torch.stack([t.float().mean() for t in tensors]).mean()
    for tensor in tensors:
        least = _LEAST_SIZE if tensor.dim() > 2 else _LEAST_LENGTH
        if tensor.dim() > dim and tensor.shape[dim] >= least:
            centred = tensor.float() - mean
            yield centred.narrow(dim, 0, tensor.shape[dim] - 1), centred.narrow(dim, 1, tensor.shape[dim] - 1)


def _beyond(calibration: dict[int, list[Tensor]], validation: dict[int, list[Tensor]]) -> Iterator[str]:
    """Sentences on inputs of which validation data have values that calibration did not see."""
    for number, tensors in validation.items():
        if number not in calibration:
            continue
        low, high = _range(calibration[number])
        least, most = _range(tensors)
        margin = _MARGIN * (high - low)
        outside = sum(int(((t < low - margin) | (t > high + margin)).sum()) for t in tensors)
        share = outside / sum(tensor.numel() for tensor in tensors)
        if share >= _LEAST_SHARE:
            yield (
                f"{share:.1%} of the values of input {number} in the validation data lie beyond what calibration saw "
                f"({least:.3g} to {most:.3g}, and calibration {low:.3g} to {high:.3g}), so that 8-bit recipes clip "
                "them: is the preprocessing the same?"
            )


def _range(tensors: Sequence[Tensor]) -> tuple[float, float]:
    return min(float(t.amin()) for t in tensors), max(float(t.amax()) for t in tensors)
