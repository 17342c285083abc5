"""OpenVINO programs."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from togi.core.callers import MOST_THREADS
from togi.core.errors import ArtifactError, Refused
from togi.core.records import Interface, Port, Scalar
from togi.graph.candidate import Candidate
from togi.machine.describe import physical_cores
from togi.subject.signature import Signature
from togi.techniques.engine.programs.openvino_conversion import convert
from togi.techniques.engine.programs.openvino_library import DENORMALS, DENORMALS_KEY, openvino, written_properties
from togi.techniques.engine.programs.stored import HiddenFiles, StoredProgram, hidden_folder
from togi.techniques.runtime.flush_denormal import kept_mode

FILE = "model.xml"
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


class LendingRequest:
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
        self.waits_for_threads = streams > 1  # of one stream, whoever calls computes as well
        self.order = tuple(order)
        self._local = threading.local()
        names = {name: port for port in compiled.inputs for name in port.names}
        self.ports = [(i, names[f"input_{i}"]) for i in range(len(signature.inputs_facts)) if f"input_{i}" in names]
        self.dtypes = [getattr(torch, facts.dtype) for facts in signature.outputs_facts]

    def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        tensors_in = [inputs[i].detach().contiguous() for i, _ in self.ports]
        feeds = {port: tensor.numpy() for (_, port), tensor in zip(self.ports, tensors_in, strict=True)}
        tensors = [torch.as_tensor(array) for array in self._free_request().infer(feeds)]
        # An output that is an input, or a view of one, has the caller's memory, which may end before the output does.
        lent = [range(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors_in]
        tensors = [tensor.clone() if _lies_in(tensor, lent) else tensor for tensor in tensors]
        outputs, taken = [], set()
        for position, dtype in zip(self.order, self.dtypes, strict=True):
            tensor = tensors[position].to(dtype)
            outputs.append(tensor.clone() if position in taken else tensor)
            taken.add(position)
        return outputs

    def _free_request(self) -> LendingRequest:
        requests: list[LendingRequest] = self._local.__dict__.setdefault("requests", [])
        for request in requests:
            if request.free:
                return request
        request = LendingRequest(self.compiled)
        if len(requests) < _KEPT_REQUESTS:
            requests.append(request)
        return request

    def meta(self) -> dict[str, Any]:
        return {"file": FILE, "order": list(self.order), "streams": self.streams}

    def interface(self) -> Interface:
        facts, ports = self.signature, self.compiled.outputs
        outputs = zip(self.order, facts.outputs_facts, strict=True)
        return Interface(
            inputs=tuple(_port(port, facts.inputs_facts[i].name) for i, port in self.ports),
            outputs=tuple(_port(ports[position], leaf.name) for position, leaf in outputs),
            settings={
                "INFERENCE_PRECISION_HINT": self.compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name(),
                "PERFORMANCE_HINT": "LATENCY",
                **({"NUM_STREAMS": self.streams} if self.streams > 1 else {}),
                **_other_than_default(self.compiled, "DYNAMIC_QUANTIZATION_GROUP_SIZE"),
                **_other_than_default(self.compiled, DENORMALS),
            },
        )


def _other_than_default(compiled: Any, name: str) -> dict[str, Scalar]:
    value = compiled.get_property(name)
    return {} if value == core().get_property("CPU", name) else {name: value}


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
    if candidate.flushes_denormals:
        model.set_rt_info("YES", DENORMALS_KEY)
    with hidden_folder() as (folder, stored):
        openvino().save_model(model, folder / FILE, compress_to_fp16=False)
        return compile_file(folder / FILE, candidate.threads, streams), stored


def load(folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> OpenVinoProgram:
    streams = meta.get("streams", 1)
    if not _is_count(streams):
        raise damaged(
            f"its manifest says {streams!r} of its streams, where a positive number up to {MOST_THREADS} belongs"
        )
    compiled = compile_file(folder / FILE, threads, streams)
    order = _checked_order(meta.get("order"), len(compiled.outputs), signature)
    return OpenVinoProgram(compiled, signature, order, streams=streams)


def _is_count(found: object) -> bool:
    return type(found) is int and 0 < found <= MOST_THREADS


def _checked_order(order: Any, found: int, signature: Signature) -> list[int]:
    """Raises ArtifactError unless it names an output of the model for each output of the signature."""
    count = len(signature.outputs_facts)
    right = isinstance(order, list) and len(order) == count
    if not right or not all(type(position) is int and 0 <= position < found for position in order):
        raise damaged(
            f"its manifest says {order!r} of which output is which, where {count} numbers below {found} belong"
        )
    return list(order)


def damaged(problem: str) -> ArtifactError:
    return ArtifactError(f"{problem}: it is damaged. Get the artifact again, or tune again")


@functools.cache
def core() -> Any:
    """The one that all programs of this process share, for as long as it lives.

    Each core has a stack for signal handlers, and puts the earlier one back when it goes. Of two that go in the order
    in which they came, the second puts back what the first has freed, and the next signal ends the process (seen with
    OpenVINO 2026.4).

    With it live the threads of programs that are gone, for the next one, and a forked child has none of them: what is
    compiled there waits for ever. So they end before each fork.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_end_idle_threads)
    return openvino().Core()


def _end_idle_threads() -> None:
    """The CPU plugin of any core ends them all when it goes (0.4 ms)."""
    openvino().Core().get_property("CPU", "INFERENCE_PRECISION_HINT")


def default_precision() -> str:
    """The type in which OpenVINO computes float32 models on this CPU by default: ``f32``, ``bf16`` or ``f16``."""
    return str(core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name())


def compile_file(path: Path, threads: int | None, streams: int = 1) -> Any:
    """Compile an IR for the CPU, with the properties that were written into it, else in float32.

    ``threads``: of one request; None: all of them together have what PyTorch has, or one each. ``streams``: requests
    at once.
    """
    model = core().read_model(path)
    count = threads * streams if threads else max(streams, torch.get_num_threads())
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": count,
        **written_properties(model),
    }
    if count < physical_cores():
        # Each process pins its threads, and whoever calls, to the first cores: several would share them, others idle.
        settings["ENABLE_CPU_PINNING"] = False
    if streams > 1:
        settings["NUM_STREAMS"] = streams
    if model.get_variables():
        settings["KV_CACHE_PRECISION"] = settings["INFERENCE_PRECISION_HINT"]  # else it is rounded to 8 bits
    shared = core()
    _end_idle_threads()  # they flush denormal numbers, or do not, as the program did that is gone
    with kept_mode():  # the property is set in the thread that compiles, too, and stays there
        return shared.compile_model(model, "CPU", settings)
