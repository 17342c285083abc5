"""The engine ``cuda_graph``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.errors import Refused
from togi.core.records import Facts
from togi.techniques.base import Applies, Engine, Options, Refuses, changes_buffers

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate, Program
    from togi.subject.signature import Signature


class CudaGraph(Engine):
    """Record the kernels of one call as a CUDA graph, and replay it.

    What it does: the module runs once under capture, in eager, for each combination of input sizes; later calls copy
    the inputs in, launch all kernels at once and copy the outputs out, since the next replay overwrites them. Beyond
    ``limit`` combinations it runs in eager. So it does, with a warning, for sizes whose capture fails later.

    When it applies: on CUDA, to modules that never wait for the device (no ``.item()``, no sizes that depend on
    values).

    When it refuses: on a CPU; where the forward pass updates a buffer (warming up would update it too); where outputs
    are not tensors; where the capture fails, which is tried at once.

    Claim: removes the cost of launching kernels, which is most of the time of small models and small batches on a GPU.
    ``togi explain cuda_graph --prove`` measures it on a GPU.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs

    Cost and risk: each recording keeps its inputs, outputs and working memory. Python in ``forward`` does not run
    again. Threads may call it, one after the other. The first call of a new size captures it: that call waits for the
    whole device and empties torch's cache of device memory, so call it once with each size before you serve.
    """

    id = "cuda_graph"
    devices = frozenset({"cuda"})
    provides = frozenset({"engine:cuda_graph"})
    files = ("model.pt2",)
    speedup = 1.5

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.device != "cuda":
            return Refuses("CUDA graphs need a CUDA device")
        return changes_buffers(facts, "a CUDA graph") or Applies()

    def options(self, facts: Facts) -> list[Options]:
        return [{"limit": 16}]

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        import torch

        from togi.graph.candidate import in_contexts
        from togi.graphs.recording import why_not_captured
        from togi.techniques.engine.programs.cuda_graph import CudaGraphs
        from togi.techniques.engine.programs.exported import FlatExportableProgram

        if candidate.signature.opaque:
            raise Refused(f"outputs of CUDA graphs must be copied, and {candidate.signature.opaque}")
        flat = candidate.flat()
        # Contexts that later techniques add (cuDNN's choice of algorithms) belong into the recording that is used: that
        # one is made by the first call. This one only shows whether there can be one.
        trial = CudaGraphs(in_contexts(flat, candidate.contexts), limit=1)
        try:
            trial.recording(candidate.flat_samples()[0])
        except torch.OutOfMemoryError:
            raise  # an outcome of its own: there may be room once other processes of the study have ended
        except Exception as error:  # foreign code: whatever waits for the device, or a library of its own
            raise Refused(why_not_captured(error)) from error
        graphs = CudaGraphs(flat, int(str(options["limit"])))
        return candidate.with_(program=FlatExportableProgram(graphs, candidate.signature, candidate, options))

    def load(self, folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> Program:
        import torch

        from togi.techniques.engine.programs.cuda_graph import CudaGraphs
        from togi.techniques.engine.programs.exported import FlatExportableProgram, load_module

        if not torch.cuda.is_available():
            raise RuntimeError("CUDA graphs need a CUDA device, and there is none")
        return FlatExportableProgram(CudaGraphs(load_module(folder), int(meta["options"]["limit"])), signature)
