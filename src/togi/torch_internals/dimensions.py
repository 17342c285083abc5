"""What operators do to the dimensions of their first operand, by name and schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from togi.torch_internals.operators import schema_of

__all__ = ["MIXED", "mixed_dimensions", "moved_dimensions", "reduced_dimensions"]

Given = Mapping[str, Any]
"""All arguments of a call by schema name."""
_ALONG_ONE = (
    "_softmax _log_softmax softmax log_softmax _safe_softmax cumsum cumprod logcumsumexp cummax cummin sort argsort "
    "topk glu"
)
_NORMS = ("native_layer_norm", "layer_norm", "_fused_rms_norm", "rms_norm")
MIXED: dict[str, Callable[[Given, int], Sequence[int]]] = {
    **dict.fromkeys(_ALONG_ONE.split(), lambda given, _: [given["dim"]]),
    **dict.fromkeys(_NORMS, lambda given, _: range(-len(given["normalized_shape"]), 0)),
    "flip": lambda given, _: given["dims"],
    "roll": lambda given, rank: given["dims"] or range(rank),
    "constant_pad_nd": lambda given, _: [-1 - at // 2 for at, amount in enumerate(given["pad"]) if amount != 0],
}
"""Operators whose result has the dimensions of the operand, and which of them they mix the positions of."""


def _base_name(operator: Any) -> str:
    """``transpose`` for ``aten::transpose_`` and ``aten::transpose_copy`` too; other libraries' names are whole."""
    return schema_of(operator).name.removeprefix("aten::").removesuffix("_").removesuffix("_copy")


def mixed_dimensions(operator: Any, given: Given, rank: int) -> list[int]:
    """The dimensions whose positions it mixes; it is one of ``MIXED``."""
    return [dim % max(rank, 1) for dim in MIXED[_base_name(operator)](given, rank)]


def moved_dimensions(operator: Any, given: Given, shape: Sequence[Any]) -> list[int | None]:
    """For each dimension of the result the one of the operand, of ``shape``, that it is: None for a new one. The
    operator only moves, adds and drops dimensions."""
    dims: list[int | None] = list(range(len(shape)))
    match _base_name(operator):
        case "permute":
            return [dims[dim] for dim in given["dims"]]
        case "transpose" | "swapaxes":
            _, one, other = given.values()
            dims[one], dims[other] = dims[other], dims[one]
        case "t" | "mT":
            dims[-2:] = reversed(dims[-2:])
        case "unsqueeze":
            dims.insert(given["dim"] % (len(shape) + 1), None)
        case "select" | "unbind":
            del dims[given["dim"]]
        case "squeeze":
            gone = reduced_dimensions(given, len(shape))
            return [dim for dim, size in enumerate(shape) if not (dim in gone and str(size) == "1")]
        case name:
            raise ValueError(f"{name} is not known to move dimensions")
    return dims


def reduced_dimensions(given: Given, rank: int) -> list[int]:
    """The dimensions that a reduction reduces: all where it names none."""
    asked = given.get("dim")
    listed = range(rank) if asked is None or asked == [] else [asked] if isinstance(asked, int) else asked
    return [dim % max(rank, 1) for dim in listed]
