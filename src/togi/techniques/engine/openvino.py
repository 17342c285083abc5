"""The engine ``openvino``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.records import Facts
from togi.techniques.base import Options, Package, Refuses, fixes_decisions
from togi.techniques.graph_engine import OF_A_LIBRARY, GraphEngine

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate, Program
    from togi.subject.signature import Signature


class OpenVino(GraphEngine):
    """Run the module in OpenVINO, on the CPU.

    What it does: converts the captured graph to OpenVINO's form and compiles it for this CPU, for low latency and in
    float32: OpenVINO's own default would compute in bfloat16 where the CPU has it. A precision technique may lower it.
    With ``stateful`` a cache that every call returns longer and the next one is given again stays inside.
    With ``streams`` so many requests at once have threads of their own; without, they are answered one after the other,
    each by all threads. Inputs and outputs are not copied: an output lies in OpenVINO's memory, which is used again
    once nobody holds it.

    When it applies: on x86 and ARM CPUs, to modules that ``torch.export`` or the tracer captures.

    When it refuses: where the forward pass updates a buffer; where an input or output is float64, which it computes in
    float32; where one has a type that numpy does not share (bfloat16, float8, complex); where the converter does not
    know an operator.

    Claim: resnet50 on 2 cores of an AVX-512 CPU: 54 ms against 134 ms of eager under ``inference_mode``;
    mobilenetv3_large 8 ms against 32 ms, with 1.1 to 2.4 times the error of plain eager. A step of a GPT-2 takes 1.2 to
    1.9 times as long with its cache outside as inside. ``togi explain openvino --prove`` measures it here.

    Source: https://docs.openvino.ai/2025/openvino-workflow/model-preparation/convert-model-pytorch.html

    Cost and risk: seconds to convert. Weights are held in OpenVINO's own memory. Its usage reports are switched off
    while togi converts. A cache that it keeps is fetched where anything else looks at it, which costs a copy.
    """

    id = "openvino"
    library = "OpenVINO"
    captures = True
    devices = frozenset({"cpu"})
    packages = (Package("openvino", "openvino", "2025.0"),)
    provides = OF_A_LIBRARY | {"engine:openvino"}
    files = ("model.xml", "model.bin")

    def why_not(self, facts: Facts) -> Refuses | None:
        return fixes_decisions(facts)

    def options(self, facts: Facts) -> Sequence[Options]:
        # of no use to one caller where they were measured: streams, pinning, hyper-threading, snippets, the partitioner
        streams = min(facts.callers, facts.machine.cpu_cores)
        if facts.steps and facts.callers == 1:
            return [{"stateful": True}, {}]
        return [{"streams": streams}, {}] if streams > 1 else [{}]

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return 3.0 if options.get("stateful") else 2.5

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 3.0 + 0.006 * sum(facts.functions.values())

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.engine.programs import openvino, openvino_stateful

        program: Program
        if options.get("stateful"):
            program, notes = openvino_stateful.build(candidate)
        else:
            program, notes = openvino.build(candidate, options.get("streams", 1))
        for note in notes:
            candidate = candidate.noting(note)
        return candidate.with_(program=program)

    def repro(self, options: Options, threads: int | None) -> str | None:
        if options.get("stateful"):
            return None  # what it is given and what it returns hang together
        settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        if "streams" in options:
            settings["NUM_STREAMS"] = str(options["streams"])
        if threads:
            settings["INFERENCE_NUM_THREADS"] = str(threads * int(options.get("streams") or 1))
        return (
            "import openvino\n"
            f"compiled = openvino.compile_model(openvino.convert_model(program), 'CPU', {settings})\n"
            "def run(*tensors):\n"
            "    arrays = [tensor.numpy() for tensor in tensors]\n"
            "    return [torch.from_numpy(out) for out in compiled(arrays).to_tuple()]"
        )

    def load(self, folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> Program:
        from togi.techniques.engine.programs import openvino, openvino_stateful

        if "kept" in meta:
            return openvino_stateful.load(folder, meta, signature, threads)
        return openvino.load(folder, meta, signature, threads)
