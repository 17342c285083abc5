"""ONNX Runtime programs: tensors go in and come out without a copy on a CPU, and stay on the device on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from togi.core.errors import Refused
from togi.core.instructions import saturates
from togi.core.quantities import first_line
from togi.core.records import Interface, Port, Scalar, TensorFacts
from togi.graph.attention import answer_hidden_queries
from togi.graph.candidate import Candidate
from togi.graph.capture import export
from togi.graph.recurrent import SEALED, recurrent_layers, sealed
from togi.machine import describe
from togi.measure.memory import is_out_of_memory
from togi.subject.signature import Signature
from togi.techniques.engine.programs.onnxruntime_binding import ReplayedSession, empty, place
from togi.techniques.engine.programs.stored import HiddenFiles, StoredProgram, hidden_folder
from togi.techniques.engine.programs.tensorrt_cache import built_here, kept_engines
from togi.techniques.runtime.flush_denormal import kept_mode
from togi.torch_internals.archive import without_traces

FILE = "model.onnx"

_ONE_FILE_BYTES = 1_900_000_000
"""A protobuf message ends at 2 GiB; larger weights go to a file next to it."""


class OnnxRuntimeProgram(StoredProgram):
    """Runs an inference session. Several threads may call it.

    ``options``: of the technique, and ``tf32``: whether the CUDA provider may multiply in TensorFloat-32. Also, where
    the recipe says so, ``flush_denormals``: the session's own threads treat denormal numbers as zero.
    """

    holds_module = False
    allocates_with_torch = False

    def __init__(
        self, session: Any, signature: Signature, options: dict[str, Scalar], stored: HiddenFiles | None = None
    ) -> None:
        super().__init__(signature, stored)
        self.session = session
        self.options = options
        self.names = [f"input_{i}" for i in range(len(signature.inputs_facts))]
        used = {node.name for node in session.get_inputs()}
        self.used = [(i, name) for i, name in enumerate(self.names) if name in used]
        self.outputs = [node.name for node in session.get_outputs()]
        self._replayed = self._captured() if options.get("cuda_graph") else None

    def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        if self.signature.device == "cuda":
            if self._replayed is not None:
                return self._replayed([inputs[i] for i, _ in self.used])
            return self._run_bound(inputs)
        feeds = {name: inputs[i].detach().contiguous().numpy() for i, name in self.used}
        return [torch.from_numpy(array) for array in self.session.run(self.outputs, feeds)]

    def _run_bound(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        """Run on CUDA: pointers in, fresh tensors of torch's own out, except where their sizes are known only
        afterwards.

        A session computes on streams of its own, one for each of several callers, and knows nothing of torch's: so
        what torch has queued is waited for. It returns once its stream is done (onnxruntime issues 7225 and 26609). It
        could be opened on torch's (``user_compute_stream``), but takes the default one, 0, for none (PR 19229).
        """
        binding = self.session.io_binding()
        feeds = [(name, inputs[i].detach().contiguous()) for i, name in self.used]
        outputs = [empty(facts, self.signature.device) for facts in self.signature.outputs_facts]
        torch.cuda.current_stream().synchronize()  # the session reads on a stream of its own
        for name, tensor in feeds:
            binding.bind_input(name, *place(tensor))
        for name, output in zip(self.outputs, outputs, strict=True):
            if output is None:
                binding.bind_output(name, self.signature.device)
            else:
                binding.bind_output(name, *place(output))
        self.session.run_with_iobinding(binding)
        values, facts = binding.get_outputs(), self.signature.outputs_facts
        own = [self._handed_over(values[i], facts[i]) if t is None else t for i, t in enumerate(outputs)]
        if any(output is None for output in outputs):
            torch.cuda.current_stream().synchronize()  # before another caller's run is given the memory that is copied
        return own

    def _captured(self) -> ReplayedSession:
        """The session for ``cuda_graph``: all sizes are fixed (``build``), so that they are bound once."""
        facts = self.signature
        inputs = {name: facts.inputs_facts[i] for i, name in self.used}
        outputs = dict(zip(self.outputs, facts.outputs_facts, strict=True))
        return ReplayedSession(self.session, inputs, outputs, facts.device)

    def _handed_over(self, value: Any, facts: TensorFacts) -> Tensor:
        """Copy what the session allocated (bools come as bytes). Releases before 1.26 hand it over on the host
        alone."""
        shared = hasattr(value, "__dlpack__")
        tensor = torch.utils.dlpack.from_dlpack(value) if shared else torch.as_tensor(value.numpy())
        return tensor.to(self.signature.device, getattr(torch, facts.dtype), copy=True)

    def meta(self) -> dict[str, Any]:
        return {"file": FILE, "options": self.options}

    def interface(self) -> Interface:
        nodes = {node.name: node for node in self.session.get_inputs()}
        facts, outputs = self.signature, self.session.get_outputs()
        settings: dict[str, Scalar] = {**waiting(self.options), **_flushing(self.options)}
        if facts.device == "cuda":
            settings |= _switches(self.options)
            if self.options.get("provider") == TENSORRT:
                settings["provider"] = _ON_TENSORRT
        return Interface(
            inputs=tuple(_port(nodes[name], facts.inputs_facts[i].name) for i, name in self.used),
            outputs=tuple(_port(node, leaf.name) for node, leaf in zip(outputs, facts.outputs_facts, strict=True)),
            settings=settings,
        )


def build(candidate: Candidate, options: dict[str, Scalar]) -> OnnxRuntimeProgram:
    """Raises Refused where the module cannot be captured, uses a type that cannot be bound, or the installed package
    has no provider for the device: the latter is asked before the export, which takes seconds."""
    signature = candidate.signature
    # The provider has one switch for all operators, on by default: as plain eager does, or the recipe says.
    options = options | {"tf32": bool(candidate.facts.tf32)}
    if candidate.flushes_denormals:
        options = options | {"flush_denormals": True}
    facts = (*signature.inputs_facts, *signature.outputs_facts)
    if (
        any(tensor.dtype.startswith(("bfloat16", "float8", "complex")) for tensor in facts)
        and signature.device == "cpu"
    ):
        raise Refused("inputs and outputs are bound through numpy, which has no bfloat16, float8 or complex in ONNX")
    tensorrt = options.get("provider") == TENSORRT
    if signature.device == "cuda" and (reason := provider_missing(options)):
        raise Refused(reason)
    if options.get("cuda_graph") and any(None in tensor.shape for tensor in facts):
        raise Refused("a CUDA graph of ONNX Runtime has one size of each input and output, and sizes vary here")
    with hidden_folder() as (folder, stored):
        path = folder / FILE
        opset = options.get("opset")
        write_model(candidate, path, opset if isinstance(opset, int) else None)
        for transform in candidate.passes.get("onnxruntime", ()):
            transform(path, candidate)
        if tensorrt:
            options = options | {"fp16": holds_float16(path)}
        try:
            session = open_session(path, signature.device, options, candidate.threads)
        except Exception as error:  # foreign code: its errors have no common base
            # TensorRT's libraries come with another package, or none; not every session can be captured
            if not (tensorrt or options.get("cuda_graph")) or is_out_of_memory(error):
                raise
            raise Refused(first_line(error)) from error
    return OnnxRuntimeProgram(session, signature, options, stored)


def load(folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> OnnxRuntimeProgram:
    session = open_session(folder / FILE, signature.device, meta["options"], threads)
    return OnnxRuntimeProgram(session, signature, meta["options"])


def write_model(candidate: Candidate, path: Path, opset: int | None = None) -> None:
    """The candidate as an ONNX file with inputs ``input_0``... and outputs ``output_0``..., dynamic where the subject
    is. ``opset``: the version of ONNX; None: the exporter's own choice."""
    signature = candidate.signature
    exported = without_traces(export(candidate))  # torch 2.9 cannot convert guards; the signature checks sizes
    recurrent = _recurrent_layers()
    if signature.dynamic_dims and (unknown := recurrent_layers(exported.graph_module) - recurrent.keys()):
        raise Refused(f"the installed onnxscript takes {min(unknown)} apart into steps, of a fixed number")
    sealed(exported.graph_module, recurrent)
    answer_hidden_queries(exported.graph_module)
    _sort_as_any(exported.graph_module)
    _keep_attention_contiguous(exported.graph_module)
    try:
        program = torch.onnx.export(
            exported,
            (),
            dynamo=True,
            verbose=False,
            opset_version=opset,
            custom_translation_table={SEALED[kind]: function for kind, function in recurrent.items()},
            output_names=[f"output_{i}" for i in range(len(signature.outputs_facts))],
        )
    except torch.onnx.OnnxExporterError as error:
        raise Refused(f"the ONNX exporter cannot translate it: {first_line(error.__cause__ or error)}") from error
    assert program is not None  # with dynamo=True
    for i, value in enumerate(program.model.graph.inputs):
        value.name = f"input_{i}"  # torch 2.9 takes the name of an output for an input that is returned as it is
    weights = sum(tensor.numel() * tensor.element_size() for tensor in candidate.module.state_dict().values())
    program.save(str(path), external_data=weights > _ONE_FILE_BYTES)


def _keep_attention_contiguous(module: fx.GraphModule) -> None:
    """The kernel that ran while it was captured lays its output out so that a ``contiguous`` after it left no trace.
    The exporter takes attention apart, which lays it out otherwise, and finds views that are none."""
    aten = torch.ops.aten
    for node in module.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default):
        with module.graph.inserting_after(node):
            copied = module.graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
        copied.meta = {**node.meta, "val": node.meta["val"].contiguous()}
        node.replace_all_uses_with(copied, delete_user_cb=lambda user, kept=copied: user is not kept)
    module.recompile()


def _sort_as_any(module: fx.GraphModule) -> None:
    """The exporter does not know a sort that keeps the order of equals. The operator that it makes of any other
    (``TopK``) puts the lower index first among these, so it keeps it too."""
    aten = torch.ops.aten
    for stable, of_any in ((aten.sort.stable, aten.sort.default), (aten.argsort.stable, aten.argsort.default)):
        for node in module.graph.find_nodes(op="call_function", target=stable):
            bound = {"dim": -1, "descending": False} | dict(node.kwargs)
            node.target = of_any
            node.kwargs = {name: bound[name] for name in ("dim", "descending")}
    module.recompile()


def _recurrent_layers() -> dict[str, Callable[..., Any]]:
    """The functions of the installed onnxscript that write recurrent layers, by the kinds that it knows."""
    from onnxscript.function_libs.torch_lib.ops import core

    functions = {kind: getattr(core, f"aten_{kind}", None) for kind in SEALED}
    return {kind: function for kind, function in functions.items() if function is not None}


def open_session(path: Path, device: str, options: dict[str, Scalar], threads: int | None) -> Any:
    """Raises RuntimeError where the device's provider cannot be used, with what to install."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.intra_op_num_threads = threads or torch.get_num_threads()
    for name, value in {**waiting(options), **exact_products(), **_flushing(options)}.items():
        settings.add_session_config_entry(name, value)
    settings.log_severity_level = 3
    providers: list[Any] = ["CPUExecutionProvider"]
    if device == "cuda":
        # torch has loaded the libraries of CUDA and cuDNN already; what it did not, the provider finds this way
        if hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()
        providers = [(_ON_CUDA, _switches(options))]
        if reason := provider_missing(options):
            raise RuntimeError(reason)
    with ExitStack() as stack:
        if device == "cuda" and options.get("provider") == TENSORRT:
            # a model that names float16 is not built without the flag; what it cannot run, CUDA's provider does
            flags = {"trt_fp16_enable": str(int(bool(options.get("fp16"))))}
            cached = stack.enter_context(kept_engines(path, built_here(flags)))
            providers.insert(0, (_ON_TENSORRT, {**flags, **cached}))
        stack.enter_context(kept_mode())  # the first session of a process sets it in the thread that opens it
        session = onnxruntime.InferenceSession(str(path), settings, providers=providers)
    for provider, *_ in providers if device == "cuda" else ():
        if provider not in session.get_providers():
            # a session whose provider does not load runs without it, and says so in its log alone
            raise RuntimeError(
                f"onnxruntime {onnxruntime.__version__} could not load its {provider} and fell back to another: its "
                "libraries (CUDA, cuDNN, TensorRT) must be those that it was built for ('togi doctor --device cuda' "
                "compares them)"
            )
    return session


def holds_float16(path: Path) -> bool:
    """Whether the model in the file has inputs, weights, constants or casts in float16."""
    import onnx

    half, graph = onnx.TensorProto.FLOAT16, onnx.load(str(path), load_external_data=False).graph
    values = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info)}
    weights = {weight.data_type for weight in graph.initializer}
    named = {attribute.i for node in graph.node for attribute in node.attribute if attribute.name in ("to", "dtype")}
    return half in values | weights | named


def provider_missing(options: Mapping[str, Scalar]) -> str:
    """Say what the installed package lacks for these options on a GPU; empty where it lacks nothing."""
    import onnxruntime

    providers = (_ON_CUDA, *([_ON_TENSORRT] if options.get("provider") == TENSORRT else []))
    lacking = next((name for name in providers if name not in onnxruntime.get_available_providers()), None)
    return f"the installed onnxruntime has no {lacking}: pip install onnxruntime-gpu" if lacking else ""


TENSORRT = "tensorrt"
"""Of the option ``provider``; without it CUDA's."""
_ON_CUDA = "CUDAExecutionProvider"
_ON_TENSORRT = "TensorrtExecutionProvider"


def waiting(options: Mapping[str, Scalar]) -> dict[str, str]:
    """The settings by which idle threads of a session's pool wait."""
    return {
        "session.intra_op.allow_spinning": str(int(bool(options["spinning"]))),
        "session.force_spinning_stop": str(int(options["spinning"] == "in_calls")),
    }


def _flushing(options: Mapping[str, Scalar]) -> dict[str, str]:
    """The setting by which the threads of a session's pool treat denormal numbers as zero, if the recipe has it."""
    return {"session.set_denormal_as_zero": "1"} if options.get("flush_denormals") else {}


def exact_products() -> dict[str, str]:
    """The setting by which products of 8 bits do not saturate on this processor: weights above 7 bits are then
    multiplied in 16 (14 % slower on a Zen 3). What was written here has 7 bits, and is left alone.

    Not set elsewhere: since ONNX Runtime 1.25 (pull request 27671) it gives up VNNI's kernels where they are exact.
    """
    return {"session.x64quantprecision": "1"} if saturates(describe.cpu_flags()) else {}


def _switches(options: Mapping[str, Scalar]) -> dict[str, str]:
    """Switches for CUDA's provider: always TensorFloat-32, the others if the recipe names them."""
    named = {"enable_cuda_graph": "cuda_graph", "prefer_nhwc": "nhwc"}
    switches = {"use_tf32": "tf32"} | {name: option for name, option in named.items() if options.get(option)}
    return {name: str(int(bool(options.get(option)))) for name, option in switches.items()}


def _port(node: Any, path: str) -> Port:
    """``node.type`` is ``tensor(float)``; a dynamic size has a name, or none."""
    dtype = node.type.removeprefix("tensor(").removesuffix(")")
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    shape = tuple(size if isinstance(size, int) else None for size in node.shape)
    return Port(name=node.name, path=path, dtype=dtype, shape=shape)
