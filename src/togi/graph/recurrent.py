"""Recurrent layers as one operator of a captured graph, so that their length may vary.

torch.export takes ``lstm``, ``gru`` and ``rnn`` apart into one step after another, which fixes the length and makes a
graph that grows with it; the engines have an operator for the whole layer. So a layer is traced as an operator of
togi's own, which nothing takes apart; in the captured graph it is torch's (``aten.lstm.input`` and its like, with the
same arguments). Before something that traces the graph again, ``sealed`` makes it togi's once more.

Layers on packed sequences, in training, or with projections (which the engines have no operator for) are left to
torch.export.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from togi.graph.settled import graphs_in, retarget
from togi.torch_internals.modes import FunctionObserver

_CALLS: Mapping[Callable[..., Any], str] = {
    torch.lstm: "lstm",
    torch.gru: "gru",
    torch.rnn_tanh: "rnn_tanh",
    torch.rnn_relu: "rnn_relu",
}
_OPTIONS = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
)


def _define(kind: str, call: Callable[..., Any]) -> Any:
    """The operator ``togi::kind``, with the signature of torch's."""
    states = "Tensor[]" if kind == "lstm" else "Tensor"
    results = "Tensor, Tensor, Tensor" if kind == "lstm" else "Tensor, Tensor"
    schema = f"(Tensor input, {states} hx, {_OPTIONS}) -> ({results})"

    def computed(*args: Any) -> tuple[Tensor, ...]:
        return tuple(tensor.contiguous() for tensor in call(*args))  # as ``_shapes`` says

    torch.library.custom_op(f"togi::{kind}", computed, mutates_args=(), schema=schema).register_fake(_shapes)
    return getattr(torch.ops.togi, kind).default


def _shapes(input: Tensor, hx: Tensor | list[Tensor], *options: Any) -> tuple[Tensor, ...]:
    """Outputs without values: of every step (as many dimensions as the input), and the last states like the first."""
    states = [hx] if isinstance(hx, Tensor) else hx
    bidirectional = bool(options[-2])
    features = states[0].shape[-1] * (2 if bidirectional else 1)
    return input.new_empty((*input.shape[:-1], features)), *(torch.empty_like(state) for state in states)


SEALED = {kind: _define(kind, call) for call, kind in _CALLS.items()}
"""togi's operators, by kind of layer."""
_OF_TORCH = {kind: getattr(torch.ops.aten, kind).input for kind in SEALED}


class WholeRecurrentLayers(FunctionObserver):
    """While it is active, a recurrent layer is traced as one operator."""

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        kind = _CALLS.get(function)
        if kind is None or kwargs or not _whole(args):
            return function(*args, **kwargs)
        return SEALED[kind](*args)


def _whole(args: Sequence[Any]) -> bool:
    """True if these are arguments of a layer on padded sequences, in inference, without projections."""
    _, _, params, has_biases, num_layers, _, train, bidirectional, _ = args
    if isinstance(params, Tensor) or train:  # packed sequences are given with their sizes: everything is one later
        return False
    return bool(len(params) == num_layers * (2 if bidirectional else 1) * (4 if has_biases else 2))


def opened(graph_module: fx.GraphModule) -> None:
    """Its recurrent layers as torch's operators."""
    retarget(graph_module, {SEALED[kind]: _OF_TORCH[kind] for kind in SEALED})


def sealed(graph_module: fx.GraphModule, kinds: Collection[str]) -> None:
    """Its recurrent layers of these kinds (``lstm``, ``gru``, ``rnn_tanh``, ``rnn_relu``) as togi's operators."""
    retarget(graph_module, {_OF_TORCH[kind]: SEALED[kind] for kind in kinds})


def recurrent_layers(graph_module: fx.GraphModule) -> frozenset[str]:
    """Kinds of the layers that it holds as torch's operators, also in graphs inside."""
    kinds = {operator: kind for kind, operator in _OF_TORCH.items()}
    nodes = [node for held in graphs_in(graph_module) for node in held.graph.nodes]
    return frozenset(kinds[node.target] for node in nodes if node.target in kinds)
