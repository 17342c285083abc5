"""The technique ``fp16``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from togi.core.records import Facts, Stage
from togi.techniques.base import Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate

_CPU_FLAGS = frozenset({"avx512_fp16", "amx_fp16", "fphp", "asimdhp"})


class Fp16(Technique):
    """Compute in float16: 11 bits of precision, and nothing above 65504.

    What it does: ``how=cast`` stores the float32 weights in float16 and casts floating inputs; ``how=autocast`` keeps
    weights and casts around the operators that gain from it. Outputs come back in the types the original returns.

    When it applies: to modules with float32 weights or inputs, on a GPU, and on CPUs with instructions for it (x86:
    avx512_fp16, amx_fp16; ARM: fphp, asimdhp).

    When it refuses: on CPUs without these instructions, where it is emulated and slower; where nothing is float32.

    Claim: approximate. On a GPU usually faster than float32, with half the memory for weights under ``cast``; on CPUs
    without the instructions slower. ``togi explain fp16 --prove`` measures it here.

    Source: https://docs.pytorch.org/docs/stable/amp.html

    Cost and risk: overflow to infinity above 65504, underflow below 6e-8: verification sees it on the samples only.
    """

    id = "fp16"
    stage = Stage.PRECISION
    exact = False
    provides = frozenset({"precision"})
    conflicts = frozenset({"precision"})

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.device == "cpu" and not _CPU_FLAGS & set(facts.machine.cpu_flags):
            return Refuses(
                "this CPU has no float16 instructions (avx512_fp16, amx_fp16): it would be emulated, and slower"
            )
        if "float32" not in {*facts.parameter_dtypes, *(tensor.dtype for tensor in facts.inputs)}:
            return Refuses("neither a weight nor an input is float32: there is nothing to lower")
        return Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        return [{"how": "cast"}, {"how": "autocast"}]

    def promise(self, facts: Facts, options: Options) -> float:
        return 1.5 if facts.device == "cuda" else 1.2

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        import torch

        from togi.techniques.precision.lowering.cast import lower

        return lower(candidate, torch.float16, str(options["how"]))
