"""The ``config.pbtxt`` of a model for Triton Inference Server, and what such a file cannot express.

Sources: https://github.com/triton-inference-server/common (protobuf/model_config.proto) and the README and source of
its onnxruntime_backend, openvino_backend and pytorch_backend, as of 2026.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from togi.artifact.manifest import Link, Manifest
from togi.core.errors import ArtifactError
from togi.core.records import Interface, Port
from togi.graph.candidate import FlatProgram
from togi.subject.signature import Signature

_BACKENDS = {
    "onnxruntime": 'backend: "onnxruntime"',
    "openvino": 'backend: "openvino"',
    "aot_inductor": 'backend: "pytorch"\nplatform: "torch_aoti"',
}
_TYPES = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64", "bool": "BOOL"} | {
    f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_WITHOUT_EFFECT = frozenset({"no_grad", "inference_mode", "threads", "allocator"})
"""Runtime choices that a server makes anyway, reads from its configuration, or has from its environment."""


@dataclass(frozen=True)
class Repository:
    """A model of a repository, without its file."""

    name: str
    config: str
    """The text of ``config.pbtxt``."""
    interface: Interface
    notes: tuple[str, ...]


def served(interface: Interface, name: str, manifest: Manifest, link: Link, tried: FlatProgram | None) -> Repository:
    """The model as the server has it. Raises ArtifactError where it would compute something else than was proven.

    ``tried``: the same on an engine that refuses sizes that it cannot take, to find some for the warm-up.
    """
    if link.engine == "aot_inductor":
        interface = interface.model_copy(
            update={
                "inputs": _numbered("INPUT__", interface.inputs),
                "outputs": _numbered("OUTPUT__", interface.outputs),
            }
        )
    settable = {"tf32"} if "use_tf32" in interface.settings else set()
    for choice in link.runtime:
        if choice.technique not in _WITHOUT_EFFECT | settable:
            raise ArtifactError(
                f"it was proven under {choice.label}, for which Triton has no setting: tune again with --without "
                f"{choice.technique}, or export the plain file and set it in a server of your own"
            )
    for port in (*interface.inputs, *interface.outputs):
        if port.dtype not in _TYPES or not port.shape:
            problem = f"is of {port.dtype}" if port.shape else "has no dimension"
            raise ArtifactError(
                f"{port.path} {problem}, which Triton does not take: tune a model with another one there"
            )
    parameters = dict(_parameters(interface, link))
    warm_up = _warm_up(manifest.signature, tried)
    notes = []
    if not warm_up:
        notes.append("no warm-up: it did not run on zeros of the sizes that were tried, and Triton is given no others")
    if link.engine == "aot_inductor" and link.threads:
        notes.append(f"proven with {link.threads} threads: start the server with OMP_NUM_THREADS={link.threads}")
    if link.engine == "openvino" and "HINT_BF16" not in parameters:
        notes.append("Triton cannot set the precision: serve it where OpenVINO takes the one in 'settings' by default")
    lines = _config(name, link.engine, interface, manifest.facts.device, parameters, warm_up)
    return Repository(name, "\n".join([*lines, ""]), interface, tuple(notes))


def _numbered(prefix: str, ports: Sequence[Port]) -> tuple[Port, ...]:
    return tuple(port.model_copy(update={"name": f"{prefix}{i}"}) for i, port in enumerate(ports))


def _parameters(interface: Interface, link: Link) -> Iterator[tuple[str, str]]:
    if link.engine == "onnxruntime" and link.threads:
        yield "intra_op_thread_count", str(link.threads)
    if link.engine != "openvino":
        return
    from togi.techniques.engine.programs.openvino import default_precision

    yield "PERFORMANCE_HINT", str(interface.settings["PERFORMANCE_HINT"])
    streams = int(str(interface.settings.get("NUM_STREAMS", 1)))
    if streams > 1:
        yield "NUM_STREAMS", str(streams)
    if link.threads:
        yield "INFERENCE_NUM_THREADS", str(link.threads * streams)
    if "DYNAMIC_QUANTIZATION_GROUP_SIZE" in interface.settings:
        raise ArtifactError(
            "its activations are not quantized, and Triton's OpenVINO backend would quantize them while they run, for "
            "it has no setting for that. What works: tune again without int8_openvino(how=weights); or --to openvino, "
            "in a server that sets DYNAMIC_QUANTIZATION_GROUP_SIZE"
        )
    precision = interface.settings["INFERENCE_PRECISION_HINT"]
    if precision == "bf16":
        yield "HINT_BF16", "YES"
    elif precision != default_precision():
        raise ArtifactError(
            f"it was proven in {precision}, and Triton's OpenVINO backend would compute in {default_precision()}, the "
            "default on this CPU, for it has no setting for that. What works: tune again with --only onnxruntime, or "
            "with --allow bf16_openvino and a bound; or --to openvino, in a server that sets INFERENCE_PRECISION_HINT"
        )


def _warm_up(signature: Signature, tried: FlatProgram | None) -> dict[str, list[int]]:
    """Sizes of each input: dynamic ones are 2 in front, and behind the first of a few with which it runs."""
    facts = signature.inputs_facts
    for size in (2, 16, 64, 224):
        sizes = [[(size if i else 2) if dim is None else dim for i, dim in enumerate(tensor.shape)] for tensor in facts]
        if not signature.dynamic or (tried and _runs(tried, sizes)):
            return {tensor.name: shape for tensor, shape in zip(facts, sizes, strict=True)}
    return {}


def _runs(program: FlatProgram, sizes: Sequence[Sequence[int]]) -> bool:
    zeros = [
        torch.zeros(shape, dtype=getattr(torch, facts.dtype), device=program.signature.device)
        for shape, facts in zip(sizes, program.signature.inputs_facts, strict=True)
    ]
    try:
        with torch.no_grad():
            program.run(zeros)
    except Exception:  # foreign code: sizes that the model does not take
        return False
    return True


def _config(
    name: str, engine: str, interface: Interface, device: str, parameters: dict[str, str], warm_up: dict[str, list[int]]
) -> Iterator[str]:
    yield f"name: {_quoted(name)}"
    yield _BACKENDS[engine]
    yield "max_batch_size: 0  # every dimension stands in dims, the batch too"
    for kind, ports in (("input", interface.inputs), ("output", interface.outputs)):
        for port in {port.name: port for port in ports}.values():
            dims = [-1 if size is None else size for size in port.shape]
            yield f"{kind} {{ name: {_quoted(port.name)} {_typed(port, dims)} }}"
    gpu = device == "cuda"
    yield f"instance_group {{ kind: {'KIND_GPU' if gpu else 'KIND_CPU'} count: 1 }}"
    for key, value in parameters.items():
        yield f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}"
    if gpu and engine == "onnxruntime":
        option = f'parameters {{ key: "use_tf32" value: {_quoted(interface.settings["use_tf32"])} }}'
        yield f'optimization {{ execution_accelerators {{ gpu_execution_accelerator {{ name: "cuda" {option} }} }} }}'
    if warm_up:
        inputs = [
            f"  inputs {{ key: {_quoted(port.name)} value {{ {_typed(port, warm_up[port.path])} zero_data: true }} }}"
            for port in interface.inputs
        ]
        yield "\n".join(['model_warmup { name: "zeros" batch_size: 1', *inputs, "}"])


def _typed(port: Port, dims: Sequence[int]) -> str:
    return f"data_type: TYPE_{_TYPES[port.dtype]} dims: {list(dims)}"


def _quoted(text: object) -> str:
    return json.dumps(str(text), ensure_ascii=False)
