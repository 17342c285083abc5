"""A candidate in OpenVINO's form: converted from the captured graph, or from a trace."""

from __future__ import annotations

import copy
import importlib
from typing import TYPE_CHECKING, Any

import torch

from togi.core.errors import Refused
from togi.core.quantities import last_line
from togi.graph.attention import answer_hidden_queries
from togi.graph.candidate import Candidate
from togi.graph.capture import GraphModule, capture, captured_graph, export
from togi.graph.recurrent import recurrent_layers
from togi.graph.traceable import traceable
from togi.measure.memory import is_out_of_memory
from togi.subject.signature import Signature
from togi.techniques.engine.programs.openvino_library import openvino
from togi.techniques.engine.programs.torchscript import holding_no_values, quiet
from togi.torch_internals.archive import without_traces
from togi.torch_internals.tensors import tree_structure

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_BOUND = {"float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"}
"""Types that OpenVINO and numpy share."""


def convert(candidate: Candidate) -> tuple[Any, list[int], list[str]]:
    """``(model, order, notes)``: ``order`` says which output of the model is which output of the signature. Passes of
    the candidate are applied.

    From the exported graph; where OpenVINO cannot read that, from a trace of the module. From a trace as well where
    there are recurrent layers: in an exported graph OpenVINO takes them apart into steps, of a fixed number.
    """
    signature, notes = candidate.signature, list[str]()
    count = len(signature.outputs_facts)
    dtypes = {t.dtype for t in (*signature.inputs_facts, *signature.outputs_facts)}
    if "float64" in dtypes:
        raise Refused(
            "an input or output is float64, which OpenVINO computes in float32 on a CPU (openvino issues 35822, 37968)"
        )
    strange = dtypes - _BOUND
    if strange:
        raise Refused(f"inputs and outputs are bound through numpy, which does not share {', '.join(sorted(strange))}")
    try:
        exported = export(candidate)
        if recurrent_layers(exported.graph_module):
            model, order = _convert_recurrent(candidate), list(range(count))
        else:
            answer_hidden_queries(exported.graph_module)
            program, order = distinct_outputs(without_traces(exported))
            model = openvino().convert_model(program)
    except Exception as error:  # the converter raises many types; Refused means that it cannot be exported
        notes.append(f"converted from a trace, since the exported graph was refused: {last_line(error)}")
        model, order = _convert_trace(candidate), list(range(count))
    if len(model.outputs) != max(order, default=-1) + 1:
        raise Refused(f"the converted model has {len(model.outputs)} outputs, {count} were expected")
    _name_and_shape(model, signature)
    for transform in candidate.passes.get("openvino", ()):
        model = transform(model, candidate)
    return model, order, notes


def _convert_recurrent(candidate: Candidate) -> Any:
    """From a trace of the module, or where it computes with numbers that it keeps in tensors, which a trace does not
    follow, of its captured graph. Raises Refused where OpenVINO can read neither."""
    try:
        return _convert_trace(candidate)
    except Refused:
        if captured_graph(candidate.module) is not None:
            raise
        return _convert_trace(candidate.with_(module=GraphModule(capture(candidate), candidate.signature)))


def _convert_trace(candidate: Candidate) -> Any:
    """Raises Refused where OpenVINO cannot read the trace either."""
    module, inputs = traceable(candidate.with_(module=candidate.copy())), tuple(candidate.flat_samples()[0])
    try:
        with torch.no_grad(), quiet() as caught:
            convert = openvino().convert_model  # the import that sends nothing comes first
            decoder = importlib.import_module("openvino.frontend.pytorch.ts_decoder")
            with holding_no_values(candidate, module, caught):
                traced = decoder.TorchScriptPythonDecoder(
                    module, example_input=inputs, trace_kwargs={"check_trace": False}
                )
            return convert(traced, example_input=inputs)
    except Refused:
        raise
    except Exception as error:  # the converter raises many types
        if is_out_of_memory(error):
            raise
        raise Refused(f"OpenVINO cannot convert a trace of it either: {last_line(error)}") from error


def _name_and_shape(model: Any, signature: Signature) -> None:
    """Inputs are known by position from here on; an input that nothing uses may be missing later. Outputs have names
    for those who run the file without togi."""
    if len(model.inputs) != len(signature.inputs_facts):
        raise Refused(f"the converted model has {len(model.inputs)} of {len(signature.inputs_facts)} inputs")
    shapes = {}
    for i, (port, facts) in enumerate(zip(model.inputs, signature.inputs_facts, strict=True)):
        port.set_names({f"input_{i}"})
        shapes[port] = openvino().PartialShape([-1 if size is None else size for size in facts.shape])
    for i, port in enumerate(model.outputs):
        returned = port.get_node().input_value(0).get_node().get_type_name() == "Parameter"  # an input, with its name
        port.set_names({f"output_{i}", *(port.get_names() if returned else ())})
    model.reshape(shapes)


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
    first.signature.out_spec = tree_structure(tuple(range(count)))
    first.signature.outputs = first.signature.outputs[:count]
    return [first, *entries[1:]]
