"""Finds the slices of its operands that a slice of an operation's result needs: the proof that a dimension is safe.

For a call and a dimension of its result, a rule answers with the same call on sliced operands: each operand is either
sliced along one dimension, at the same positions, or taken whole. Where no rule is known, or the dimension is one along
which the operation mixes positions (a softmax, a scan, a sort along it), the answer is no: ``NotSliceable`` with the
reason. An operation without a rule is never guessed at.

Rules are keyed by ATen overload. Pointwise operations are known from torch's own tag. The rules of operations that
move, pick or multiply dimensions are in ``slicing_rules`` and ``picking_rules``.

Each rule states which arguments it understands. A call that gives any other one of the operation's schema a value of
its own is not cut: what a rule was not written for may change the result, or its gradient alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor, fx

from togi.tiling.sizes import size_expression, size_expressions
from togi.torch_internals.operators import OpOverload, bound_arguments, schema_of
from togi.torch_internals.tensors import tree_leaves


class NotSliceable(Exception):
    """A dimension along which a result cannot be computed slice by slice, and why."""


@dataclass(frozen=True)
class Slice:
    """This node, at the positions of the tile along ``dim``."""

    node: fx.Node
    dim: int


@dataclass(frozen=True)
class Length:
    """The number of positions of the tile."""


@dataclass(frozen=True)
class Offset:
    """The position at which the tile begins."""


@dataclass(frozen=True)
class SlicedCall:
    """A call on sliced operands. Arguments hold ``Slice``, ``Length``, ``Offset``; plain nodes are taken whole."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def slices(self) -> list[Slice]:
        return [leaf for leaf in self._leaves() if isinstance(leaf, Slice)]

    @cached_property
    def whole_nodes(self) -> set[fx.Node]:
        return {leaf for leaf in self._leaves() if isinstance(leaf, fx.Node)}

    def _leaves(self) -> list[Any]:
        return tree_leaves((self.args, dict(self.kwargs)))


Cut = Callable[[fx.Node, int], SlicedCall]
"""``cut(node, dim)``, with ``dim`` not negative."""


@dataclass(frozen=True)
class SlicingRule:
    """How an operation is cut, and the arguments that this holds for, by the schema's names: None for all."""

    cut: Cut
    understands: frozenset[str] | None


RULES: dict[Any, SlicingRule] = {}


def rule(*targets: Any, understands: str | None) -> Callable[[Cut], Cut]:
    """Register a rule for ATen overloads.

    Args:
        understands: the arguments, separated by blanks, for any value of which the cut is right, in its gradient too.
            None: for all, as of operations on elements, each of which is sliced or handed on.
    """

    def register(cut: Cut) -> Cut:
        for target in targets:
            RULES[target] = SlicingRule(cut, None if understands is None else frozenset(understands.split()))
        return cut

    return register


def refuse_unknown_arguments(node: fx.Node, understood: frozenset[str] | None) -> None:
    """
    Raises:
        NotSliceable: the call gives another value than the schema's default for an argument that is not understood.
    """
    if understood is None or not isinstance(node.target, OpOverload):
        return
    given = arguments(node)
    for argument in schema_of(node.target).arguments:
        value = given[argument.name]
        if argument.name not in understood and not (argument.has_default_value() and value == argument.default_value):
            raise NotSliceable(f"{name(node)} is given {argument.name}, for which it has no rule")


def pointwise(node: fx.Node, dim: int) -> SlicedCall:
    """Operands aligned from the right, as in broadcasting."""
    out = rank(node)

    def aligned(operand: fx.Node) -> Any:
        return broadcast_slice(operand, dim, out)

    args = fx.node.map_arg(node.args, aligned)
    return SlicedCall(node.target, args, fx.node.map_arg(node.kwargs, aligned))


def broadcast_slice(operand: fx.Node, dim: int, out_rank: int) -> Any:
    """``operand`` sliced where it has the dimension of the result, whole where it is repeated along it."""
    value = operand.meta.get("val")
    if not isinstance(value, Tensor):
        return operand
    own = dim - (out_rank - value.dim())
    return operand if own < 0 or size_expression(value.shape[own]) == 1 else Slice(operand, own)


def value(node: fx.Node) -> Tensor:
    tensor = node.meta["val"]
    assert isinstance(tensor, Tensor), f"{node} is not a tensor"
    return tensor


def rank(node: fx.Node) -> int:
    """Dimensions of the result; of the first one where there are several (``max`` with its index)."""
    return _first_result(node).dim()


def sizes(node: fx.Node) -> list[Any]:
    """Symbolic sizes of the result; of the first one where there are several."""
    return size_expressions(_first_result(node))


def _first_result(node: fx.Node) -> Tensor:
    results = node.meta["val"]
    return results if isinstance(results, Tensor) else results[0]


def name(node: fx.Node) -> str:
    """``aten.cumsum`` for messages."""
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet) if packet is not None else str(getattr(node.target, "__name__", node.target))


def arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments by the schema's names, with defaults."""
    return bound_arguments(node.target, node.args, node.kwargs)
