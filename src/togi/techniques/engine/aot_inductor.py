"""The engine ``aot_inductor``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.records import Facts
from togi.techniques.base import (
    Applies,
    Engine,
    Options,
    Refuses,
    changes_buffers,
    no_compiler,
    no_cuda_headers,
    not_exportable,
)

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate, Program
    from togi.subject.signature import Signature


class AotInductor(Engine):
    """Compile the exported module ahead of time to a native library, with AOTInductor.

    What it does: ``torch.export``, then TorchInductor's kernels compiled into one shared library together with the
    weights. Loading compiles nothing, and calling it goes through no Python of torch's. ``freezing`` folds and packs
    the weights while compiling; ``max_autotune`` times kernel variants.

    When it applies: to modules that ``torch.export`` captures, with a C++ compiler; on a GPU also with a C compiler and
    CUDA's headers.

    When it refuses: where the module cannot be exported, updates a buffer, or one of these is missing; loading is
    refused on another torch version, operating system or GPU, and on a CPU that lacks a feature of the one it was
    compiled on.

    Claim: TorchInductor's steady state without its compile time at load and without its guards at every call; it is the
    successor of TorchScript for use without Python. ``togi explain aot_inductor --prove`` measures it here.

    Source: https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html

    Cost and risk: tens of seconds to minutes of compilation. The file holds machine code: load it only from people
    whose programs you would run. Inputs of other strides are copied, since the compiled code assumes contiguous ones.
    On a CPU it runs on as many threads as its caller has, and on no more than it was compiled for.
    """

    id = "aot_inductor"
    inductor = True
    captures = True
    provides = frozenset({"engine:aot_inductor"})
    native = True
    files = ("model.pt2",)

    def applies(self, facts: Facts) -> Applies | Refuses:
        return (
            not_exportable(facts)
            or changes_buffers(facts, "AOTInductor")
            or no_compiler(facts)
            or no_cuda_headers(facts)
            or Applies()
        )

    def options(self, facts: Facts) -> Sequence[Options]:
        return [
            {"freezing": freezing, "max_autotune": autotune} for freezing in (True, False) for autotune in (True, False)
        ]

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return 1.7 if options.get("freezing") else 1.0

    def cost_s(self, facts: Facts, options: Options) -> float:
        per_operator_s = 0.3 if options.get("max_autotune") else 0.15
        start_s = 60.0 if facts.device == "cuda" else 15.0  # the headers: 75 s for one product, measured on an H100
        return start_s + per_operator_s * sum(facts.functions.values())

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.engine.programs import aot_inductor

        return candidate.with_(program=aot_inductor.build(candidate, options))

    def repro(self, options: Options, threads: int | None) -> str | None:
        return (
            "import torch._inductor.config\n"
            f"torch._inductor.config.freezing = {bool(options['freezing'])}\n"
            f"torch._inductor.config.cpp.threads = {threads or 'torch.get_num_threads()'}\n"
            f"torch._inductor.config.cpp.dynamic_threads = {threads != 1}\n"
            f"configs = {{'max_autotune': {bool(options['max_autotune'])}}}\n"
            "package = torch._inductor.aoti_compile_and_package(program, inductor_configs=configs)\n"
            "run = torch._inductor.aoti_load_package(package)"
        )

    def load(self, folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> Program:
        from togi.techniques.engine.programs import aot_inductor

        return aot_inductor.load(folder, meta, signature)
