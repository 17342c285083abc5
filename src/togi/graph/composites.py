"""Formulas in a captured graph that one operator computes: activations and layer norm, however they are written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from togi.graph.edit import EditableGraph, arguments, is_call, same_form, shape
from togi.graph.polynomial import number, polynomial, same_factors

aten = torch.ops.aten
_TANH = math.sqrt(2 / math.pi)


class _Activation(NamedTuple):
    """``result`` of ``x`` and ``t = function(inner(x))``: factors by degree in x, and by degrees in x and t."""

    function: str
    inner: dict[int, float]
    result: dict[tuple[int, int], float]
    operator: Any
    options: dict[str, str] = {}


_HALF_OF_BOTH = {(1, 0): 0.5, (1, 1): 0.5}
_ACTIVATIONS = (
    _Activation("erf.default", {1: math.sqrt(0.5)}, _HALF_OF_BOTH, aten.gelu.default),
    _Activation(
        "tanh.default", {1: _TANH, 3: _TANH * 0.044715}, _HALF_OF_BOTH, aten.gelu.default, {"approximate": "tanh"}
    ),
    _Activation(
        "sigmoid.default", {1: 2 * _TANH, 3: 2 * _TANH * 0.044715}, {(1, 1): 1.0}, aten.gelu.default,
        {"approximate": "tanh"},
    ),
    _Activation("sigmoid.default", {1: 1.0}, {(1, 1): 1.0}, aten.silu.default),
    _Activation("relu6.default", {0: 3.0, 1: 1.0}, {(1, 1): 1 / 6}, aten.hardswish.default),
)  # fmt: skip


def fuse_activations(graph: EditableGraph) -> int:
    """GELU (both forms), SiLU and hard swish that are written out become the operator. Returns how many."""
    functions = {activation.function for activation in _ACTIVATIONS}
    calls = [node for node in graph.nodes if is_call(node, *functions) and len(node.users) == 1]
    return sum(_fuse_activation(graph, node) for node in calls)


def _fuse_activation(graph: EditableGraph, function: Node) -> bool:
    argument = function.all_input_nodes[0]
    inner = polynomial(graph, argument) if len(argument.users) == 1 else {(argument,): 1.0}
    sources = {source for monomial in inner for source in monomial}
    if len(sources) != 1:
        return False
    source = sources.pop()
    degrees = {len(monomial): factor for monomial, factor in inner.items()}
    known = [a for a in _ACTIVATIONS if is_call(function, a.function) and same_factors(a.inner, degrees)]
    for root in _results(function) if known else ():
        result_polynomial = polynomial(graph, root)
        result = {(k.count(source), k.count(function)): factor for k, factor in result_polynomial.items()}
        alone = {node for monomial in result_polynomial for node in monomial} == {source, function}
        for activation in known if alone else ():
            if same_factors(activation.result, result) and unwritten(graph, source, root):
                return _replace(graph, root, activation.operator, {"self": source, **activation.options})
    return False


def _results(node: Node) -> Iterator[Node]:
    """The calls that lead on from ``node``, as long as nothing else uses what it made."""
    while len(node.users) == 1:
        (node,) = node.users
        yield node


def unwritten(graph: EditableGraph, source: Node, root: Node) -> bool:
    """True if ``root`` may read ``source`` itself: nobody writes it before."""
    return not graph.memory.written_between(source, source, root)


def _replace(graph: EditableGraph, root: Node, operator: Any, given: dict[str, Any]) -> bool:
    """``operator(**given)`` in the place of ``root``, unless it lays its result out otherwise."""
    return graph.replace_if_laid_out_alike(root, [graph.call_with(operator, given, before=root)])


def fuse_layer_norms(graph: EditableGraph) -> int:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last dimensions becomes layer norm. Returns how
    many."""
    return sum(_fuse_layer_norm(graph, node) for node in graph.nodes if is_call(node, "mul.Tensor", "div.Tensor"))


def _fuse_layer_norm(graph: EditableGraph, root: Node) -> bool:
    given = arguments(root)
    sides = [(given["self"], given["other"]), (given["other"], given["self"])]
    for centred, scale in sides if is_call(root, "mul.Tensor") else sides[:1]:
        normalised = _normalised(graph, centred, scale, root)
        if normalised is not None:
            source, dims, eps = normalised
            sizes = [shape(source)[dim] for dim in dims]
            if not all(type(size) is int for size in sizes):
                return False
            root, weight = _constant_operand(graph, root, "mul.Tensor", sizes)
            root, bias = _constant_operand(graph, root, "add.Tensor", sizes)
            if not all(unwritten(graph, node, root) for node in _steps(source, root)):
                return False
            options = {"input": source, "normalized_shape": sizes, "weight": weight, "bias": bias, "eps": eps}
            return _replace(graph, root, aten.layer_norm.default, options)
    return False


def _steps(source: Node, root: Node) -> set[Node]:
    """``source``, ``root`` and what is computed between."""
    steps, left = {source}, [root]
    while left:
        node = left.pop()
        if node not in steps:
            steps.add(node)
            left += node.all_input_nodes
    return steps


def _normalised(graph: EditableGraph, centred: Any, scale: Any, root: Node) -> tuple[Node, list[int], float] | None:
    """``(x, dimensions, eps)`` where ``centred`` is x less its mean, and ``scale`` its deviation, or one through it."""
    if not is_call(centred, "sub.Tensor") or not isinstance(scale, Node) or not same_form(centred, root):
        return None
    source, mean, alpha = (arguments(centred)[name] for name in ("self", "other", "alpha"))
    dims = _mean_over_last(mean)
    if dims is None or alpha != 1 or arguments(mean)["self"] is not source or not same_form(source, root):
        return None
    inverse = is_call(scale, "rsqrt.default")
    if inverse != is_call(root, "mul.Tensor") or not (inverse or is_call(scale, "sqrt.default")):
        return None
    inside = scale.all_input_nodes[0]
    if not is_call(inside, "add.Tensor", "add.Scalar") or arguments(inside)["alpha"] != 1:
        return None
    variance, eps = arguments(inside)["self"], number(graph, arguments(inside)["other"])
    if eps is None:
        return None
    return (source, dims, eps) if _is_variance(variance, source, centred, dims) else None


def _mean_over_last(node: Any) -> list[int] | None:
    """The dimensions of a mean that is kept broadcastable, where they are the last ones."""
    if not is_call(node, "mean.dim"):
        return None
    return _last(arguments(node), len(shape(node)))


def _last(given: dict[str, Any], rank: int) -> list[int] | None:
    dims = sorted(dim % rank for dim in given["dim"] or ())
    last = bool(dims) and dims == list(range(rank - len(dims), rank))
    return dims if last and given["keepdim"] and given.get("dtype") is None else None


def _is_variance(node: Any, source: Node, centred: Node, dims: list[int]) -> bool:
    """The mean square of what is centred, or the variance without Bessel's correction."""
    rank = len(shape(source))
    if is_call(node, "var.correction", "var.dim"):
        given = arguments(node)
        corrected = given.get("correction", given.get("unbiased"))  # None is 1
        return given["self"] is source and corrected in (0, False) and _last(given, rank) == dims
    if _mean_over_last(node) != dims:
        return False
    square = arguments(node)["self"]
    if is_call(square, "mul.Tensor"):
        given = arguments(square)
        return given["self"] is centred and given["other"] is centred
    squared = is_call(square, "square.default") or (
        is_call(square, "pow.Tensor_Scalar") and arguments(square)["exponent"] == 2
    )
    return squared and arguments(square)["self"] is centred


def _constant_operand(graph: EditableGraph, root: Node, operation: str, sizes: list[int]) -> tuple[Node, Any]:
    """The ``operation`` that follows ``root``, and its constant; ``root`` and None where that is something else."""
    users = list(root.users)
    if len(users) != 1 or not is_call(users[0], operation) or not same_form(root, users[0]):
        return root, None
    given = arguments(users[0])
    other = given["other"] if given["self"] is root else given["self"]
    constant, dtype = graph.constant(other), root.meta["val"].dtype
    if constant is None or list(constant.shape) != sizes or constant.dtype != dtype or given.get("alpha", 1) != 1:
        return root, None
    return users[0], other
