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
FLOAT16_FLAGS = frozenset({"avx512_fp16", "amx_fp16", "fphp", "asimdhp"})
"""The same for float16 (x86, x86, ARM, ARM)."""


class HalfPrecision(LowerPrecision):
    """Computes in a 16-bit floating-point type, with the caller's own types outside."""

    type_name: ClassVar[str]
    """``bfloat16`` or ``float16``."""
    cpu_flags: ClassVar[frozenset[str]]
    """A CPU without any of these would emulate the type."""

    @abc.abstractmethod
    def dtype(self) -> torch.dtype:
        """The type itself. (A method, so that planning does not import torch.)"""

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.device == "cpu" and not self.cpu_flags & set(facts.machine.cpu_flags):
            x86 = ", ".join(flag for flag in sorted(self.cpu_flags, reverse=True) if flag.startswith(("avx", "amx")))
            return Refuses(f"this CPU has no {self.type_name} instructions ({x86}): it would be emulated, and slower")
        if "float32" not in {*facts.parameter_dtypes, *(tensor.dtype for tensor in facts.inputs)}:
            return Refuses("neither a weight nor an input is float32: there is nothing to lower")
        return Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        return [{"how": "cast"}, {"how": "autocast"}]

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.precision.lowering.cast import lower

        return lower(candidate, self.dtype(), str(options["how"]))
