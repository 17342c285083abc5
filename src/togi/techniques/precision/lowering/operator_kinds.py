"""Kinds of the operators that OpenVINO's quantizer works on: what is sensitive to 8 bits is so by kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from togi.core.choices import OperatorKind
from togi.core.errors import Refused

_CONVOLUTION, _GROUPED, _PRODUCT = "Convolution", "GroupConvolution", "MatMul"
_PASSES_VALUES_ON = frozenset({"Convert", "Multiply", "Subtract", "Reshape", "Transpose", "FakeQuantize"})
"""Between a constant and what uses it: weights that are stored in another form."""
_NO_COMPUTATION = frozenset({"Constant", "Parameter", "Result"})


def operators_to_keep(model: Any, keep: Iterable[OperatorKind]) -> list[str]:
    """Names of the operators of these kinds. Raises Refused where there are none of one of them."""
    kinds = kinds_of(model)
    for kind in keep:
        _check(kind, kinds, "keep in floating point")
    return sorted(name for name, kind in kinds.items() if kind in set(keep))


def all_others(model: Any, alone: OperatorKind) -> list[str]:
    """Names of all operators but those of one kind. Raises Refused where there are none of that."""
    kinds = kinds_of(model)
    _check(alone, kinds, "quantize alone")
    computing = (node for node in model.get_ops() if node.get_type_name() not in _NO_COMPUTATION)
    names = {node.get_friendly_name() for node in computing}
    return sorted(name for name in names if kinds.get(name) is not alone)


def kinds_of(model: Any) -> dict[str, OperatorKind]:
    """By name: of each convolution and product."""
    nodes = [n for n in model.get_ordered_ops() if n.get_type_name() in (_CONVOLUTION, _GROUPED, _PRODUCT)]
    found = {node.get_friendly_name(): _kind(node) for node in nodes}
    own = (OperatorKind.DEPTHWISE, OperatorKind.ATTENTION)
    others = [name for name, kind in found.items() if kind not in own]
    if len(others) > 1:  # of a single one nothing would be left
        found[others[0]], found[others[-1]] = OperatorKind.FIRST, OperatorKind.LAST
    return found


def _check(kind: OperatorKind, kinds: dict[str, OperatorKind], do: str) -> None:
    if kind not in kinds.values():
        raise Refused(f"no operator is of the kind {kind}: there is nothing to {do}")


def _kind(node: Any) -> OperatorKind:
    if node.get_type_name() == _GROUPED:
        return OperatorKind.DEPTHWISE
    if node.get_type_name() == _PRODUCT:
        weights = any(_is_constant(node.input_value(i).get_node()) for i in range(2))
        return OperatorKind.LINEAR if weights else OperatorKind.ATTENTION
    if set(_sizes(node.get_output_partial_shape(0))) == {1}:
        return OperatorKind.SQUEEZE
    if set(_sizes(node.get_input_partial_shape(1))) == {1}:
        return OperatorKind.POINTWISE
    return OperatorKind.CONVOLUTION


def _sizes(shape: Any) -> list[int | None]:
    """Of height and width, and other such dimensions; None where they vary."""
    return [dimension.get_length() if dimension.is_static else None for dimension in list(shape)[2:]]


def _is_constant(node: Any) -> bool:
    while node.get_type_name() in _PASSES_VALUES_ON:
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")
