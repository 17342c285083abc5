"""Follows channels through a captured graph, so that a layer's channels can be padded with zeros without changing any
output.

A layer's new output channels are zero; pointwise calls, batch norms, pools and depthwise convolutions carry them along
(as finite numbers), sums and products take both operands with them, concatenations move them; the next dense layer has
zeros for them in its weight. A *group* is everything that must be padded together. If a call in it mixes channels in a
way that is not known here, or the channels leave the graph, the group is not padded. Known are calls that treat
channels separately and give finite numbers for channels of zeros (``carried_to``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from togi.graph.carried_channels import ARITHMETIC, carried_to
from togi.graph.edit import EditableGraph, arguments, call_name, set_arguments, shape
from togi.graph.linear import CONVOLUTIONS, TRANSPOSED

GROWTH_AT_MOST = 1.5
"""A layer of 3 channels is not padded to 16: the zeros would cost more than the layer."""


@dataclass(frozen=True)
class ChannelLayer:
    """A convolution or linear layer whose weights are constant, as they are stored."""

    node: Node
    source: Any
    weight: Tensor
    groups: int
    transposed: bool

    @property
    def dense(self) -> bool:
        return self.groups == 1

    @property
    def depthwise(self) -> bool:
        """Each input channel has output channels of its own."""
        return self.weight.shape[0 if self.transposed else 1] == (self.groups if self.transposed else 1)

    @property
    def channel_dim(self) -> int:
        """The channel dimension of input and output: the last of a linear layer, else the one before the spatial
        ones."""
        return len(shape(self.node)) - 1 - (self.weight.dim() - 2)

    @property
    def out_axis(self) -> int:
        return 1 if self.transposed else 0


def layer(graph: EditableGraph, node: Any) -> ChannelLayer | None:
    name = call_name(node)
    if name != "linear.default" and name not in CONVOLUTIONS and name not in TRANSPOSED:
        return None
    given = arguments(node)
    weight, bias = graph.constant(given["weight"]), graph.constant(given["bias"])
    if weight is None or weight.dim() < 2 or (bias is None and given["bias"] is not None):
        return None
    found = ChannelLayer(node, given["input"], weight, given.get("groups", 1), name in TRANSPOSED)
    outputs = weight.shape[found.out_axis] * (found.groups if found.transposed else 1)
    return found if bias is None or bias.shape == (outputs,) else None  # one that is broadcast is none of channels


@dataclass(frozen=True)
class Layout:
    """Places of the original channels among ``size`` channels; the others are padding."""

    size: int
    places: tuple[int, ...]

    @classmethod
    def padded(cls, channels: int, multiple: int) -> Layout:
        target = -(-channels // multiple) * multiple
        return cls(target if target <= GROWTH_AT_MOST * channels else channels, tuple(range(channels)))

    @property
    def changes(self) -> bool:
        return self.size != len(self.places)

    def repeated(self, times: int) -> Layout:
        """Every channel becomes ``times`` channels in a row."""
        return Layout(self.size * times, tuple(place * times + i for place in self.places for i in range(times)))

    @classmethod
    def joined(cls, parts: list[Layout]) -> Layout:
        places: list[int] = []
        start = 0
        for part in parts:
            places += [start + place for place in part.places]
            start += part.size
        return cls(start, tuple(places))

    def pad(self, tensor: Tensor, axis: int, fill: float = 0.0) -> Tensor:
        sizes = list(tensor.shape)
        sizes[axis] = self.size
        padded = tensor.new_full(sizes, fill)
        padded.index_copy_(axis, torch.tensor(self.places, device=tensor.device), tensor)
        return padded


@dataclass
class ChannelGroup:
    """Values that are padded together."""

    dims: dict[Node, int] = field(default_factory=dict)
    """Padded values and the dimension of their channels."""
    consumers: dict[Node, Node] = field(default_factory=dict)
    """Dense layers that take a padded value: layer -> value."""
    layouts: dict[Node, Layout] = field(default_factory=dict)


def group_of(graph: EditableGraph, producer: Node, multiple: int) -> ChannelGroup | None:
    """The group of a dense layer's output, or None where it cannot be padded or its own channels would not change: a
    group in which others' change is found from these."""
    first = layer(graph, producer)
    if first is None or not first.dense or not _own_layout(first, multiple).changes:
        return None
    group, waiting = ChannelGroup(), [(producer, first.channel_dim)]
    while waiting:
        node, dim = waiting.pop()
        if group.dims.setdefault(node, dim) != dim:
            return None
        neighbours = _neighbours(graph, group, node, dim)
        if neighbours is None:
            return None
        waiting += [(other, d) for other, d in neighbours if group.dims.get(other) != d]
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    for node in sorted(group.dims, key=order.__getitem__):
        layout = _layout(graph, group, node, multiple)
        if layout is None:
            return None
        group.layouts[node] = layout
    return group


def _neighbours(graph: EditableGraph, group: ChannelGroup, node: Node, dim: int) -> list[tuple[Node, int]] | None:
    """The nodes that must be padded if ``node`` is: those it is made from, and those made from it."""
    neighbours = _origins(graph, node, dim)
    if neighbours is None:
        return None
    for user in node.users:
        if call_name(user) == "sym_size.int" and user.args[1] != dim:
            continue
        taker = layer(graph, user)
        if taker is not None and taker.dense and taker.source is node and _reads_once(user, node):
            if taker.channel_dim != dim:
                return None
            group.consumers[user] = node
            continue
        out = _carried(graph, user, node, dim)
        if out is None:
            return None
        neighbours.append((user, out))
    return neighbours


def _reads_once(user: Node, node: Node) -> bool:
    items = (item for arg in user.args for item in (arg if isinstance(arg, list | tuple) else (arg,)))
    return sum(item is node for item in items) == 1


def _carried(graph: EditableGraph, user: Node, node: Node, dim: int) -> int | None:
    """The dimension in which ``user`` carries the channels of its argument ``node``, or None where it does not."""
    taker = layer(graph, user)
    if taker is not None:
        whole = type(shape(user)[taker.channel_dim]) is int
        own = taker.depthwise and not taker.dense and taker.source is node
        return dim if own and whole and dim == taker.channel_dim else None
    return carried_to(graph, user, node, dim)


def _origins(graph: EditableGraph, node: Node, dim: int) -> list[tuple[Node, int]] | None:
    """The arguments through which the channels came, with their dimension; none for a dense layer."""
    producer = layer(graph, node)
    if producer is not None and producer.dense:
        return [] if dim == producer.channel_dim else None
    if call_name(node) == "cat.default" and arguments(node)["dim"] % len(shape(node)) == dim:
        return []  # parts that are not padded keep their channels
    sources = [source for source in node.all_input_nodes if shape(source) and graph.constant(source) is None]
    origins = []
    for source in sources:
        dims = [d for d in range(len(shape(source))) if _carried(graph, node, source, d) == dim]
        if len(dims) == 1:
            origins.append((source, dims[0]))
        elif not _broadcast(node, source, dim):
            return None
    return origins or None


def _broadcast(node: Node, source: Node, dim: int) -> bool:
    """The argument is the same for all channels."""
    at = dim - len(shape(node)) + len(shape(source))
    return call_name(node) in ARITHMETIC and (at < 0 or str(shape(source)[at]) == "1")


def _layout(graph: EditableGraph, group: ChannelGroup, node: Node, multiple: int) -> Layout | None:
    producer, dim = layer(graph, node), group.dims[node]
    if producer is not None and producer.dense:
        return _own_layout(producer, multiple)
    if call_name(node) == "cat.default" and arguments(node)["dim"] % len(shape(node)) == dim:
        parts = [group.layouts.get(part) or _unpadded(part, dim) for part in arguments(node)["tensors"]]
        return None if None in parts else Layout.joined([part for part in parts if part is not None])
    carried = {group.layouts[source] for source in node.all_input_nodes if source in group.layouts}
    if len(carried) != 1:
        return None  # operands whose channels lie differently cannot be added
    (layout,) = carried
    times, rest = divmod(int(shape(node)[dim]), len(layout.places))
    return layout.repeated(times) if not rest else None


def _own_layout(dense: ChannelLayer, multiple: int) -> Layout:
    return Layout.padded(int(dense.weight.shape[dense.out_axis]), multiple)


def _unpadded(node: Node, dim: int) -> Layout | None:
    size = shape(node)[dim]
    return Layout(size, tuple(range(size))) if type(size) is int else None


def pad_group(graph: EditableGraph, group: ChannelGroup) -> None:
    """Give every layer of the group its padded weights, and every value its new shape."""
    for node in group.dims:
        _pad_node(graph, group, node)
    for taker, value in group.consumers.items():
        dense = layer(graph, taker)
        assert dense is not None
        _set(graph, taker, weight=group.layouts[value].pad(dense.weight, 1 - dense.out_axis))
    graph.propagate(group.layouts)


def _pad_node(graph: EditableGraph, group: ChannelGroup, node: Node) -> None:
    layout, producer, name = group.layouts[node], layer(graph, node), call_name(node)
    if producer is not None:
        bias = graph.constant(arguments(node)["bias"])
        axis = producer.out_axis if producer.dense else 0
        if producer.transposed and not producer.dense:
            (source,) = (s for s in node.all_input_nodes if s in group.layouts)
            weight = group.layouts[source].pad(producer.weight, 0)
        else:
            weight = layout.pad(producer.weight, axis)
        _set(graph, node, weight=weight, **({} if bias is None else {"bias": layout.pad(bias, 0)}))
        if not producer.dense:
            per_channel = int(shape(node)[group.dims[node]]) // producer.groups
            set_arguments(node, {**arguments(node), "groups": layout.size // per_channel})
    elif name == "batch_norm.default":
        fills = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
        held = {key: graph.constant(arguments(node)[key]) for key in fills}
        _set(graph, node, **{key: layout.pad(t, 0, fills[key]) for key, t in held.items() if t is not None})
    elif name in ARITHMETIC:
        _pad_operand(graph, node, layout, group.dims[node])
    elif name == "reshape.default":
        sizes = list(arguments(node)["shape"])
        sizes[group.dims[node]] = layout.size
        set_arguments(node, {**arguments(node), "shape": sizes})


def _pad_operand(graph: EditableGraph, node: Node, layout: Layout, dim: int) -> None:
    """A constant operand with one value per channel gets zeros for the new ones."""
    for key in ("self", "other"):
        constant = graph.constant(arguments(node)[key])
        axis = dim - len(shape(node)) + (constant.dim() if constant is not None else 0)
        if constant is not None and axis >= 0 and constant.shape[axis] != 1:
            _set(graph, node, **{key: layout.pad(constant, axis)})


def _set(graph: EditableGraph, node: Node, **tensors: Tensor) -> None:
    given = arguments(node)
    for key, tensor in tensors.items():
        given[key] = graph.insert_constant(tensor, f"{node.name}_{key}", node)
    set_arguments(node, given)
