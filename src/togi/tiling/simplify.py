"""Simplifies a traced graph: equal calls become one, views of views one view, copies casts.

The graph stays what the function computes, gradients included.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from togi.tiling.sizes import size_expressions
from togi.torch_internals.operators import OpOverload, schema_of

aten = torch.ops.aten


def differentiated(graph: fx.Graph, tensors: Sequence[Tensor]) -> set[fx.Node]:
    """The nodes through which gradients flow, if any tensor wants them."""
    if not torch.is_grad_enabled():
        return set()
    given = [node for node in graph.nodes if node.op == "placeholder"]
    reached = {node for node, tensor in zip(given, tensors, strict=True) if tensor.requires_grad}
    for node in graph.nodes:
        if any(source in reached for source in node.all_input_nodes):
            reached.add(node)
    return reached


def merge_equal(graph: fx.Graph, differentiated: set[fx.Node]) -> None:
    """Equal calls become one. Not where gradients flow, views aside: two gradients through an infinite slope may be
    infinite and NaN, where their sum is finite."""
    known: dict[tuple[Any, ...], fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or (node in differentiated and not _is_view(node)):
            continue
        first = known.setdefault((node.target, str(node.args), str(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _is_view(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return node.target is operator.getitem
    return not mutates(node) and any(result.alias_info is not None for result in schema_of(node.target).returns)


def simplify(graph: fx.Graph) -> None:
    """Views of views become one view, and none where the shape comes back; slices of everything disappear."""
    for node in list(graph.nodes):
        if node.target in (aten.view.default, aten._unsafe_view.default):
            source = node.args[0]
            while source.target in (aten.view.default, aten._unsafe_view.default):
                source = source.args[0]
            if _same_sizes(source, node):
                node.replace_all_uses_with(source)
            else:
                node.update_arg(0, source)
        elif node.target is aten.copy.default:
            node.replace_all_uses_with(_copied(graph, node))
        elif node.target is aten.slice.Tensor and _same_sizes(node, node.args[0]):
            node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()


def _copied(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """``aten.copy``, which has no derivative, in other words: a cast, and a product with ones where it broadcasts
    (torch before 2.12 copies the zero in ``x[:, 3] = 0``)."""
    value = node.meta["val"]
    target: Any = node.args[0]
    source: Any = node.args[1]
    with graph.inserting_before(node):
        cast = graph.call_function(aten._to_copy.default, (source,), {"dtype": value.dtype})
        cast.meta["val"] = source.meta["val"].to(value.dtype)
        if _same_sizes(source, node):
            return cast
        ones = graph.call_function(aten.full_like.default, (target, 1), {"pin_memory": False})
        whole = graph.call_function(aten.mul.Tensor, (ones, cast))
    ones.meta["val"] = whole.meta["val"] = value
    return whole


def _same_sizes(one: fx.Node, other: fx.Node) -> bool:
    return size_expressions(one.meta["val"]) == size_expressions(other.meta["val"])


def mutates(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and schema_of(node.target).is_mutable
