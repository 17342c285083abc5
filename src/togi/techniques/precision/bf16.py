"""The technique ``bf16``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from togi.core.records import Facts, Stage
from togi.techniques.base import Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate

_CPU_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


class Bf16(Technique):
    """Compute in bfloat16: float32's range with 8 bits of precision.

    What it does: ``how=cast`` stores the float32 weights in bfloat16 and casts floating inputs; ``how=autocast`` keeps
    weights and casts around the operators that gain from it. Outputs come back in the types the original returns.

    When it applies: to modules with float32 weights or inputs, on a GPU, and on CPUs with instructions for it (x86:
    avx512_bf16, amx_bf16; ARM: bf16).

    When it refuses: on CPUs without these instructions, where it is emulated and slower; where nothing is float32.

    Claim: approximate. Relative error of 4e-3 to 3e-2, 10,000 to 28,000 times that of plain eager (resnet50,
    mobilenetv3, ViT-tiny, ConvNeXt-atto, EfficientNet-Lite0 on an AVX-512 CPU). Half the memory for weights with
    ``cast``.

    Source: https://docs.pytorch.org/docs/stable/amp.html

    Cost and risk: accuracy. Values that are compared or summed over many terms suffer most: give a metric, or a bound.
    """

    id = "bf16"
    stage = Stage.PRECISION
    exact = False
    provides = frozenset({"precision"})
    conflicts = frozenset({"precision"})

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.device == "cpu" and not _CPU_FLAGS & set(facts.machine.cpu_flags):
            return Refuses(
                "this CPU has no bfloat16 instructions (avx512_bf16, amx_bf16): it would be emulated, and slower"
            )
        if "float32" not in {*facts.parameter_dtypes, *(tensor.dtype for tensor in facts.inputs)}:
            return Refuses("neither a weight nor an input is float32: there is nothing to lower")
        return Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        return [{"how": "cast"}, {"how": "autocast"}]

    def promise(self, facts: Facts, options: Options) -> float:
        return 1.3

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        import torch

        from togi.techniques.precision.lowering.cast import lower

        return lower(candidate, torch.bfloat16, str(options["how"]))
