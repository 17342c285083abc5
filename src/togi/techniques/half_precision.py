"""The shared body of ``bf16`` and ``fp16``, which differ in the type and in the instructions that compute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from togi.core.errors import Refused
from togi.core.records import Facts
from togi.techniques.base import Applies, LowerPrecision, Options, Refuses

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate

_BEFORE_BFLOAT16 = frozenset({"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"})


@dataclass(frozen=True)
class _Instructions:
    """Instructions that compute a type on a CPU, which would else be emulated."""

    flags: frozenset[str]
    """Of processors that have such instructions: x86's, then ARM's."""
    ruled_out_by: frozenset[str]
    """Limits of oneDNN (``ONEDNN_MAX_CPU_ISA``) without those of x86: it emulates the type, and OpenVINO may fail."""


_INSTRUCTIONS = {
    "bfloat16": _Instructions(frozenset({"avx512_bf16", "amx_bf16", "bf16"}), _BEFORE_BFLOAT16),
    "float16": _Instructions(
        frozenset({"avx512_fp16", "amx_fp16", "fphp", "asimdhp"}), _BEFORE_BFLOAT16 | {"AVX512_CORE_BF16"}
    ),
}


def emulated(facts: Facts, type_name: str, consequence: str) -> Refuses | None:
    """Refuse a CPU that does not compute in the type. ``consequence``: what would happen there."""
    instructions, limit = _INSTRUCTIONS[type_name], facts.machine.onednn_limit
    if not instructions.flags & set(facts.machine.cpu_flags):
        x86 = ", ".join(sorted((flag for flag in instructions.flags if flag.startswith(("avx", "amx"))), reverse=True))
        return Refuses(f"this CPU has no {type_name} instructions ({x86}): {consequence}")
    if limit in instructions.ruled_out_by:
        return Refuses(f"ONEDNN_MAX_CPU_ISA={limit} keeps oneDNN from the CPU's {type_name} instructions: unset it")
    return None


def emulated_rest(facts: Facts) -> Refuses | None:
    """Refuse a CPU on which ``rest=bf16`` changes nothing."""
    return emulated(facts, "bfloat16", "what is not quantized would stay in float32")


def with_rest(candidate: Candidate, options: Options) -> Candidate:
    """Let OpenVINO compute in bfloat16 what is not quantized, where the options ask for it (``rest=bf16``). Raises
    Refused on a CPU that cannot."""
    if options.get("rest") != "bf16":
        return candidate
    if refusal := emulated_rest(candidate.facts):
        raise Refused(refusal.reason)
    from togi.techniques.engine.programs.openvino_library import ask_for_bf16

    return candidate.with_pass("openvino", ask_for_bf16)


class HalfPrecision(LowerPrecision):
    """Computes in a 16-bit floating-point type, with the caller's own types outside."""

    type_name: ClassVar[str]
    """``bfloat16`` or ``float16``, as torch calls it."""

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.device == "cpu" and (refusal := emulated(facts, self.type_name, "it would be emulated, and slower")):
            return refusal
        if "float32" not in {*facts.parameter_dtypes, *(tensor.dtype for tensor in facts.inputs)}:
            return Refuses("neither a weight nor an input is float32: there is nothing to lower")
        return Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        return [{"how": "autocast"}] if facts.train else [{"how": "cast"}, {"how": "autocast"}]

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        import torch

        from togi.techniques.precision.lowering.cast import lower

        return lower(candidate, getattr(torch, self.type_name), str(options["how"]))
