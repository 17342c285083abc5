"""The engine ``torchscript``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.records import Facts
from togi.techniques.base import Applies, Engine, Options, Refuses, fixes_decisions

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate, Program
    from togi.subject.signature import Signature

TRACED = """class Flat(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.graph, self.training = program.module(), False
    def forward(self, *tensors):
        return self.graph(*tensors)
run = torch.jit.trace(Flat(), tuple(samples[0]), check_trace=False)"""
"""The lines of ``repro`` that trace."""


class TorchScript(Engine):
    """Run a TorchScript graph of the module.

    What it does: ``how=trace`` records the operators of one call, ``how=script`` compiles the module's own source;
    ``freeze`` makes weights constants and folds them; ``optimize`` fuses and packs them for the CPU
    (``torch.jit.optimize_for_inference``).

    When it applies: tracing, to every module whose outputs are tensors; scripting, where ``forward`` takes tensors by
    position, returns tensors and keeps to the language. Freezing refuses modules that write to their buffers, so it is
    not offered for them.

    When it refuses: on Python 3.14 and later, where torch does not support it; where the module cannot be captured,
    with the line at which the compiler stopped.

    Claim: resnet50 on 2 cores of an AVX-512 CPU: eager under ``inference_mode`` 134 ms, trace and freeze 135 ms, with
    ``optimize`` 68 ms. ``togi explain torchscript --prove`` measures it here.

    Source: https://docs.pytorch.org/docs/stable/jit.html and
    https://docs.pytorch.org/docs/stable/generated/torch.jit.optimize_for_inference.html

    Cost and risk: deprecated since torch 2.5; ``torch.export`` with AOTInductor is the successor. A trace fixes Python
    control flow and sizes read into Python as they were on the first sample; the tracer's warnings are shown as notes.
    A trace is refused if Python read something that values decide: a number, or the size of what a mask finds. The file
    is a program: TorchScript runs ``__setstate__`` while it is loaded, and its operators read and write files. Load it
    only from people whose programs you would run.
    """

    id = "torchscript"
    provides = frozenset({"engine:torchscript"})
    native = True
    files = ("model.ts",)

    def applies(self, facts: Facts) -> Applies | Refuses:
        if sys.version_info >= (3, 14):
            return Refuses("TorchScript is not supported on Python 3.14 and later: use aot_inductor or torch_compile")
        return fixes_decisions(facts) or Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        if facts.buffers_change:
            return [{"how": how, "freeze": False, "optimize": False} for how in ("trace", "script")]
        best: Options = {"how": "trace", "freeze": True, "optimize": True}
        if facts.device == "cuda":
            best["optimize"] = False  # it packs weights for the CPU
        others: list[Options] = [
            {"how": "trace", "freeze": True, "optimize": False},
            {"how": "script", "freeze": True, "optimize": True},
        ]
        return [best, *(option for option in others if option != best)]

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return 1.3 if options.get("optimize") else 1.0

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 1.0 + 0.001 * sum(facts.functions.values())

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.engine.programs import torchscript

        program, warnings = torchscript.build(candidate, options)
        for warning in warnings:
            candidate = candidate.noting(f"the tracer warned: {warning}")
        return candidate.with_(program=program)

    def repro(self, options: Options, threads: int | None) -> str | None:
        if options["how"] != "trace":
            return None  # scripting starts from the module's source, which the script does not have
        lines = [TRACED]
        lines += ["run = torch.jit.freeze(run)"] * bool(options["freeze"])
        lines += ["run = torch.jit.optimize_for_inference(run)"] * bool(options["optimize"])
        return "\n".join(lines)

    def load(self, folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> Program:
        from togi.techniques.engine.programs import torchscript

        return torchscript.load(folder, meta, signature)
