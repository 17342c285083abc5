"""TorchScript programs: flat graphs, traced or scripted."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.errors import Refused
from togi.core.quantities import first_line
from togi.core.records import Scalar
from togi.graph.candidate import Candidate
from togi.graph.traceable import traceable
from togi.subject.behaviour import SavedBuffers
from togi.subject.signature import Signature
from togi.techniques.engine.programs.stored import HiddenFiles, StoredProgram, hidden_folder
from togi.torch_internals.compiler import TracerWarning
from togi.torch_internals.tracing import TraceReads

FILE = "model.ts"


class TorchScriptProgram(StoredProgram):
    """Runs a ScriptModule. ``stored`` keeps the graph before ``optimize_for_inference``, whose result has no file
    form."""

    def __init__(
        self, graph: Any, signature: Signature, options: dict[str, Scalar], stored: HiddenFiles | None = None
    ) -> None:
        super().__init__(signature, stored)
        self.graph = graph
        self.options = options

    def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        outputs = self.graph(*inputs)
        return (outputs,) if isinstance(outputs, Tensor) else outputs

    def meta(self) -> dict[str, Any]:
        return {"file": FILE, "options": self.options}


def build(candidate: Candidate, options: dict[str, Scalar]) -> tuple[TorchScriptProgram, list[str]]:
    """The program, and what the tracer warned of. Raises Refused where the module cannot be captured."""
    if candidate.signature.opaque:
        raise Refused(candidate.signature.opaque)
    if candidate.facts.buffers_change:  # a trace and a script share them with the module, and are called here
        candidate = candidate.with_(module=candidate.copy())
    buffers = SavedBuffers(candidate.module)
    with quiet() as caught:
        scripted = options["how"] == "script"
        graph = _script(candidate) if scripted else trace(candidate, caught)  # a script decides in each call
        if options["freeze"]:
            graph = torch.jit.freeze(graph)
        buffers.restore()
        with hidden_folder() as (folder, stored):
            torch.jit.save(graph, str(folder / FILE))
        graph = _optimized(graph, options)
    program = TorchScriptProgram(graph, candidate.signature, options, stored)
    warm(program, candidate.flat_samples())
    buffers.restore()
    return program, _tracer_warnings(caught)


def load(folder: Path, meta: dict[str, Any], signature: Signature) -> TorchScriptProgram:
    with quiet():
        graph = torch.jit.load(str(folder / FILE))  # type: ignore[no-untyped-call]
        return TorchScriptProgram(_optimized(graph, meta["options"]), signature, meta["options"])


def warm(program: TorchScriptProgram, samples: Sequence[list[Tensor]]) -> None:
    """The profiling executor records the first run of each graph and compiles on the second: run both before timing."""
    with torch.no_grad():
        for _ in range(3):
            for inputs in samples:
                program.run(inputs)


@contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Catches warnings: since torch 2.5 every call of torch.jit says that TorchScript is deprecated; we say so once, in
    the technique's page."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


@contextmanager
def holding_no_values(
    candidate: Candidate, module: nn.Module, caught: Sequence[warnings.WarningMessage]
) -> Iterator[None]:
    """Watch one trace of ``module``. It holds what Python read, and one side of each branch: other values may come one
    day, and no proof on some of them would show it. Of branches by sizes, what ``torch.export`` captured says when the
    other side is taken.

    Args:
        caught: the warnings of the tracer.

    Raises Refused at the end, naming the line.
    """
    with TraceReads(module, buffers_change=candidate.facts.buffers_change) as reads:
        yield
    if read := [*reads.found, *reads.unseen(caught)]:
        more = f" (and {len(read) - 1} more)" if len(read) > 1 else ""
        raise Refused(
            f"a trace holds what Python read, and other values may come: it read {read[0]}{more}. Compute both ways "
            "and choose with torch.where, or leave that step to a function outside of the module"
        )
    decided = [warning for warning in _tracer_warnings(caught) if "Python boolean" in warning]
    if decided and candidate.signature.dynamic and not candidate.facts.exportable:
        raise Refused(f"a trace holds one side of a branch, and nothing says when the other is taken: {decided[0]}")


def trace(candidate: Candidate, caught: Sequence[warnings.WarningMessage]) -> Any:
    """A ScriptModule of the flattened module, of one call on its first sample.

    Raises Refused where it would hold what values decide; ``caught`` are the warnings of the tracer.
    """
    inputs, module = candidate.flat_samples()[0], traceable(candidate)
    with torch.no_grad(), holding_no_values(candidate, module, caught):
        # Verification compares on other values and sizes; the tracer's own check would only run it a third time.
        return torch.jit.trace(module, tuple(inputs), check_trace=False).eval()  # type: ignore[no-untyped-call]


def _script(candidate: Candidate) -> Any:
    """Scripts the user's own module: its ``forward`` must take plain tensors and return a tensor or a tuple of them."""
    signature = candidate.signature
    plain_inputs = all(structure.kind == "tensor" for structure in signature.arguments)
    plain_outputs = signature.outputs.kind == "tensor" or (
        signature.outputs.kind == "tuple" and all(child.kind == "tensor" for child in signature.outputs.children)
    )
    if not plain_inputs or not plain_outputs or signature.names != _leading_parameters(candidate):
        raise Refused("scripting keeps the module's own signature: it must take tensors by position and return tensors")
    if isinstance(candidate.module, torch.jit.ScriptModule):
        return candidate.copy()  # scripting it gives it back itself, with the state that it keeps
    try:
        return torch.jit.script(candidate.module)
    except Exception as error:  # the script compiler raises many types, from RuntimeError to OSError (no source)
        raise Refused(f"torch.jit.script cannot compile it: {_location(error)}") from error


def _leading_parameters(candidate: Candidate) -> tuple[str, ...]:
    forward: Any = candidate.module.forward
    if isinstance(forward, torch.ScriptMethod):  # it has no Python signature
        names = tuple(argument.name for argument in forward.schema.arguments[1:])
    else:
        names = tuple(inspect.signature(forward).parameters)
    return names[: len(candidate.signature.names)]


def _location(error: BaseException) -> str:
    """The message's first line, with the user's line that the compiler points at."""
    lines = (line.strip() for line in str(error).splitlines())
    place = next((line for line in lines if line.startswith('File "')), "")
    return f"{first_line(error)} {place}".strip()


def _optimized(graph: Any, options: dict[str, Scalar]) -> Any:
    return torch.jit.optimize_for_inference(graph) if options["optimize"] else graph


def _tracer_warnings(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """The warnings that the trace may not hold for other inputs."""
    warned = [w for w in caught if issubclass(w.category, TracerWarning)]
    return list(dict.fromkeys(f"{first_line(str(w.message))} ({Path(w.filename).name}:{w.lineno})" for w in warned))
