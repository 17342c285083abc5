"""The technique ``fp16``."""

from __future__ import annotations

from togi.core.records import Facts
from togi.techniques.base import Options
from togi.techniques.half_precision import HalfPrecision


class Fp16(HalfPrecision):
    """Compute in float16: 11 bits of precision, and nothing above 65504.

    What it does: ``how=cast`` stores the float32 weights in float16 and casts floating inputs; ``how=autocast`` keeps
    weights and casts around the operators that gain from it. Outputs come back in the types the original returns.

    When it applies: to modules with float32 weights or inputs, on a GPU, and on CPUs with instructions for it (x86:
    avx512_fp16, amx_fp16; ARM: fphp, asimdhp).

    When it refuses: on CPUs without these instructions or where ``ONEDNN_MAX_CPU_ISA`` rules them out: it is emulated
    and slower there; where nothing is float32.

    Claim: approximate. On a GPU usually faster than float32, with half the memory for weights under ``cast``; on CPUs
    without the instructions slower. ``togi explain fp16 --prove`` measures it here.

    Source: https://docs.pytorch.org/docs/stable/amp.html

    Cost and risk: overflow to infinity above 65504, underflow below 6e-8: verification sees it on the samples only.
    """

    id = "fp16"
    type_name = "float16"

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return 1.5 if facts.device == "cuda" else 1.2
