"""Recurrent layers of a captured graph as one operator each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

import togi.ops.recurrence  # noqa: F401 - it registers the operator
from togi.graph.edit import EditableGraph, arguments, held_as, is_call, value
from togi.ops.kernels.recurrence import GATES, pack

aten = torch.ops.aten
_KINDS = {f"{kind}.input": kind for kind in GATES}
_RECURRENCE = torch.ops.togi.recurrence.default


def make_persistent(graph: EditableGraph) -> int:
    """Each recurrent layer in float32 on the CPU, with constant weights and without projections. Returns how many."""
    return sum(_replace(graph, node) for node in graph.nodes if is_call(node, *_KINDS))


class _Tensors(NamedTuple):
    """The tensors of one direction of a layer."""

    input_weight: Tensor
    state_weight: Tensor
    input_bias: Tensor | None = None
    state_bias: Tensor | None = None


def _replace(graph: EditableGraph, node: Node) -> bool:
    given, kind = arguments(node), _KINDS[str(node.target).removeprefix("aten.")]
    layers, states = _layers(given), list(given["hx"]) if kind == "lstm" else [given["hx"]]
    whole = len(layers) == given["num_layers"]  # with projections there are more tensors
    if given["train"] or not whole or not all(_is_constant(graph, parameter) for parameter in given["params"]):
        return False
    if not all(user.target is operator.getitem for user in node.users) or not _in_float32(given["input"]):
        return False
    last: list[list[Node]] = [[] for _ in states]
    outputs = given["input"]
    for number, layer in enumerate(layers):
        own = [_of_layer(graph, state, number, layer, len(layers), node) for state in states]
        constants = {name: _constant(graph, kind, name, layer, node) for name in _CONSTANTS}
        hidden, cell = (*own, None)[:2]
        call = {"inputs": outputs, "hidden": hidden, "cell": cell, "kind": kind, "batch_first": given["batch_first"]}
        results_of_layer = graph.call_with(_RECURRENCE, call | constants, node)
        outputs, *ends = (_item(graph, results_of_layer, i, node) for i in range(1 + len(states)))
        for last_of_state, end in zip(last, ends, strict=True):
            last_of_state.append(end)
    results = [outputs, *(_joined(graph, last_of_state, node) for last_of_state in last)]
    for user in list(node.users):
        graph.replace(user, results[user.args[1]])  # type: ignore[index]
    graph.erase(node)
    return True


def _is_constant(graph: EditableGraph, node: Any) -> bool:
    constant = graph.constant(node)
    return constant is not None and constant.dtype == torch.float32 and constant.device.type == "cpu"


def _in_float32(node: Any) -> bool:
    form = value(node)
    return form is not None and form.dtype == torch.float32 and form.dim() == 3


def _layers(given: dict[str, Any]) -> list[list[list[Node]]]:
    """The weights of each layer and direction and, where it has some, its biases."""
    per_cell, directions = 4 if given["has_biases"] else 2, 2 if given["bidirectional"] else 1
    params = list(given["params"])
    cells = [params[i : i + per_cell] for i in range(0, len(params), per_cell)]
    return [cells[i : i + directions] for i in range(0, len(cells), directions)]


def _bias(kind: str, layer: Sequence[_Tensors]) -> Tensor:
    """The bias as ``ops.kernels.recurrence.Layer`` has it."""
    biases = []
    for cell in layer:
        gates, units = GATES[kind], len(cell.state_weight) // GATES[kind]
        bias = cell.state_weight.new_zeros(gates + 1, units)
        if cell.input_bias is not None and cell.state_bias is not None:
            of_state = cell.state_bias.reshape(gates, units).clone()
            if kind == "gru":  # it resets what its state gives to the new one, this bias included
                bias[gates] = of_state[gates - 1]
                of_state[gates - 1] = 0
            bias[:gates] = cell.input_bias.reshape(gates, units) + of_state
        biases.append(bias)
    return torch.stack(biases)


_CONSTANTS: dict[str, Callable[[str, Sequence[_Tensors]], Tensor]] = {
    "input_weights": lambda kind, layer: pack(kind, [cell.input_weight for cell in layer]),
    "state_weights": lambda kind, layer: pack(kind, [cell.state_weight for cell in layer]),
    "bias": _bias,
}
"""Arguments of the operator."""


def _constant(graph: EditableGraph, kind: str, name: str, layer: list[list[Node]], before: Node) -> Node:
    """One for all calls of a layer."""
    key = ("persistent", name, *(held_as(node) for cell in layer for node in cell))
    tensors = [_Tensors(*map(graph.constant, cell)) for cell in layer]  # type: ignore[arg-type] # they are constant
    return graph.shared_constant(key, lambda: _CONSTANTS[name](kind, tensors), f"{kind}_{name}", before)


def _of_layer(
    graph: EditableGraph, state: Node, number: int, layer: list[list[Node]], layers: int, before: Node
) -> Node:
    """Its first state, of ``state`` of all layers."""
    if layers == 1:
        return state
    start = number * len(layer)
    return graph.call_with(
        aten.slice.Tensor, {"self": state, "dim": 0, "start": start, "end": start + len(layer)}, before
    )


def _item(graph: EditableGraph, results: Node, number: int, before: Node) -> Node:
    node = graph.call(operator.getitem, (results, number), before)
    graph.propagate([node])
    return node


def _joined(graph: EditableGraph, parts: Sequence[Node], before: Node) -> Node:
    if len(parts) == 1:
        return parts[0]
    return graph.call_with(aten.cat.default, {"tensors": list(parts), "dim": 0}, before)
