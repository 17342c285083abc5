"""Finds what a captured graph computes again though it is known: constants on every call, the same result at two
places.

Deliberately not here: which constants a rewrite may read (``EditableGraph.constant``).
"""

from __future__ import annotations

from torch import Tensor
from torch.fx import Node

from togi.graph.edit import EditableGraph, call_name, pure

LARGEST_BYTES = 16 << 20
"""A folded constant is kept as long as the model: a larger one only where it is made of one as large."""


def merge_duplicates(graph: EditableGraph) -> int:
    """Calls of one operator with the same arguments become one. Returns how many calls went.

    Left alone: what is written in place, and what is returned, since two outputs would become one object.
    """
    memory, output = graph.memory, graph.output.all_input_nodes  # stays true: nobody writes what is merged
    first: dict[tuple[object, str, str], Node] = {}
    merged = 0
    for node in graph.nodes:
        if node.op != "get_attr" and not (call_name(node) and pure(node)):
            continue
        if any(memory.writers(value) for value in (node, *node.all_input_nodes)):
            continue
        # as text: 1, 1.0 and True are equal, yet choose other dtypes
        earlier = first.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
        if earlier is not node and not any(memory.share(node, value) for value in output):
            merged += node.op != "get_attr"
            graph.replace(node, earlier)
    return merged


def fold_constants(graph: EditableGraph) -> int:
    """Calls whose result no input can change become that result, computed now. Returns how many calls went.

    A view of a constant stays a view (it costs nothing), and what is returned is made anew for each caller.
    """
    memory, output = graph.memory, graph.output.all_input_nodes  # as above
    returned = {node for node in graph.nodes if any(memory.share(node, value) for value in output)}
    folded = 0
    for node in reversed(graph.nodes):
        constant = graph.constant(node) if node.op == "call_function" and pure(node) else None
        if constant is None or (node.users and (node in returned or not _worth_keeping(graph, node, constant))):
            continue
        if node.users:
            graph.replace(node, graph.insert_constant(constant, f"{node.name}_folded", node))
        else:  # what it was needed for has been folded
            graph.erase(node)
        folded += 1
    return folded


def _worth_keeping(graph: EditableGraph, node: Node, constant: Tensor) -> bool:
    sources = [tensor for source in node.all_input_nodes if (tensor := graph.constant(source)) is not None]
    if any(_same_memory(constant, source) for source in sources):
        return False
    return constant.nbytes <= max([LARGEST_BYTES, *(source.nbytes for source in sources)])


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and one.numel() > 0
