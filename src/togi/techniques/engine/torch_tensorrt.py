"""The engine ``torch_tensorrt``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.errors import Refused
from togi.core.records import Facts
from togi.techniques.base import Options, Package, Refuses, not_exportable
from togi.techniques.graph_engine import OF_A_LIBRARY, GraphEngine

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate, Program
    from togi.subject.signature import Signature


class TorchTensorRt(GraphEngine):
    """Run the module in TensorRT, through Torch-TensorRT.

    What it does: exports the module and compiles what TensorRT supports to engines for this GPU, in the types of the
    graph (so 16 bits where the recipe says so); the rest runs in PyTorch. Float32 is multiplied in TensorFloat-32 where
    plain eager does so (convolutions, by default) or the recipe says so.

    When it applies: on CUDA with the package torch-tensorrt, to modules with static shapes that ``torch.export``
    captures.

    When it refuses: on a CPU; where the module cannot be exported, has dynamic dimensions or updates a buffer; where
    TensorRT supports none of its operators.

    Claim: usually the fastest engine for convolutional models on NVIDIA GPUs. Not yet measured by this project.

    Source: https://docs.pytorch.org/TensorRT/dynamo/dynamo_export.html

    Cost and risk: minutes to build, again in every process that loads it: a built engine is a custom class that torch
    stores with pickle, so the exported program is stored instead.
    """

    id = "torch_tensorrt"
    library = "TensorRT"
    captures = True
    devices = frozenset({"cuda"})
    packages = (Package("torch-tensorrt", "tensorrt"),)
    provides = OF_A_LIBRARY | {"engine:torch_tensorrt"}
    files = ("model.pt2",)
    speedup = 2.0

    def why_not(self, facts: Facts) -> Refuses | None:
        if facts.device != "cuda":
            return Refuses("TensorRT needs a CUDA device")
        if facts.dynamic:
            return Refuses("it has dynamic dimensions, for which this engine is not built yet")
        return not_exportable(facts)

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 60.0

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.graph.capture import export
        from togi.techniques.engine.programs.exported import FlatExportableProgram

        options = options | {"tf32": bool(candidate.facts.tf32)}
        call = _compiled(export(candidate), candidate.flat_samples()[0], options)
        return candidate.with_(program=FlatExportableProgram(call, candidate.signature, candidate, options))

    def load(self, folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> Program:
        import torch

        from togi.techniques.engine.programs.exported import FILE, FlatExportableProgram
        from togi.torch_internals.archive import load_exported

        if not torch.cuda.is_available():
            raise RuntimeError("TensorRT needs a CUDA device, and there is none")
        inputs = [
            torch.zeros([size or 1 for size in facts.shape], dtype=getattr(torch, facts.dtype), device="cuda")
            for facts in signature.inputs_facts
        ]
        call = _compiled(load_exported(folder / FILE), inputs, meta["options"])
        return FlatExportableProgram(call, signature)


def _compiled(program: Any, inputs: list[Any], options: Options) -> Any:
    """A flat callable. Raises Refused where TensorRT takes no part of the program."""
    from torch_tensorrt.dynamo import compile as compiled

    settings = {"inputs": inputs, "disable_tf32": not options.get("tf32"), **_typed(compiled)}
    built = compiled(program, **settings)
    if not _holds_engines(built):
        # by default what has fewer than five operators in a row is left to torch, which is all of a small module
        built = compiled(program, min_block_size=1, **settings)
    if not _holds_engines(built):
        raise Refused("TensorRT supports none of its operators: all would run in PyTorch")
    return built


def _typed(compiled: Callable[..., Any]) -> dict[str, bool]:
    """Engines compute in the types of the graph, as the recipe made it: before 2.11 that had to be asked for, or all
    was float32; from 2.12 or so on there is no other way, and no switch."""
    name = "use_explicit_typing"
    return {name: True} if name in inspect.signature(compiled).parameters else {}


def _holds_engines(built: Any) -> bool:
    """The names are those of 2.9 to 2.14, of the modules in C++ and in Python that run an engine."""
    names = {"TorchTensorRTModule", "PythonTorchTensorRTModule"}
    return any(type(module).__name__ in names for module in built.modules())
