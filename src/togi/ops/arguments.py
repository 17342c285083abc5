"""The refusals of the operators, in words: every message names the argument, its shape and the fix."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from togi.core.errors import TogiError, nearest
from togi.core.quantities import a_type
from togi.ops.measures import FORMATS, negative_sizes

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
UNDEFINED = ("nan", "zero")
REDUCTIONS = ("none", "mean", "sum")
BOXES, ANCHORS_AND_BOXES = ("boxes1", "boxes2"), ("anchors", "boxes")
_ROWS_AT_A_TIME = 1 << 15


class BoxError(TogiError, ValueError):
    """Boxes or options that an operator cannot work with."""


def check_options(format: str, undefined: str = "nan") -> None:
    """Raises BoxError for an unknown format or an unknown treatment of undefined values."""
    check_one_of("format", format, FORMATS)
    check_one_of("undefined", undefined, UNDEFINED)


def check_pair(names: tuple[str, str], first: object, second: object) -> tuple[Tensor, Tensor]:
    """Convert both to tensors [..., 4] of one floating dtype on one device, else BoxError."""
    a, b = _boxes(names[0], first), _boxes(names[1], second)
    if a.dtype != b.dtype:
        raise BoxError(
            f"{form_of(names[0], a)} and {form_of(names[1], b)} differ in dtype: rounding one of them in silence could "
            f"change matches. Convert one, for example {names[1]}.to({names[0]}.dtype)."
        )
    if a.device != b.device:
        raise BoxError(
            f"{names[0]} is on {a.device} and {names[1]} on {b.device}: move one, for example "
            f"{names[1]}.to({names[0]}.device)."
        )
    return a, b


def check_aligned(names: tuple[str, str], a: Tensor, b: Tensor) -> None:
    """Raises BoxError unless both have the same shape."""
    if a.shape != b.shape:
        raise BoxError(
            f"{form_of(names[0], a)} and {form_of(names[1], b)} cannot be compared box by box: give the "
            "same shape, or leave out aligned=True to compare every pair."
        )


def batch_shape(names: tuple[str, str], a: Tensor, b: Tensor) -> torch.Size:
    """The leading dimensions of pairs, after broadcasting; BoxError where a dimension is missing or they do not
    agree."""
    for name, tensor in zip(names, (a, b), strict=True):
        if tensor.dim() < 2:
            raise BoxError(f"{form_of(name, tensor)}: pairs need [N, 4] or [..., N, 4]; for one box give {name}[None].")
    try:
        return torch.Size(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise BoxError(
            f"{form_of(names[0], a)} and {form_of(names[1], b)}: the dimensions before the last two do not broadcast. "
            "For images with different numbers of boxes give a list of tensors."
        ) from None


def check_sizes(names: tuple[str, str], a: Tensor, b: Tensor, format: str) -> None:
    """Raises BoxError for a width or height below 0, naming the first box that has one. NaN is not a negative size.

    A few rows at a time, so that it needs no memory worth naming.
    """
    for name, tensor in zip(names, (a, b), strict=True):
        for at, rows in enumerate(tensor.detach().reshape(-1, 4).split(_ROWS_AT_A_TIME)):  # type: ignore[no-untyped-call]
            wrong = negative_sizes(rows, format)
            if bool(wrong.any()):
                row = int(wrong.nonzero()[0, 0])
                box = ", ".join(f"{value:g}" for value in rows[row].tolist())
                raise BoxError(
                    f"{name} {list(tensor.shape)}: box {at * _ROWS_AT_A_TIME + row} = ({box}) has a negative size in "
                    f"format {format!r}. {_mend(format, name)} With check=False the formula is applied as it stands: "
                    "such a box overlaps nothing, and its area is a product of differences, whatever the sign."
                )


def _mend(format: str, name: str) -> str:
    if format == "xyxy":
        return "Are the boxes (x, y, width, height)? Then say format='xywh'; else sort the corners."
    return f"Are the boxes (x1, y1, x2, y2)? Then say format='xyxy'; else clamp {name}[..., 2:] at 0."


def _boxes(name: str, given: object) -> Tensor:
    if not isinstance(given, Tensor):
        raise BoxError(f"{name} is {a_type(given)}: give a tensor [N, 4], or a list of them for several images.")
    if given.dim() < 1 or given.shape[-1] != 4:
        raise BoxError(
            f"{form_of(name, given)}: the last dimension has to be 4 (the format says which four numbers). For no "
            "boxes give torch.zeros(0, 4); rotated boxes (5 numbers) are not supported here."
        )
    if given.dtype not in DTYPES:
        raise BoxError(
            f"{form_of(name, given)}: areas and ratios of integers would overflow or truncate, and other types are not "
            f"supported. Convert it: {name}.float()."
        )
    return given


def check_lists(names: tuple[str, str], a: object, b: object) -> int | None:
    """The number of images where one of both is a list, the other a list or one tensor; None without a list."""
    lengths = [len(x) for x in (a, b) if isinstance(x, (list, tuple))]  # torch 2.9 cannot compile list | tuple
    if len(set(lengths)) > 1:
        raise BoxError(
            f"{names[0]} has {lengths[0]} tensors and {names[1]} {lengths[1]}: give one per image in both lists."
        )
    return lengths[0] if lengths else None


def check_thresholds(thresholds: Sequence[float], labels: Sequence[int]) -> None:
    """Raises BoxError unless the thresholds ascend and there is one label more than thresholds."""
    if not thresholds or list(thresholds) != sorted(thresholds):
        raise BoxError(f"thresholds={list(thresholds)}: give at least one, in ascending order, such as (0.3, 0.7).")
    if len(labels) != len(thresholds) + 1:
        raise BoxError(
            f"{len(thresholds)} thresholds make {len(thresholds) + 1} levels, but labels={list(labels)} has "
            f"{len(labels)}: give one per level."
        )
    if any(not -128 <= label <= 127 for label in labels):
        raise BoxError(f"labels={list(labels)}: a label is an int8, from -128 to 127.")


def check_one_of(name: str, given: str, known: Collection[str], error: type[TogiError] = BoxError) -> None:
    """Raises ``error`` for an unknown word."""
    if given not in known:
        raise error(f"{name}={given!r} is unknown; it can be {', '.join(known)}{nearest(str(given), known)}")


def form_of(name: str, tensor: Tensor) -> str:
    """``boxes [3, 4] (float32)``."""
    return f"{name} {list(tensor.shape)} ({str(tensor.dtype).removeprefix('torch.')})"
