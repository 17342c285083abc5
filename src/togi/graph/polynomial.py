"""Elementwise arithmetic as a polynomial, so that a formula is recognised however it is written.

``0.5 * x * (1 + t)``, ``x * (t / 2 + 0.5)`` and ``x * 0.5 + 0.5 * (t * x)`` are all ``{(x,): 0.5, (t, x): 0.5}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch.fx import Node

from togi.graph.edit import EditableGraph, arguments, call_name, is_call, same_form

Monomial = tuple[Node, ...]
"""Factors in order of name; a square has its base twice."""
Polynomial = dict[Monomial, float]

TERMS, DEGREE = 4, 4
"""What is larger is not a formula that anybody looks for."""
RELATIVE = 2e-7
"""How far two factors may be apart that are written with seven digits or more, or stored as float32."""


def polynomial(graph: EditableGraph, root: Node) -> Polynomial:
    """The polynomial that ``root`` computes, in values of its own form. What something else uses too is not taken
    apart."""
    return _expand(graph, root, root) or {}


def same_factors(one: Mapping[Any, float], other: Mapping[Any, float]) -> bool:
    """True if two polynomials are equal, up to the rounding of their factors."""
    return one.keys() == other.keys() and all(
        math.isclose(one[key], other[key], rel_tol=RELATIVE, abs_tol=0.0) for key in one
    )


def number(graph: EditableGraph, operand: Any) -> float | None:
    """The number that is written there, or that a constant of one element holds."""
    if type(operand) in (int, float):
        return float(operand)
    constant = graph.constant(operand)
    if constant is None or constant.numel() != 1 or not constant.is_floating_point():
        return None
    return float(constant)


def _expand(graph: EditableGraph, node: Any, root: Node) -> Polynomial | None:
    if (fixed := number(graph, node)) is not None:
        return {(): fixed}
    if not isinstance(node, Node) or not same_form(node, root):
        return None
    calculated = _calculated(graph, node, root) if node is root or len(node.users) == 1 else None
    return {(node,): 1.0} if calculated is None else calculated


def _calculated(graph: EditableGraph, node: Node, root: Node) -> Polynomial | None:
    """The polynomial of a call. None where it is none of these, or what it makes is too large: then it is a value like
    any other."""
    if not is_call(node, *_OPERATIONS):
        return None
    operation, given = call_name(node).partition(".")[0], arguments(node)
    if operation == "neg":
        first = _expand(graph, given["self"], root)
        return first and _product(first, {(): -1.0})
    if operation in ("pow", "square"):
        exponent = given.get("exponent", 2)
        if exponent not in (2, 3):
            return None
        base = power = _expand(graph, given["self"], root)
        for _ in range(int(exponent) - 1):
            power = power and base and _product(power, base)
        return power
    first, other = _expand(graph, given["self"], root), _expand(graph, given["other"], root)
    if first is None or other is None:
        return None
    if operation == "mul":
        return _product(first, other)
    if operation == "div":
        return _product(first, {(): 1 / other[()]}) if other.keys() == {()} and other[()] else None
    if type(alpha := given["alpha"]) not in (int, float):
        return None
    return _sum(first, _product(other, {(): alpha if operation == "add" else -alpha}))


_OPERATIONS = (
    *(f"{name}.{kind}" for name in ("add", "sub", "mul", "div") for kind in ("Tensor", "Scalar")),
    *("neg.default", "square.default", "pow.Tensor_Scalar"),
)


def _product(one: Polynomial, other: Polynomial) -> Polynomial | None:
    total: Polynomial | None = {}
    for a, x in one.items():
        for b, y in other.items():
            monomial = tuple(sorted((*a, *b), key=lambda node: node.name))
            if total is None or len(monomial) > DEGREE:
                return None
            total = _sum(total, {monomial: x * y})
    return total


def _sum(one: Polynomial, other: Polynomial | None) -> Polynomial | None:
    if other is None:
        return None
    total = {key: one.get(key, 0.0) + other.get(key, 0.0) for key in (*one, *other)}
    return total if len(total) <= TERMS else None
