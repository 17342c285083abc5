"""Compares a streamed function with the plain one where derivatives have special cases.

The function is asked again for zeros, ones, equal rows, large values, infinities and NaN: what the first call's tensors
hardly hold, and later ones may. NaN and infinities must stand where they stand in the plain result, or in that of
float64 (which overflows later). Numbers must be wrong no more often than the plain function's own: which of two equal
values wins is a matter of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from togi.tiling.capture import Refuted, in_one_line

INF, NAN = float("inf"), float("nan")
Answers = Callable[[Sequence[Any]], list[Any]]
_WRONG = 0.02
"""Relative to the value, and to the median of all, a number that is off by more is wrong."""
_SHARE = 0.01
"""Of numbers that may be wrong besides as many as in the plain result."""


def _plant_equal_rows(rows: Tensor) -> None:
    """Every sixth row 0, 1, or the same numbers: those of all tensors, so that distances between them are 0. No other
    product or difference of rows is 0 but for rounding, on which a kink would depend."""
    rows[0::6], rows[1::6] = 0, 1
    columns = rows.shape[-1] if rows.dim() > 1 else 1
    rows[2::6] = torch.linspace(0.3, 1.1, columns, dtype=rows.dtype, device=rows.device)
    if rows.shape[0] > 4:
        rows[3::6] = rows[4].clone()


def _plant_magnitudes(rows: Tensor) -> None:
    """Also around the least norms by which ``cosine_similarity`` and ``normalize`` divide, 1e-8 and 1e-12."""
    rows[0::6].mul_(4e-9)
    rows[4::6].mul_(4e-13)
    rows[1::6].mul_(100)
    rows[2::6].mul_(-100)
    rows[3::6].mul_(1e4)


def _plant(rows: Tensor, values: Sequence[float]) -> None:
    """Whole rows, and single elements of others, and zeros in one row: some derivatives ask whether there is any."""
    rows[6:7] = 0
    for at, value in enumerate(values):
        rows[at::7] = value
        rows[at + len(values) :: 7][..., :1] = value


KINDS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]] = {
    "zeros, ones and equal rows": (_plant_equal_rows, _plant_equal_rows),
    "zeros only": (Tensor.zero_, Tensor.zero_),
    "tiny and large values": (_plant_magnitudes, _plant_magnitudes),
    "infinities": (partial(_plant, values=(INF, -INF)), partial(_plant, values=(INF, -INF))),
    "infinities in one tensor": (partial(_plant, values=(INF, -INF)), partial(_plant, values=())),
    "NaN": (partial(_plant, values=(NAN,)), partial(_plant, values=(NAN,))),
    "NaN in one tensor": (partial(_plant, values=(NAN,)), partial(_plant, values=())),
}
"""What changes the rows of the first tensor of floating point in place, and those of the others. In one tensor: what
reduces over the rows of another would be NaN throughout. Integers stay: they may be indices."""


def _changed(given: Sequence[Any], change: Callable[[Tensor], Any], others: Callable[[Tensor], Any]) -> list[Any]:
    changed = []
    for value in given:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
            copy = value.detach().clone()
            change(copy)
            change, value = others, copy.requires_grad_(value.requires_grad)
        changed.append(value)
    return changed


def compare_specials(
    streamed: Answers, plain: Answers, truth: Callable[[Sequence[Any]], list[Any] | None], given: Sequence[Any]
) -> int:
    """Count the ``KINDS`` for which they agree; a kind that the plain function refuses is left out.

    Args:
        truth: the plain function in float64; None where it has none.

    Raises:
        Refuted: they differ.
    """
    compared = 0
    for kind, changes in KINDS.items():
        changed = _changed(given, *changes)
        try:
            expected = plain(changed)
        except Exception:  # the user's function refuses such values: a probability of 100
            continue
        try:
            answers = streamed(changed)
        except Exception as error:
            raise Refuted(f"it fails in tiles with {kind} ({in_one_line(error)})") from error
        real = truth(changed) or expected
        for index, (answer, other) in enumerate(zip(answers, expected, strict=True)):
            _compare(
                answer, other, real[index] if len(real) == len(expected) else other, f"with {kind}, result {index}"
            )
        compared += 1
    return compared


def _compare(actual: Any, expected: Any, truth: Any, where: str) -> None:
    if not isinstance(expected, Tensor) or not expected.is_floating_point() or not expected.numel():
        return
    truth = truth if isinstance(truth, Tensor) and truth.shape == expected.shape else expected
    for name, is_special in _SPECIAL.items():
        misplaced = (is_special(actual) != is_special(expected)) & (is_special(actual) != is_special(truth))
        allowed = 0 if name == "NaN" else _SHARE * actual.numel()  # what overflows last is a matter of rounding
        if int(misplaced.sum()) > allowed:
            raise Refuted(f"{where} has {name} in other places than the plain function's, {int(misplaced.sum())} times")
    wrong, own = _wrong(actual, truth), _wrong(expected, truth)
    if wrong > 2 * own + _SHARE * actual.numel():
        raise Refuted(f"{where} is wrong in {wrong} of {actual.numel():,} places, the plain function's in {own}")


_SPECIAL: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": torch.isnan,
    "infinity": torch.isposinf,
    "negative infinity": torch.isneginf,
}


def _wrong(actual: Tensor, truth: Tensor) -> int:
    both = actual.isfinite() & truth.isfinite()
    first, second = actual[both].double(), truth[both].double()
    if not first.numel():
        return 0
    return int(((first - second).abs() > _WRONG * (second.abs() + second.abs().median())).sum())
