"""The engine ``torch_compile``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.errors import Refused
from togi.core.records import Facts, Recipe
from togi.techniques.base import IN_PLACE, Applies, Engine, Options, Refuses, no_compiler

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate, Program
    from togi.subject.signature import Signature
    from togi.subject.training import TrainingStep

_CUDA_GRAPH_MODES = frozenset({"reduce-overhead", "max-autotune"})
BLOCK_NAMES = "BLOCKS"
"""In lines of a step: stands for the names of blocks that repeat, which the module alone knows."""
_GRAPHS_IN_THREADS = "2.14"
"""CUDA graph trees belong to the thread that made them before this torch (pytorch #123177): threads take turns."""


class TorchCompile(Engine):
    """Compile the module with TorchDynamo and TorchInductor.

    What it does: ``torch.compile``. ``mode``: ``default``; ``max-autotune-no-cudagraphs`` times kernel variants; on
    CUDA also ``reduce-overhead`` and ``max-autotune``, which replay CUDA graphs. Outputs are copied, since a replay
    overwrites them; a note of the trial says which graphs were skipped, and why. The first also has
    ``coordinate_descent``: each kernel's settings are varied one by one as long as it gets faster. ``freezing`` treats
    weights as constants: they are folded and packed for the machine. Shapes are static unless the samples, or the user,
    say that a dimension varies. Of a training step, forward and loss are compiled together (``of=loss``), or the
    module alone, with their backward pass. ``of=blocks`` compiles the layers of a stack one by one, each for itself:
    what is compiled for the first serves all that are alike. Where the step draws random numbers, compiled code draws
    eager's.

    When it applies: to modules that run in eager; parts that cannot be captured run in eager between compiled parts.
    ``of=blocks`` applies where blocks of the same classes and sizes are there three times and more.

    When it refuses: without a C++ compiler on a CPU, or Triton's C compiler on a GPU; ``freezing`` is not offered where
    the forward pass updates a buffer, and the modes with CUDA graphs not for several callers before torch 2.14, where
    all threads share one recording and take turns.

    Claim: resnet50 on 2 cores of an AVX-512 CPU (torch 2.13-2.15, shared and noisy): default mode without freezing and
    with contiguous layout 862 ms against 134 ms of eager under ``inference_mode``; max-autotune with freezing and
    channels_last 70 ms. So it can be the worst and nearly the best choice for one model. Training steps on one thread
    of a busy machine (torch 2.14, processor time): ViT-tiny 1.06 times as fast as eager with ``of=blocks``, whose first
    step took 18 s in place of 48 s with ``of=loss``; GPT-2 of 4 layers with dropout 0.87 with ``of=blocks``.

    Source: https://docs.pytorch.org/docs/stable/torch.compiler.html and torch/_inductor/freezing.py

    Cost and risk: seconds to minutes of compilation in every process that loads it, again for every new size where
    shapes are static. Freezing keeps a second, packed copy of the weights.
    """

    id = "torch_compile"
    inductor = True
    trains = True
    provides = frozenset({"engine:torch_compile"})
    files = ("model.pt2",)
    compiles_when_loaded = True

    def applies(self, facts: Facts) -> Applies | Refuses:
        return no_compiler(facts) or Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        if facts.train:
            drawn: Options = {"eager_random": True} if facts.random else {}
            whole = ["module"] if facts.own_loop else ["loss", "module"]
            return [{"of": what, **drawn} for what in (*whole, *(["blocks"] if facts.blocks else []))]
        modes: list[Options] = [{"mode": "max-autotune-no-cudagraphs"}, {"mode": "default"}]
        if facts.device == "cuda" and not threads_share_graphs(facts):
            descent: Options = {"mode": "reduce-overhead", "coordinate_descent": True}
            modes = [{"mode": "reduce-overhead"}, {"mode": "max-autotune"}, descent, {"mode": "default"}]
        freezing = [False] if facts.buffers_change else [True, False]
        return [{**mode, "freezing": frozen} for frozen in freezing for mode in modes]

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        if facts.train:
            # the geometric mean over eight small models, alone; of blocks a ViT gained 1.06 and a GPT-2 lost 0.87
            return 1.0 if options.get("of") == "blocks" else 1.07
        if facts.device == "cuda":
            return 1.5
        return 1.7 if options.get("freezing") else 1.0

    def cost_s(self, facts: Facts, options: Options) -> float:
        if facts.train:  # two compilations: one that is proven and measured, and that of the float64 twin
            compiled = 0.2 * sum(facts.functions.values())
            one_of_each = len(facts.blocks) / max(1, sum(facts.blocks))
            return 15.0 + compiled * one_of_each if options.get("of") == "blocks" else 20.0 + compiled
        longer = "max-autotune" in str(options.get("mode")) or options.get("coordinate_descent")
        per_operator_s = 0.3 if longer else 0.15
        return 5.0 + per_operator_s * sum(facts.functions.values())

    def apply_step(self, step: TrainingStep, options: Options) -> TrainingStep:
        from togi.techniques.engine.programs.compiled_step import compiled_step

        return compiled_step(step, options)

    def step_lines(self, options: Options, recipe: Recipe, facts: Facts) -> str:
        drawn = "options={'fallback_random': True}" if options.get("eager_random") else ""
        if options.get("of") == "loss":
            return f"loss = torch.compile({', '.join(filter(None, ['loss', drawn]))})"
        if options.get("of") == "module":
            return f"module.compile({drawn})"
        return f"for name in {BLOCK_NAMES}:\n    module.get_submodule(name).compile({drawn})"

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.engine.programs.compiled import FreshOutputs, compile_call, graph_notes
        from togi.techniques.engine.programs.exported import ExportableProgram
        from togi.torch_internals.cuda_graphs import GraphReport
        from togi.torch_internals.script import holds_torchscript

        if holds_torchscript(candidate.module):
            raise Refused("it is TorchScript, which torch.compile does not take: tune the module that it was made of")
        exportable = candidate.facts.exportable
        if options["mode"] not in _CUDA_GRAPH_MODES:
            call = compile_call(candidate.module, candidate.signature, options, exportable=exportable)
            return candidate.with_(program=ExportableProgram(candidate, call, options))
        if threads_share_graphs(candidate.facts):
            raise Refused(
                f"threads share one recording of torch.compile's CUDA graphs before torch {_GRAPHS_IN_THREADS}, and "
                "several callers are asked for"
            )
        if candidate.signature.opaque:
            raise Refused(f"outputs of CUDA graphs must be copied, and {candidate.signature.opaque}")
        graphs = GraphReport()
        compiled = compile_call(candidate.module, candidate.signature, options, graphs, exportable=exportable)
        fresh = FreshOutputs(compiled, candidate.signature)
        return candidate.with_(program=ExportableProgram(candidate, fresh, options, lambda: graph_notes(graphs)))

    def repro(self, options: Options, threads: int | None) -> str | None:
        descent = (
            "torch._inductor.config.coordinate_descent_tuning = True\n" if options.get("coordinate_descent") else ""
        )
        return (
            "import torch._inductor.config\n"
            f"torch._inductor.config.freezing = {bool(options['freezing'])}\n"
            f"{descent}"
            f"run = torch.compile(program.module(), mode={options['mode']!r})"
        )

    def load(self, folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> Program:
        from togi.techniques.engine.programs.compiled import FreshOutputs, compile_call
        from togi.techniques.engine.programs.exported import FlatExportableProgram, load_module
        from togi.techniques.engine.programs.in_place import InPlaceProgram
        from togi.torch_internals.compiler import cpp_compiler_missing

        if signature.device == "cpu" and cpp_compiler_missing():
            raise RuntimeError("torch.compile needs a C++ compiler on a CPU, and none was found: apt-get install g++")
        options: Options = meta["options"]
        if meta.get(IN_PLACE):
            return InPlaceProgram(lambda forward: compile_call(forward, signature, options, exportable=False))
        # Inductor takes an LSTM apart on a GPU: slower than cuDNN's; torch 2.11 gives its last states another shape.
        module = load_module(folder, whole_layers=signature.device != "cpu")
        call: Any = compile_call(module, signature, options, exportable=True)
        return FlatExportableProgram(FreshOutputs(call) if options["mode"] in _CUDA_GRAPH_MODES else call, signature)


def threads_share_graphs(facts: Facts) -> bool:
    from packaging.version import Version

    torch = Version(Version(facts.machine.versions.get("torch", "0")).base_version)
    return facts.device == "cuda" and facts.callers > 1 and torch < Version(_GRAPHS_IN_THREADS)
