"""Memory sharing and in-place writes among the values of a captured graph.

The graph keeps PyTorch's in-place operations and views, so an edit is safe only where no write comes between. Answers
are conservative: sharing is assumed where it cannot be excluded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import fx
from torch.fx import Node

from togi.torch_internals.operators import HigherOrderOperator, OpOverload, is_composite, schema_of

FRESH = frozenset(
    (
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution linear batch_norm "
        "layer_norm group_norm instance_norm matmul relu6 selu softmax log_softmax max_pool1d max_pool2d "
        "max_pool3d avg_pool1d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
        "scaled_dot_product_attention embedding silu mish cat stack lstm gru rnn_tanh rnn_relu "
        "upsample_nearest2d upsample_bilinear2d interpolate"
    ).split()
)
"""Composite operations whose result never shares memory with an input. Their schemas do not say so."""


class MemorySharing:
    """Built once per graph state; an edit makes it stale.

    Args:
        graph: a captured graph (ATen calls).
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.roots: dict[Node, frozenset[Node]] = {}
        self._writers: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            self.roots[node] = self._roots_of(node)
            for target in _written_arguments(node):
                for root in self.roots[target]:
                    self._writers.setdefault(root, []).append(node)

    def share(self, one: Node, other: Node) -> bool:
        return bool(self.roots[one] & self.roots[other])

    def writers(self, node: Node) -> list[Node]:
        """Calls that write in place what ``node`` holds."""
        return [writer for root in self.roots[node] for writer in self._writers.get(root, ())]

    def written_between(self, node: Node, first: Node, last: Node) -> bool:
        """True if ``node``'s memory is written after ``first`` and before ``last`` run (both excluded)."""
        begin, end = self.position[first], self.position[last]
        return any(begin < self.position[writer] < end for writer in self.writers(node))

    def written_attributes(self) -> list[Node]:
        """The ``get_attr`` nodes (buffers) that the forward pass writes."""
        return [root for root in self._writers if root.op == "get_attr"]

    def written_inputs(self) -> list[Node]:
        """The placeholders whose memory the forward pass writes."""
        return [root for root in self._writers if root.op == "placeholder"]

    def fresh(self, node: Node) -> bool:
        """The call made new memory: it shares nothing with inputs, buffers or earlier values."""
        return node.op == "call_function" and self.roots[node] == {node}

    def private(self, node: object) -> bool:
        """Only the one user of ``node`` can see its memory: a write into it by that user needs no other excuse."""
        if not isinstance(node, Node) or len(node.users) != 1 or node.op != "call_function":
            return False
        written = list(_written_arguments(node))
        return self.private(written[0]) if len(written) == 1 else self.fresh(node) and not written

    def written_by(self, node: Node) -> list[Node]:
        """The arguments that a call writes in place."""
        return list(_written_arguments(node))

    def _roots_of(self, node: Node) -> frozenset[Node]:
        if node.op in ("placeholder", "get_attr"):
            return frozenset({node})
        sources = list(_aliased_arguments(node))
        return frozenset().union(*(self.roots[source] for source in sources)) if sources else frozenset({node})


def _aliased_arguments(node: Node) -> Iterable[Node]:
    target = node.target
    if not isinstance(target, OpOverload):
        return node.all_input_nodes  # getitem, higher-order calls, arithmetic on sizes
    if any(result.alias_info is not None for result in schema_of(target).returns):
        return [n for argument, n in _schema_arguments(node) if argument.alias_info is not None]
    is_fresh = schema_of(target).name.split("::")[-1] in FRESH
    return node.all_input_nodes if is_composite(target) and not is_fresh else ()


def _written_arguments(node: Node) -> Iterable[Node]:
    if node.op != "call_function":
        return ()
    if isinstance(node.target, HigherOrderOperator):
        return node.all_input_nodes
    if not isinstance(node.target, OpOverload) or not schema_of(node.target).is_mutable:
        return ()
    return [n for argument, n in _schema_arguments(node) if argument.alias_info and argument.alias_info.is_write]


def _schema_arguments(node: Node) -> Iterator[tuple[Any, Node]]:
    """``(schema argument, node)`` for every node among the arguments, also inside lists."""
    for index, argument in enumerate(schema_of(node.target).arguments):
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, Node):
                yield argument, item
