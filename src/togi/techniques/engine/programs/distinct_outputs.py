"""OpenVINO's converter names a tensor by its first use, and refuses a graph that returns one tensor twice."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_aten = torch.ops.aten
_SAME_VALUES = frozenset(
    {_aten.clone.default, _aten.dropout.default, _aten.alias.default, _aten.detach.default, _aten.contiguous.default}
)
"""What the converter drops at inference, so that input and output are one tensor to it."""


def distinct_outputs(program: ExportedProgram) -> tuple[ExportedProgram, list[int]]:
    """The program returning every tensor once, and for each former output its position among the new ones."""
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    sources = [_source(node) for node in output.args[0]]
    distinct = list(dict.fromkeys(sources))
    if len(distinct) == len(sources):
        return program, list(range(len(sources)))
    keep = [sources.index(node) for node in distinct]
    return _keeping(program, keep), [distinct.index(node) for node in sources]


def _source(node: Any) -> Any:
    while isinstance(node, torch.fx.Node) and node.target in _SAME_VALUES:
        node = node.args[0]
    return node


def _keeping(program: ExportedProgram, keep: list[int]) -> ExportedProgram:
    """A copy of the graph with some of its outputs; weights are shared."""
    graph_module = copy.copy(program.graph_module)
    graph = copy.deepcopy(program.graph)
    (output,) = [node for node in graph.nodes if node.op == "output"]
    output.args = (tuple(output.args[0][i] for i in keep),)
    graph_module = torch.fx.GraphModule(graph_module, graph)
    signature = copy.copy(program.graph_signature)
    signature.output_specs = [signature.output_specs[i] for i in keep]
    return torch.export.ExportedProgram(
        root=graph_module,
        graph=graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=_call_graph(program, len(keep)),
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _call_graph(program: ExportedProgram, count: int) -> Any:
    """The outermost entry describes the outputs."""
    entries = copy.copy(program.module_call_graph)
    first = copy.copy(entries[0])
    first.signature = copy.copy(first.signature)
    first.signature.out_spec = torch.utils._pytree.tree_structure(tuple(range(count)))
    first.signature.outputs = first.signature.outputs[:count]
    return [first, *entries[1:]]
