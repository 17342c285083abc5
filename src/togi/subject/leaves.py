"""Leaves of nested values, written as JSON and read again."""

from __future__ import annotations

import enum
import math
import sys
from typing import TYPE_CHECKING, Any, Literal

from togi.core.errors import ArtifactError
from togi.subject.classes import enum_member, find_class, name_of

if TYPE_CHECKING:
    import torch

    from togi.core.record import Scalar

CONSTANTS = (type(None), bool, int, float, str)
_FLOAT, _NOT_FINITE = "builtins:float", ("nan", "inf", "-inf")
"""JSON has no such numbers: they are written as texts, with their class."""
Leaf = Literal["tensor", "constant", "count", "carried", "dtype", "device", "enum", "class", "opaque"]


def kind_of_constant(value: Any) -> type | None:
    """Which of ``CONSTANTS`` a value is, None for any other. 1, 1.0 and True are equal, and modules tell them apart."""
    return next((kind for kind in CONSTANTS if isinstance(value, kind)), None)


def holds_nothing(value: Any) -> bool:
    """True if a value is known, and no container."""
    import torch

    known = (torch.Tensor, *CONSTANTS, enum.Enum, torch.dtype, torch.device, torch.SymInt, type)
    return isinstance(value, known)


def is_array(value: Any) -> bool:
    """True for an array of NumPy."""
    numpy = sys.modules.get("numpy")  # before it is imported nothing is one
    return numpy is not None and isinstance(value, numpy.ndarray)


def described_leaf(value: Any) -> tuple[Leaf, str, Scalar]:
    """Its kind, the name of its class where that is needed, and what makes it again."""
    import torch

    if isinstance(value, torch.Tensor):
        return "tensor", "", None
    if isinstance(value, enum.Enum):
        return "enum", name_of(type(value)), value.name
    if isinstance(value, float) and not math.isfinite(value):
        return "constant", _FLOAT, str(float(value))
    if isinstance(value, CONSTANTS):
        return "constant", "", value
    if isinstance(value, torch.SymInt):
        return "constant", "", str(value)
    if isinstance(value, torch.dtype):
        return "dtype", "", str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return "device", "", str(value)
    if isinstance(value, type):
        return "class", name_of(value), None
    return "opaque", name_of(type(value)), None


def constant_of(kind: str, class_name: str, written: Scalar) -> Any:
    """The leaf again. Raises ArtifactError where this process has no such dtype, device or class."""
    match kind:
        case "constant" if class_name:
            if class_name != _FLOAT or written not in _NOT_FINITE:
                raise ArtifactError(f"{str(written)[:80]!r} is not a constant: it is damaged")
            return float(str(written))
        case "dtype":
            return dtype_of(str(written))
        case "device":
            return _device_of(str(written))
        case "enum":
            return enum_member(class_name, str(written))
        case "class":
            return find_class(class_name, kind)
        case _:
            return written


def dtype_of(name: str) -> torch.dtype:
    """Raises ArtifactError where torch has no dtype of this name."""
    import torch

    dtype = vars(torch).get(name)
    if not isinstance(dtype, torch.dtype):
        raise ArtifactError(
            f"{name[:80]!r} is not a dtype of torch {torch.__version__}: it is damaged, or for another one"
        )
    return dtype


def _device_of(name: str) -> torch.device:
    import torch

    try:
        return torch.device(name)
    except RuntimeError:
        raise ArtifactError(f"{name[:80]!r} is not a device of torch {torch.__version__}: it is damaged") from None
