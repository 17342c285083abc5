"""OpenVINO programs, and OpenVINO itself imported so that it sends nothing."""

from __future__ import annotations

import copy
import importlib
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from togi.core.callers import MOST_THREADS
from togi.core.errors import ArtifactError, Refused
from togi.core.quantities import last_line
from togi.core.records import Interface, Port, Scalar
from togi.graph.attention import answer_hidden_queries
from togi.graph.candidate import Candidate
from togi.graph.capture import export, traceable
from togi.graph.recurrent import recurrent_layers
from togi.measure.memory import is_out_of_memory
from togi.subject.signature import Signature
from togi.techniques.engine.programs.stored import HiddenFiles, StoredProgram, hidden_folder
from togi.techniques.engine.programs.torchscript import holding_no_values, quiet
from togi.torch_internals.archive import without_traces
from togi.torch_internals.tensors import tree_structure

if TYPE_CHECKING:
    from torch.export import ExportedProgram


FILE = "model.xml"
PRECISION_KEY = ["togi", "inference_precision"]
"""Where a precision technique writes ``bf16`` or ``f16`` into the model, so that it is stored with it."""

_BOUND = {"float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"}
"""Types that OpenVINO and numpy share."""


_COPIED_BYTES = 16 << 10
"""An output up to this size is copied, which takes a microsecond. A caller that keeps what it is given, call after
call, would otherwise need a request of its own for each, and a new one takes 30."""
_KEPT_REQUESTS = 2
"""For each calling thread. A loop that assigns its output anew holds the last one while the next is computed."""


def give(request: Any, feeds: dict[Any, Any]) -> None:
    """Arrays as a request's inputs, without a copy: half the time that ``infer`` takes to do it."""
    tensor = openvino().Tensor
    for port, array in feeds.items():
        request.set_tensor(port, tensor(array, shared_memory=True))


class Request:
    """An inference request, which lends its own memory for large outputs to callers: none of it is fresh, and nothing
    but small outputs is copied."""

    def __init__(self, compiled: Any) -> None:
        self._request = compiled.create_infer_request()
        self._lent: list[weakref.ref[Any]] = []

    @property
    def free(self) -> bool:
        """Nobody holds what it has lent, so that its next call may overwrite it."""
        return all(array() is None for array in self._lent)

    def infer(self, feeds: dict[Any, Any]) -> Sequence[Any]:
        """Numpy arrays, large ones on the request's memory: it lives as long as they do, also without the request."""
        give(self._request, feeds)
        arrays = self._request.infer(share_outputs=True).to_tuple()
        arrays = [array.copy() if array.nbytes <= _COPIED_BYTES else array for array in arrays]
        self._lent = [weakref.ref(array) for array in arrays if array.nbytes > _COPIED_BYTES]
        return arrays


class OpenVinoProgram(StoredProgram):
    """Runs a compiled model; each calling thread has inference requests of its own."""

    holds_module = False
    allocates_with_torch = False

    def __init__(
        self,
        compiled: Any,
        signature: Signature,
        order: Sequence[int],
        stored: HiddenFiles | None = None,
        streams: int = 1,
    ) -> None:
        super().__init__(signature, stored)
        self.compiled = compiled
        self.streams = streams
        self.order = tuple(order)
        self._local = threading.local()
        names = {name: port for port in compiled.inputs for name in port.names}
        self.ports = [(i, names[f"input_{i}"]) for i in range(len(signature.inputs_facts)) if f"input_{i}" in names]
        self.dtypes = [getattr(torch, facts.dtype) for facts in signature.outputs_facts]

    def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        given = [inputs[i].detach().contiguous() for i, _ in self.ports]
        feeds = {port: tensor.numpy() for (_, port), tensor in zip(self.ports, given, strict=True)}
        tensors = [torch.as_tensor(array) for array in self._free_request().infer(feeds)]
        # An output that is an input, or a view of one, has the caller's memory, which may end before the output does.
        lent = [range(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in given]
        tensors = [tensor.clone() if _lies_in(tensor, lent) else tensor for tensor in tensors]
        outputs, taken = [], set()
        for position, dtype in zip(self.order, self.dtypes, strict=True):
            tensor = tensors[position].to(dtype)
            outputs.append(tensor.clone() if position in taken else tensor)
            taken.add(position)
        return outputs

    def _free_request(self) -> Request:
        kept: list[Request] = self._local.__dict__.setdefault("requests", [])
        for request in kept:
            if request.free:
                return request
        request = Request(self.compiled)
        if len(kept) < _KEPT_REQUESTS:
            kept.append(request)
        return request

    def meta(self) -> dict[str, Any]:
        return {"file": FILE, "order": list(self.order), "streams": self.streams}

    def interface(self) -> Interface:
        facts, found = self.signature, self.compiled.outputs
        outputs = zip(self.order, facts.outputs_facts, strict=True)
        return Interface(
            inputs=tuple(_port(port, facts.inputs_facts[i].name) for i, port in self.ports),
            outputs=tuple(_port(found[position], each.name) for position, each in outputs),
            settings={
                "INFERENCE_PRECISION_HINT": self.compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name(),
                "PERFORMANCE_HINT": "LATENCY",
                **({"NUM_STREAMS": self.streams} if self.streams > 1 else {}),
            },
        )


def _port(port: Any, path: str) -> Port:
    shape = tuple(None if size.is_dynamic else size.get_length() for size in port.get_partial_shape())
    return Port(name=port.get_any_name(), path=path, dtype=port.get_element_type().to_dtype().name, shape=shape)


def _lies_in(tensor: Tensor, memory: Sequence[range]) -> bool:
    address = tensor.data_ptr()  # once: a step of decoding has dozens of inputs and outputs
    return any(address in part for part in memory)


def build(candidate: Candidate, streams: Scalar = 1) -> tuple[OpenVinoProgram, list[str]]:
    """The program, and notes for people. ``streams``: requests at once that have threads of their own.

    Raises Refused where the module cannot be converted.
    """
    signature = candidate.signature
    if not _is_count(streams):
        raise Refused(f"streams must be a positive number of requests at once, not {streams!r}")
    at_once = int(str(streams)) * candidate.at_once
    model, order, notes = convert(candidate)
    compiled, stored = compile_model(model, candidate, at_once)
    return OpenVinoProgram(compiled, signature, order, stored, at_once), notes


def compile_model(model: Any, candidate: Candidate, streams: int = 1) -> tuple[Any, HiddenFiles]:
    """Compiled, with its file. What is compiled comes from the file: the model shares the torch module's memory."""
    with hidden_folder() as (folder, stored):
        openvino().save_model(model, folder / FILE, compress_to_fp16=False)
        return compile_file(folder / FILE, candidate.threads, streams), stored


def load(folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> OpenVinoProgram:
    streams = meta.get("streams", 1)
    if not _is_count(streams):
        raise ArtifactError(
            f"its manifest says {streams!r} of its streams, where a positive number up to {MOST_THREADS} belongs: it "
            "is damaged. Get the artifact again, or tune again"
        )
    compiled = compile_file(folder / FILE, threads, streams)
    order = _checked_order(meta.get("order"), len(compiled.outputs), signature)
    return OpenVinoProgram(compiled, signature, order, streams=streams)


def _is_count(found: object) -> bool:
    return type(found) is int and 0 < found <= MOST_THREADS


def _checked_order(order: Any, found: int, signature: Signature) -> list[int]:
    """Raises ArtifactError unless it names an output of the model for each output of the signature."""
    wanted = len(signature.outputs_facts)
    right = isinstance(order, list) and len(order) == wanted
    if not right or not all(type(position) is int and 0 <= position < found for position in order):
        raise ArtifactError(
            f"its manifest says {order!r} of which output is which, where {wanted} numbers below {found} belong: it is "
            "damaged. Get the artifact again, or tune again"
        )
    return list(order)


def convert(candidate: Candidate) -> tuple[Any, list[int], list[str]]:
    """``(model, order, notes)``: ``order`` says which output of the model is which output of the signature. Passes of
    the candidate are applied.

    From the exported graph; where OpenVINO cannot read that, from a trace of the module. From a trace as well where
    there are recurrent layers: in an exported graph OpenVINO takes them apart into steps, of a fixed number.
    """
    signature, notes = candidate.signature, list[str]()
    count = len(signature.outputs_facts)
    given = {t.dtype for t in (*signature.inputs_facts, *signature.outputs_facts)}
    if "float64" in given:
        raise Refused(
            "an input or output is float64, which OpenVINO computes in float32 on a CPU (openvino issues 35822, 37968)"
        )
    strange = given - _BOUND
    if strange:
        raise Refused(f"inputs and outputs are bound through numpy, which does not share {', '.join(sorted(strange))}")
    try:
        exported = export(candidate)
        if recurrent_layers(exported.graph):
            model, order = _convert_trace(candidate), list(range(count))
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


def default_precision() -> str:
    """What OpenVINO computes float32 models in on this CPU by default: ``f32``, ``bf16`` or ``f16``."""
    return str(openvino().Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name())


def compile_file(path: Path, threads: int | None, streams: int = 1) -> Any:
    """Compile an IR for the CPU, in the precision that was written into it, else in float32.

    ``threads``: of one request; None: all of them together have what PyTorch has, or one each. ``streams``: requests
    at once.
    """
    core = openvino().Core()
    model = core.read_model(path)
    precision = model.get_rt_info(PRECISION_KEY).value if model.has_rt_info(PRECISION_KEY) else "f32"
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads * streams if threads else max(streams, torch.get_num_threads()),
    }
    if streams > 1:
        settings["NUM_STREAMS"] = streams
    if model.get_variables():
        settings["KV_CACHE_PRECISION"] = precision  # else it is rounded to 8 bits
    return core.compile_model(model, "CPU", settings)


def openvino() -> ModuleType:
    """OpenVINO, imported so that it does not report each conversion to its makers, which it does by default."""
    with no_telemetry():
        return importlib.import_module("openvino")


@contextmanager
def no_telemetry() -> Iterator[None]:
    """Within the block, what is imported finds no ``openvino_telemetry`` and uses its own stub. What was imported
    before is given that stub."""
    name = "openvino_telemetry"
    before = sys.modules.get(name)
    if before is None:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is None:
            sys.modules.pop(name, None)
    reporting = sys.modules.get("openvino.tools.ovc.telemetry_utils")
    if before is not None and reporting is not None:
        from openvino.tools.ovc import telemetry_stub

        vars(reporting)["tm"] = telemetry_stub


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
