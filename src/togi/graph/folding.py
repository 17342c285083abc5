"""Folds scale and shift per channel into the linear call before or after."""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Node

from togi.graph.edit import EditableGraph, arguments, held_as, in_place, same_form, set_arguments, shape
from togi.graph.linear import absorbed, affine, linear, set_weights


def fold_into_previous(graph: EditableGraph, node: Node) -> bool:
    """Fold the affine call ``node`` into the linear call whose only user it is. Whether it was possible."""
    after = affine(graph, node)
    before = linear(graph, after.source) if after else None
    if after is None or before is None or set(before.node.users) != {node} or not same_form(before.node, _result(node)):
        return False
    folded = absorbed(before, after)
    key = ("previous", *_weights_key(before.node, before.source, node, after.source))
    if folded is None or not set_weights(graph, before, folded, key):
        return False
    _replace(graph, node, before.node)
    return True


def fold_into_next(graph: EditableGraph, node: Node) -> bool:
    """Fold the affine call ``node`` into the unpadded linear call that is its only user. Whether it was possible."""
    result = _result(node)
    before = affine(graph, node)
    after = linear(graph, next(iter(result.users))) if before is not None and len(result.users) == 1 else None
    if before is None or after is None or after.source is not result or after.transposed or any(after.padding):
        return False
    channels = 1 if after.spatial else len(shape(result)) - 1
    moved = graph.memory.written_between(before.source, node, after.node)
    if before.dim not in (None, channels) or moved or not same_form(before.source, result) or in_place(node):
        return False
    size = after.weight.shape[1] * after.groups
    scale, shift = (t.to(after.weight.device).expand(size) for t in (before.scale, before.shift))
    key = ("next", *_weights_key(after.node, after.source, node, before.source))
    if not set_weights(graph, after, after.preceded(scale, shift), key):
        return False
    set_arguments(after.node, {**arguments(after.node), "input": before.source})
    return True


def _result(node: Node) -> Node:
    """The tensor: decomposed batch norms return a tuple, of which only the first item may be used."""
    users = list(node.users)
    first = len(users) == 1 and users[0].target is operator.getitem and users[0].args[1] == 0
    return users[0] if first else node


def _replace(graph: EditableGraph, node: Node, other: Node) -> None:
    result = _result(node)
    if result is not node:
        graph.replace(result, other)
        graph.erase(node)
    else:
        graph.replace(node, other)


def _weights_key(layer: Node, layer_source: Any, change: Node, change_source: Any) -> tuple[Any, ...]:
    """The same for another call of the same layers, so that a shared block stays shared."""
    return str(change.target), *_held(layer, layer_source), *_held(change, change_source)


def _held(call: Node, source: Any) -> list[Any]:
    """The call's arguments without the tensor that comes through."""
    given = list(arguments(call).values())
    given.remove(source)
    return [held_as(arg) if isinstance(arg, Node) else str(arg) for arg in given]
