"""An exported graph in a form that engines convert: settled sizes, plain calls."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from togi.torch_internals.sizes import only_value


def settle_sizes(graph: fx.Graph) -> None:
    """Numbers for sizes that can have one value only, and no slices that cut nothing off: what a window hides of a
    cache that is shorter. Engines know few operations on sizes, and not that these bounds hold."""
    for node in graph.nodes:
        if node.op == "call_function" and is_size(node) and (only := only_value(node.meta["val"])) is not None:
            for user in list(node.users):
                user.replace_input_with(node, only)
            graph.erase_node(node)
        elif node.target is torch.ops.aten.slice.Tensor and _is_whole(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _is_whole(node: fx.Node) -> bool:
    """A slice of all that it is given: compared by the names of sizes, since asking for equality would set a guard."""
    of, _, _, _, step = (*node.args, *(None,) * 4)[:5]
    whole = isinstance(of, fx.Node) and str(of.meta["val"].shape) == str(node.meta["val"].shape)
    return whole and step in (None, 1) and not node.kwargs


def put_plainly(graph_module: fx.GraphModule) -> None:
    """Also with zeros where values are left open, in a layout that engines do not know (``empty_permuted``), and
    without what ``torch.cat`` passes over and engines do not: tensors of shape (0,), whatever the rank of the
    others. So a cache begins."""
    aten = torch.ops.aten
    joined = [held.graph.find_nodes(op="call_function", target=aten.cat.default) for held in graphs_in(graph_module)]
    for node in itertools.chain.from_iterable(joined):
        shapes = [part.meta["val"].shape for part in node.args[0]]
        if any(len(shape) != 1 for shape in shapes):
            parts = [part for part, shape in zip(node.args[0], shapes, strict=True) if not _is_legacy_empty(shape)]
            node.args = (parts, *node.args[1:])
    plain = {
        aten.view.default: aten.reshape.default,
        aten._unsafe_view.default: aten.reshape.default,
        aten.detach_.default: aten.detach.default,
        aten.empty_like.default: aten.zeros_like.default,
    }
    retarget(graph_module, plain)


def retarget(graph_module: fx.GraphModule, operators: Mapping[Any, Any]) -> None:
    """Other operators for these, also in the graphs inside."""
    for held in graphs_in(graph_module):
        for node in held.graph.nodes:
            if node.op == "call_function":
                node.target = operators.get(node.target, node.target)
        held.recompile()


def graphs_in(graph_module: fx.GraphModule) -> list[fx.GraphModule]:
    """It, and those that it holds: the body of ``with torch.autocast(...)`` is a graph of its own."""
    return [held for held in graph_module.modules() if isinstance(held, fx.GraphModule)]


def _is_legacy_empty(shape: torch.Size) -> bool:
    """Compares no size that values decide, which would be a branch that the graph cannot take."""
    return len(shape) == 1 and isinstance(shape[0], int) and shape[0] == 0


def is_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)
