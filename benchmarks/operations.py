"""Where the chosen engine's time goes, and how near each kind of operation comes to what the machine can do.

    python -m benchmarks.operations [--models yolo ...] [--json operations.json]

For the rows of ``data/peers.json`` whose model took less than ``--below`` of the machine's limit: the chosen recipe is
built again, its file is run by the engine's own Python package with the engine's own profile switched on (OpenVINO's
performance counters, ONNX Runtime's profile; both cost time, so shares count rather than sums), and operations are put
together by kind. The limit of a kind is the larger of two times: its floating-point operations at the rate of a
measured matrix product, its inputs, weights and outputs at the rate of a measured copy. A kind far below its limit is
one whose kernels leave something; what is near it can only be removed, fused or computed in fewer bits.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.peers import machine_limits
from benchmarks.rows import measured_here, measured_on, put_rows

from togi.core.records import Choice, Recipe, Scalar
from togi.subject.inputs import Subject
from togi.techniques import conformance
from togi.techniques.build import build
from togi.techniques.registry import all_techniques

PEERS = Path(__file__).parent / "data" / "peers.json"
CALLS = 30
WARM_UP = 5
_SHOWN = 4


@dataclass
class Operation:
    """One operation of the engine's graph, as it ran."""

    kind: str
    ms: float
    flops: float
    bytes: float


@dataclass
class Kind:
    """Operations of one kind in one call. ``limit_ms``: of each of them, added up."""

    kind: str
    count: int
    ms: float
    share: float
    limit_ms: float


@dataclass
class Row:
    """One model: its kinds, the one that takes most time first."""

    model: str
    recipe: str
    engine_ms: float
    """Sum of its operations, median call."""
    kinds: list[Kind]
    measured: str = field(default_factory=measured_here)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", help="those of data/peers.json; without it all that are far below")
    parser.add_argument("--below", type=float, default=0.6, help="share of the machine's limit")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    raced = {row["model"]: row for row in json.loads(PEERS.read_text(encoding="utf-8"))}
    far = [name for name, row in raced.items() if row["limit_ms"] / row["togi_ms"] < options.below]
    limits = machine_limits()
    rows = []
    for name in options.models or far:
        row = profile(name, raced[name]["recipe"], limits)
        rows.append(asdict(row))
        if options.json:
            put_rows(options.json, rows[-1:], by="model")
    print(table(rows))


def profile(model: str, label: str, limits: tuple[float, float]) -> Row:
    """Build the recipe, run its file, put its operations together."""
    import torch

    recipe = recipe_of(label)
    made = getattr(models, model)()
    subject = made if isinstance(made, Subject) else Subject(made[0], made[1])
    samples = subject.samples if isinstance(subject.samples, Sequence) else [subject.samples]
    candidate = build(recipe, conformance.candidate_of(subject.module, samples, subject.dynamic))
    program = candidate.program
    feeds = {f"input_{i}": tensor.numpy() for i, tensor in enumerate(candidate.flat_samples()[0])}
    with tempfile.TemporaryDirectory() as folder:
        program.save(Path(folder))
        engine: Callable[..., list[list[Operation]]] = _openvino if "openvino" in label else _onnxruntime
        calls = engine(Path(folder), feeds, torch.get_num_threads())
    totals = [sum(operation.ms for operation in call) for call in calls]
    median = statistics.median_low(totals)
    return Row(model, label, median, kinds(calls[totals.index(median)], limits))


def kinds(operations: Sequence[Operation], limits: tuple[float, float]) -> list[Kind]:
    """Operations put together, the kind that takes most time first. ``limits``: FLOP/s and bytes/s."""
    total = sum(operation.ms for operation in operations)
    by_kind: dict[str, list[Operation]] = {}
    for operation in operations:
        by_kind.setdefault(operation.kind, []).append(operation)
    found = [
        Kind(
            kind=kind,
            count=len(some),
            ms=sum(each.ms for each in some),
            share=sum(each.ms for each in some) / total,
            limit_ms=sum(max(each.flops / limits[0], each.bytes / limits[1]) for each in some) * 1e3,
        )
        for kind, some in by_kind.items()
    ]
    return sorted(found, key=lambda each: -each.ms)


def recipe_of(label: str) -> Recipe:
    """``fold_batch_norm + onnxruntime(spinning=True)`` as a recipe."""
    choices = []
    for each in label.split(" + "):
        name, _, rest = each.partition("(")
        pairs = [pair.split("=") for pair in rest.rstrip(")").split(", ") if pair]
        values = {key: _value(text) for key, text in pairs}
        choices.append(Choice(stage=all_techniques()[name].stage, technique=name, options=values))
    return Recipe(choices=tuple(choices))


def _value(text: str) -> Scalar:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a name, such as trace


def _openvino(folder: Path, feeds: dict[str, Any], threads: int) -> list[list[Operation]]:
    from togi.techniques.engine.programs.openvino_library import openvino

    core = openvino().Core()
    model = core.read_model(folder / "model.xml")
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "PERF_COUNT": "YES",
    }
    compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    ran = {node.get_friendly_name(): node for node in compiled.get_runtime_model().get_ordered_ops()}
    known = {port.get_any_name() for port in compiled.inputs}
    given = {name: array for name, array in feeds.items() if name in known}
    original = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
    calls = []
    for turn in range(WARM_UP + CALLS):
        request.infer(given)
        if turn >= WARM_UP:
            timed = [each for each in request.profiling_info if each.real_time.total_seconds() > 0]
            calls.append([_of_openvino(each, ran.get(each.node_name), original) for each in timed])
    return calls


def _of_openvino(timed: Any, node: Any, original: dict[str, Any]) -> Operation:
    ms = timed.real_time.total_seconds() * 1e3
    if node is None:
        return Operation(timed.node_type, ms, 0.0, 0.0)
    sizes = [_bytes(port) for port in (*(each.get_source_output() for each in node.inputs()), *node.outputs())]
    names = str(node.get_rt_info()["originalLayersNames"].astype(str)).split(",")
    fused = [original[name] for name in names if name in original]
    # a product that took a bias in has only the bias's name
    own = _flops(_SAME_AS.get(timed.node_type, timed.node_type), _shapes(node), _out(node))
    flops = sum(_flops(each.get_type_name(), _shapes(each), _out(each)) for each in fused) or own
    kind = timed.node_type
    for each in fused:
        kind = _kind(kind, each.get_type_name(), _shapes(each))
    return Operation(kind, ms, flops, float(sum(sizes)))


def _bytes(port: Any) -> int:
    shape = port.get_partial_shape()
    return 0 if shape.is_dynamic else math.prod(shape.to_shape()) * port.get_element_type().size


def _shapes(node: Any) -> list[list[int]]:
    found = [value.get_partial_shape() for value in node.input_values()]
    return [[] if shape.is_dynamic else list(shape.to_shape()) for shape in found]


def _out(node: Any) -> list[int]:
    shape = node.output(0).get_partial_shape()
    return [] if shape.is_dynamic else list(shape.to_shape())


def _onnxruntime(folder: Path, feeds: dict[str, Any], threads: int) -> list[list[Operation]]:
    import onnx
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath = str(folder / "optimized.onnx")
    settings.intra_op_num_threads = threads
    settings.enable_profiling = True
    settings.profile_file_prefix = str(folder / "profile")
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), settings, providers=["CPUExecutionProvider"])
    known = {node.name for node in session.get_inputs()}
    given = {name: array for name, array in feeds.items() if name in known}
    for _ in range(WARM_UP + CALLS):
        session.run(None, given)
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    graph = onnx.load(folder / "optimized.onnx").graph
    weights = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    nodes = {node.name: [weights.get(name) for name in node.input] for node in graph.node}
    calls: list[list[Operation]] = [[]]
    for event in sorted(events, key=lambda event: event["ts"] + event.get("dur", 0)):
        if event["name"] == "model_run":
            calls.append([])
        elif event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            calls[-1].append(_of_onnxruntime(event, nodes.get(event["name"].removesuffix("_kernel_time"), [])))
    return [call for call in calls if call][WARM_UP:]


def _of_onnxruntime(event: dict[str, Any], weights: Sequence[list[int] | None]) -> Operation:
    """``weights``: for each input of the node its sizes, where it is a weight: the profile leaves packed ones out."""
    said = event["args"]
    known = [sizes for sizes in weights if sizes is not None]
    given = [next(iter(each.values())) for each in said["input_type_shape"]]
    computed = iter([sizes for sizes in given if sizes not in known])
    inputs = [sizes if sizes is not None else next(computed, []) for sizes in weights] or given
    outputs = [next(iter(each.values())) for each in said["output_type_shape"]]
    name = said["op_name"].removeprefix("Fused")
    moved = int(said["activation_size"]) + int(said["output_size"]) + sum(4 * math.prod(sizes) for sizes in known)
    flops = _flops(_SAME_AS.get(name, name), inputs, outputs[0] if outputs else [])
    return Operation(_kind(name, _SAME_AS.get(name, name), inputs), event["dur"] / 1e3, flops, float(moved))


_SAME_AS = {
    "Conv": "Convolution",
    "Gemm": "MatMul",
    "FullyConnected": "MatMul",
    "LSTM": "LSTMSequence",
    "GRU": "GRUSequence",
}
"""What ONNX, or OpenVINO when it runs, calls what OpenVINO's own operators are called."""


def _flops(name: str, inputs: list[list[int]], output: list[int]) -> float:
    """Of a multiplication and an addition two each; 0 for what does neither in bulk, or where a size is unknown."""
    if len(inputs) < 2 or not inputs[0] or not inputs[1]:
        return 0.0
    first, second, out = inputs[0], inputs[1], math.prod(output)
    if name == "Convolution":
        return 2.0 * out * math.prod(second[1:])
    if name == "GroupConvolution":
        return 2.0 * out * math.prod(second[2:])
    if name == "ConvolutionBackpropData":
        return 2.0 * math.prod(first) * math.prod(second[1:])
    if name == "MatMul":
        return 2.0 * out * first[-1]
    if name == "ScaledDotProductAttention":
        return 4.0 * math.prod(first) * second[-2]
    if name in {"LSTMSequence", "GRUSequence"}:
        weights = sorted((math.prod(each) for each in inputs[1:] if len(each) == 3), reverse=True)[:2]
        return 2.0 * math.prod(first[:2]) * sum(weights)
    return 0.0


def _kind(shown: str, name: str, inputs: list[list[int]]) -> str:
    """Convolutions by their kernel, and whether they are depthwise."""
    if name not in {"Convolution", "GroupConvolution"} or len(inputs) < 2 or not inputs[1]:
        return shown
    weights = inputs[1]
    depthwise = weights[-3] == 1 and (name == "GroupConvolution" or weights[0] == inputs[0][1])
    kernel = "x".join(str(size) for size in weights[2 if name == "Convolution" else 3 :])
    return f"{'depthwise ' if depthwise else 'grouped ' if name == 'GroupConvolution' else ''}convolution {kernel}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: for each model the kinds that take most of its time."""
    lines = [
        "| model | sum of operations (ms) | kind (number): share of the time, share of its limit reached |",
        "|---|--:|---|",
    ]
    for row in rows:
        shown = [
            f"{each['kind']} ({each['count']}): {each['share']:.0%}, {each['limit_ms'] / each['ms']:.0%}"
            for each in row["kinds"][:_SHOWN]
        ]
        lines.append(f"| {row['model']} | {row['engine_ms']:.2f} | {'; '.join(shown)} |")
    return "\n".join([*lines, "", measured_on(rows)])


if __name__ == "__main__":
    main()
