"""The shared body of ``bf16`` and ``fp16``, which differ in the type and in the instructions that compute it."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from togi.core.records import Facts
from togi.techniques.base import Applies, LowerPrecision, Options, Refuses

if TYPE_CHECKING:
    import torch

    from togi.graph.candidate import Candidate

BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Processor flags of instructions for bfloat16 (x86, x86, ARM)."""
BEFORE_BFLOAT16 = frozenset({"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"})
"""Limits of oneDNN (``ONEDNN_MAX_CPU_ISA``) without those of x86: it emulates the type, and OpenVINO may fail."""
FLOAT16_FLAGS = frozenset({"avx512_fp16", "amx_fp16", "fphp", "asimdhp"})
"""The same for float16 (x86, x86, ARM, ARM)."""
BEFORE_FLOAT16 = BEFORE_BFLOAT16 | {"AVX512_CORE_BF16"}


class HalfPrecision(LowerPrecision):
    """Computes in a 16-bit floating-point type, with the caller's own types outside."""

    type_name: ClassVar[str]
    """``bfloat16`` or ``float16``."""
    cpu_flags: ClassVar[frozenset[str]]
    """A CPU without any of these would emulate the type."""
    onednn_limits: ClassVar[frozenset[str]]
    """Limits of oneDNN under which it would do so too."""

    @abc.abstractmethod
    def dtype(self) -> torch.dtype:
        """The type itself. (A method, so that planning does not import torch.)"""

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.device == "cpu" and not self.cpu_flags & set(facts.machine.cpu_flags):
            x86 = ", ".join(flag for flag in sorted(self.cpu_flags, reverse=True) if flag.startswith(("avx", "amx")))
            return Refuses(f"this CPU has no {self.type_name} instructions ({x86}): it would be emulated, and slower")
        if facts.device == "cpu" and facts.machine.onednn_limit in self.onednn_limits:
            return Refuses(limited(facts.machine.onednn_limit, self.type_name))
        if "float32" not in {*facts.parameter_dtypes, *(tensor.dtype for tensor in facts.inputs)}:
            return Refuses("neither a weight nor an input is float32: there is nothing to lower")
        return Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        return [{"how": "cast"}, {"how": "autocast"}]

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.precision.lowering.cast import lower

        return lower(candidate, self.dtype(), str(options["how"]))


def limited(limit: str, type_name: str) -> str:
    """Why a type is not tried although the CPU has instructions for it."""
    return f"ONEDNN_MAX_CPU_ISA={limit} keeps oneDNN from the CPU's {type_name} instructions: unset it"
