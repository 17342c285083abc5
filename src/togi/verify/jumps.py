"""Jumps: operators whose answer changes by a whole step where an operand changes by a rounding.

A cast of a float to an integer jumps at whole numbers, a comparison where both sides are equal, a remainder at the
multiples of its divisor. An engine that rounds otherwise before such an operator falls off the step. Values exactly
on a step are too rare among drawn ones, so ``steering`` looks for inputs that lead to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from togi.torch_internals.modes import DispatchObserver
from togi.torch_internals.operators import OpOverload, bound_arguments, schema_of

_NEAR = 1e-12
"""Relative; a rounding of float32 is much larger, one of float64 smaller."""
_LARGEST = float(1 << 52)
"""Beyond it every float64 is whole."""
_FEW = 32
"""A constant of a model has so many elements at most; larger ones are weights."""

Given = Mapping[str, Any]
"""The arguments of an operator by the names of its schema."""


@dataclass(frozen=True)
class Jump:
    """One operator that jumps, as one run met it."""

    operator: str
    at: Tensor
    """Which of its elements lie on a step: of the shape of its operands, broadcast."""
    given: tuple[str, ...] = ()
    """What its operands sum to: the same in two calls where it does not depend on what differs between them."""


class JumpObserver(DispatchObserver):
    """Notes the jumps of a run, in order, and the numbers and small tensors that its operators were given."""

    def __init__(self) -> None:
        super().__init__()
        self.jumps: list[Jump] = []
        self.constants: set[float | int] = set()

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if isinstance(operator, OpOverload):
            self._note(operator, bound_arguments(operator, args, kwargs))
        return operator(*args, **kwargs)

    def _note(self, operator: Any, given: Given) -> None:
        self.constants |= {
            value for argument in schema_of(operator).arguments for value in _numbers(argument, given[argument.name])
        }
        name = schema_of(operator).name.removeprefix("aten::").rstrip("_")
        at = _RULES[name](given) if name in _RULES else None
        if at is not None:
            self.jumps.append(Jump(name, at, tuple(_sum(v) for v in given.values() if isinstance(v, Tensor))))


def _sum(operand: Tensor) -> str:
    """Weighted, so that other elements at other places do not sum to the same."""
    values = operand.detach().double().flatten()
    return str((values * torch.linspace(1.0, 2.0, len(values), dtype=values.dtype, device=values.device)).sum().item())


def _numbers(argument: Any, value: Any) -> list[float | int]:
    """The numbers by which values are computed: no sizes and dimensions."""
    if str(argument.type) == "number" and type(value) in (int, float):
        return [value]
    if isinstance(value, Tensor) and value.layout is torch.strided and 0 < value.numel() <= _FEW and _is_real(value):
        return value.detach().flatten().tolist()
    return []


def _is_real(tensor: Tensor) -> bool:
    is_fake = tensor.device.type == "meta" or type(tensor) not in (Tensor, torch.nn.Parameter)
    return not (is_fake or tensor.is_complex() or tensor.is_quantized or tensor.dtype is torch.bool)


def _whole(value: Tensor) -> Tensor:
    value = value.double()
    near = (value - value.round()).abs() <= _NEAR * value.abs().clamp(min=1.0)
    return near & value.isfinite() & (value.abs() < _LARGEST)


def _of_floats(given: Given) -> Tensor | None:
    operand = given["self"]
    return _whole(operand) if operand.is_floating_point() else None


def _halves(given: Given) -> Tensor | None:
    operand = given["self"]
    return _whole(operand.double() * 10.0 ** given.get("decimals", 0) + 0.5) if operand.is_floating_point() else None


def _cast(given: Given) -> Tensor | None:
    to = given["dtype"]
    if to is None or to.is_floating_point or to.is_complex or not given["self"].is_floating_point():
        return None
    return given["self"] == 0 if to is torch.bool else _whole(given["self"])


def _quotients(given: Given) -> Tensor | None:
    """At a multiple of the divisor; of integers, also next to one."""
    dividend, divisor = (_tensor(given[name], given) for name in ("self", "other"))
    if dividend.is_floating_point() or divisor.is_floating_point():
        return _whole(dividend.double() / divisor.double())
    divisor = divisor.long().abs().clamp(min=1)
    rest = dividend.long().remainder(divisor)
    return (rest <= 1) | (rest == divisor - 1)


def _rounded_quotients(given: Given) -> Tensor | None:
    return _quotients(given) if given.get("rounding_mode") else None


def _equals(given: Given) -> Tensor | None:
    one, other = (_tensor(given[name], given) for name in ("self", "other"))
    if one.dtype is torch.bool or one.is_complex() or other.is_complex():
        return None
    if not (one.is_floating_point() or other.is_floating_point()):
        return (one.long() - other.long()).abs() <= 1
    one, other = one.double(), other.double()
    return (one - other).abs() <= _NEAR * torch.maximum(one.abs(), other.abs())


def _zeros(given: Given) -> Tensor | None:
    return given["self"] == 0 if given["self"].is_floating_point() else None


def _boundaries(values: str, boundaries: str) -> Callable[[Given], Tensor | None]:
    def rule(given: Given) -> Tensor | None:
        value, steps = _tensor(given[values], given), given[boundaries]
        return torch.isin(value.double(), steps.double())

    return rule


def _tensor(value: Any, given: Given) -> Tensor:
    """An operand as a tensor: it may be a number."""
    if isinstance(value, Tensor):
        return value
    device = next((v.device for v in given.values() if isinstance(v, Tensor)), None)
    return torch.as_tensor(value, device=device)


_RULES: dict[str, Callable[[Given], Tensor | None]] = {
    **dict.fromkeys(("floor", "ceil", "trunc", "fix", "frac"), _of_floats),
    **dict.fromkeys(("remainder", "fmod", "floor_divide"), _quotients),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _equals),
    **dict.fromkeys(("sign", "sgn", "heaviside", "logical_not"), _zeros),
    "round": _halves,
    "_to_copy": _cast,
    "div": _rounded_quotients,
    "bucketize": _boundaries("self", "boundaries"),
    "searchsorted": _boundaries("self", "sorted_sequence"),
}
