"""Instructions of a processor on which not the speed but the answers of 8-bit products depend.

A processor without VNNI adds two products of 8-bit numbers up in 16 bits, and clips what does not fit. So a file that
answers rightly where VNNI is may answer wrongly elsewhere, without an error.

Sources: the note at ``kOrtSessionOptionsAvx2PrecisionMode`` in ONNX Runtime's
``onnxruntime_session_options_config_keys.h``; oneDNN's "Nuances of int8 computations"; ONNX Runtime's choice of kernels
(``onnxruntime/core/mlas/lib/platform.cpp``), whose order ``saturates`` follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

EXACT_INT8 = "int8"
"""8-bit products are summed exactly, by what chooses its kernels from the processor alone (ONNX Runtime)."""
EXACT_ONEDNN_INT8 = "onednn_int8"
"""The same, by what uses oneDNN (OpenVINO), which ``ONEDNN_MAX_CPU_ISA`` may keep from the processor's instructions."""

_AVX512_CORE = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
_VNNI = frozenset({"avx512_vnni", "avx_vnni"})
DECIDING = _AVX512_CORE | _VNNI | {"avx2"}
"""Flags of a processor by which ``saturates`` decides."""
_LIMITS_WITHOUT_VNNI = frozenset({"SSE41", "AVX", "AVX2", "AVX512_CORE"})
_LIMITS_TO_AVX2 = frozenset({"AVX2_VNNI", "AVX2_VNNI_2"})
"""With these the VNNI of AVX-512 is ruled out, so that a processor without that of AVX computes as with AVX2 alone."""


def saturates(cpu_flags: Collection[str], onednn_limit: str = "") -> bool:
    """Whether sums of 8-bit products are clipped here, unless weights have 7 bits.

    Args:
        cpu_flags: of the processor; other than x86's never saturate.
        onednn_limit: ``ONEDNN_MAX_CPU_ISA`` where oneDNN computes.
    """
    flags = frozenset(cpu_flags)
    if "avx2" not in flags:
        return False
    if onednn_limit in _LIMITS_WITHOUT_VNNI:
        return True
    if onednn_limit in _LIMITS_TO_AVX2:
        return "avx_vnni" not in flags
    if flags >= _AVX512_CORE:  # then the kernels are those of AVX-512, whatever AVX-VNNI could do
        return "avx512_vnni" not in flags
    return not _VNNI & flags


def has_vnni(cpu_flags: Collection[str], onednn_limit: str = "") -> bool:
    """Whether products of 8 bits are multiplied by instructions of their own (x86). What is quantized while it runs is
    slower elsewhere, or not quantized at all."""
    return bool(_VNNI & set(cpu_flags)) and not saturates(cpu_flags, onednn_limit)


def exact_int8(cpu_flags: Collection[str]) -> tuple[str, ...]:
    """What a file of 8-bit products depends on that was proven here: nothing where its weights have 7 bits."""
    return () if saturates(cpu_flags) else (EXACT_INT8,)


def exact_onednn_int8(cpu_flags: Collection[str], onednn_limit: str) -> tuple[str, ...]:
    """The same where oneDNN computes."""
    return () if saturates(cpu_flags, onednn_limit) else (EXACT_ONEDNN_INT8,)


def lacking(needed: Iterable[str], cpu_flags: Collection[str], onednn_limit: str) -> str:
    """The first of ``needed`` that this processor lacks, in words; empty where it lacks nothing. Needs that are not
    known (a later version wrote them) count as lacking."""
    for name in needed:
        if name not in _LACKING:
            return f"the instructions '{name}', which this version does not know"
        if saturates(cpu_flags, onednn_limit if name == EXACT_ONEDNN_INT8 else ""):
            return _LACKING[name]
    return ""


_LACKING = {
    EXACT_INT8: "instructions that sum 8-bit products exactly (VNNI)",
    EXACT_ONEDNN_INT8: "instructions that sum 8-bit products exactly (VNNI, not ruled out by ONEDNN_MAX_CPU_ISA)",
}
