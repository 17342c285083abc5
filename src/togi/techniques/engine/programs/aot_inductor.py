"""AOTInductor programs: a package with a shared library that holds generated kernels and weights."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from togi.core.callers import MOST_THREADS
from togi.core.errors import Refused
from togi.core.records import Scalar
from togi.graph.aliasing import MemorySharing
from togi.graph.candidate import Candidate
from togi.graph.capture import export
from togi.graph.recurrent import recurrent_layers
from togi.machine.cuda_driver import driver_to_link_with
from togi.machine.describe import cpu_flags
from togi.subject.signature import Signature
from togi.techniques.engine.programs.compiled import compile_settings
from togi.techniques.engine.programs.stored import HiddenFiles, StoredProgram, hidden_folder
from togi.techniques.runtime.threads import no_more_threads, torch_threads
from togi.torch_internals.compiler import (
    aoti_load,
    aoti_operators,
    aoti_package,
    inductor_settings,
    short_loops_without_threads,
)
from togi.torch_internals.operators import runs_python

if TYPE_CHECKING:
    from torch.export import ExportedProgram

FILE = "model.pt2"


class AotInductorProgram(StoredProgram):
    """Runs a loaded package. Several threads may call it: each call waits for a free runner.

    It holds the interpreter's lock meanwhile. Where an operator in the package runs Python, the call that has the
    runner waits for that lock, so both would wait for ever: such a package serves one call at a time.
    """

    holds_module = False

    def __init__(
        self,
        path: Path,
        signature: Signature,
        threads: int | None,
        stored: HiddenFiles | None = None,
        written: Sequence[int] = (),
    ) -> None:
        """``written``: the inputs into which a call writes, by position."""
        super().__init__(signature, stored)
        self.threads = threads
        self.written = tuple(written)
        self.runner = aoti_load(str(path))
        if any(map(runs_python, aoti_operators(path))):
            self.serve_one_at_a_time()

    def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        given = [_as_compiled(tensor) for tensor in inputs]
        copied = [(inputs[place], given[place]) for place in self.written if given[place] is not inputs[place]]
        # some kernels have memory for the threads that they were compiled for, and none for what others would write
        with nullcontext() if self.threads is None else no_more_threads(self.threads):
            outputs: Sequence[Tensor] = self.runner.boxed_run(given)
        for tensor, written in copied:
            if not torch.equal(tensor, written):
                tensor.copy_(written)
        return outputs

    def meta(self) -> dict[str, Any]:
        return {
            "file": FILE,
            "threads": self.threads,
            "written": list(self.written),
            "built_on": built_on(self.signature.device),
        }


def build(candidate: Candidate, options: dict[str, Scalar]) -> AotInductorProgram:
    """Raises Refused where the module cannot be captured."""
    if not all(tensor.is_contiguous() for sample in candidate.samples for tensor in sample.tensors()):
        candidate = candidate.with_(samples=tuple(sample.map(Tensor.contiguous) for sample in candidate.samples))
    program = export(candidate)
    if candidate.signature.dynamic_dims and (apart := recurrent_layers(program.graph_module) - {"lstm"}):
        raise Refused(f"AOTInductor takes {min(apart)} apart into steps, of a fixed number")
    written = written_inputs(program)
    settings = compile_settings(candidate.signature, freezing=bool(options["freezing"]))
    threads = (candidate.threads or torch.get_num_threads()) if candidate.device.type == "cpu" else None
    with ExitStack() as stack:
        folder, stored = stack.enter_context(hidden_folder())
        stack.enter_context(torch.no_grad())
        stack.enter_context(driver_to_link_with())
        if threads is not None:
            settings |= _thread_settings(threads)
            stack.enter_context(torch_threads(threads))  # variants of kernels are timed as they will be called
            stack.enter_context(short_loops_without_threads())
        stack.enter_context(inductor_settings(settings))
        path = aoti_package(program, str(folder / FILE), {"max_autotune": bool(options["max_autotune"])})
        built = AotInductorProgram(Path(path), candidate.signature, threads, stored, written)
    return built


def _thread_settings(threads: int) -> dict[str, Any]:
    """Kernels run on the threads that a caller has, not on those that the process which compiled them had: by default
    Inductor writes that number into each. Those for one thread are plain loops."""
    return {"cpp.threads": threads, "cpp.dynamic_threads": threads > 1}


def load(folder: Path, meta: dict[str, Any], signature: Signature) -> AotInductorProgram:
    """Raises RuntimeError where the generated machine code does not fit this machine or this torch."""
    check_machine(meta["built_on"], built_on(signature.device))
    threads = _checked_threads(meta.get("threads"), signature.device)
    written = _checked_places(meta.get("written", []), len(signature.inputs_facts))
    return AotInductorProgram(folder / FILE, signature, threads, written=written)


def _checked_threads(found: Any, device: str) -> int | None:
    if found is None or (device == "cpu" and type(found) is int and 0 < found <= MOST_THREADS):
        return found  # None: of a device, or of an artifact whose kernels hold their number of threads
    raise RuntimeError(f"its manifest has {found!r} where the number of threads that it was compiled for belongs")


def written_inputs(program: ExportedProgram) -> tuple[int, ...]:
    """The inputs into which a call may write, by position."""
    written = {node.name for node in MemorySharing(program.graph).written_inputs()}
    written |= set(program.graph_signature.user_inputs_to_mutate.values())
    return tuple(place for place, name in enumerate(program.graph_signature.user_inputs) if name in written)


def _checked_places(found: Any, count: int) -> list[int]:
    if isinstance(found, list) and all(type(place) is int and 0 <= place < count for place in found):
        return found
    raise RuntimeError(f"its manifest has {found!r} where the inputs into which it writes belong")


def built_on(device: str) -> dict[str, Any]:
    """The machine, as far as the machine code in a package depends on it."""
    build: dict[str, Any] = {"torch": torch.__version__, "device": device}
    if device == "cuda":
        build["gpu"] = f"{torch.cuda.get_device_name()} sm_{''.join(map(str, torch.cuda.get_device_capability()))}"
    return build | {"os": platform.system(), "cpu": platform.machine(), "cpu_flags": list(cpu_flags())}


def check_machine(there: dict[str, Any], here: dict[str, Any]) -> None:
    """Kernels are compiled for the processor at hand (``-march=native``): it may have more features, but not fewer."""
    for key in ("torch", "device", "gpu", "os", "cpu"):
        if there.get(key) != here.get(key):
            raise RuntimeError(f"its kernels were compiled for {key} {there.get(key)}; this is {here.get(key)}")
    missing = sorted(set(there["cpu_flags"]) - set(here["cpu_flags"]))
    if missing:
        raise RuntimeError(f"its kernels were compiled for a CPU that also has {', '.join(missing)}")


def _as_compiled(tensor: Tensor) -> Tensor:
    """Contiguous and, on a GPU, aligned: the generated code assumes both and checks neither, so that other strides give
    wrong numbers in silence (pytorch issues 122784 and 141891)."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.is_cuda and tensor.data_ptr() % 16 else tensor
