"""A candidate in the form that ``torch.jit.trace`` follows."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from togi.graph.capture import capture, captured_graph
from togi.graph.settled import is_size
from togi.subject.state import WithState
from togi.torch_internals.operators import OpOverload
from togi.torch_internals.script import holds_torchscript

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate


def traceable(candidate: Candidate) -> nn.Module:
    """Flat tensors in, flat tensors out, for ``torch.jit.trace``: a captured graph asks for sizes by a method and hands
    them to torch's own functions. These a trace follows; it takes what an operator answers, and the sizes that it is
    given, for constants. Weights are shared with the candidate."""
    captured = captured_graph(candidate.module)
    if captured is None and _holds_state_of_torchscript(candidate.module):
        captured = capture(candidate)  # a trace would hold the state as it is
    if captured is None:
        return candidate.flat()
    graph = copy.deepcopy(captured.graph)
    for node in graph.nodes:
        if str(node.target) == "aten._assert_scalar.default":
            graph.erase_node(node)  # a trace would hand it a tensor
        elif node.target is torch.ops.aten.sym_size.int:
            node.op, node.target = "call_method", "size"
        elif isinstance(node.target, OpOverload) and any(map(is_size, node.all_input_nodes)):
            node.target = _torchs_own(node.target)
    return fx.GraphModule(captured, graph)


def _holds_state_of_torchscript(module: nn.Module) -> bool:
    return any(isinstance(part, WithState) and holds_torchscript(part) for part in module.modules())


def _torchs_own(operator: OpOverload) -> Callable[..., Any]:
    """The function or the method of that name, which takes what a trace has in place of a number."""
    if operator is torch.ops.aten.slice.Tensor:
        return _sliced
    name = operator.overloadpacket.__name__
    function: Callable[..., Any] = getattr(torch, name, getattr(Tensor, name, operator))
    return function


def _sliced(tensor: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    if isinstance(end, int) and end == sys.maxsize:
        end = None
    places: list[Any] = [slice(None)] * tensor.dim()
    places[dim] = slice(start, end, step)
    return tensor[tuple(places)]
