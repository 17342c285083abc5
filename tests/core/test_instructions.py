"""Where sums of 8-bit products are clipped, and what a file depends on that was proven where they are not."""

from __future__ import annotations

import pytest

from togi.core.instructions import (
    EXACT_INT8,
    EXACT_ONEDNN_INT8,
    exact_int8,
    exact_onednn_int8,
    has_vnni,
    lacking,
    saturates,
)

AVX512 = ("avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl")
SATURATING = {
    "Haswell to Comet Lake, Zen 1 to 3": ("avx2", "fma"),
    "Skylake-SP": AVX512,
    "AVX-512 without VNNI takes precedence": (*AVX512, "avx_vnni"),
}
EXACT = {
    "Ice Lake, Zen 4": (*AVX512, "avx512_vnni"),
    "Sapphire Rapids": (*AVX512, "avx512_vnni", "avx_vnni", "amx_int8"),
    "Alder Lake": ("avx2", "avx_vnni"),
    "Arm": ("asimd", "asimddp"),
    "Arm without dot products": ("asimd",),
    "not known": (),
}


@pytest.mark.parametrize("flags", SATURATING.values(), ids=SATURATING)
def test_without_vnni_sums_are_clipped(flags: tuple[str, ...]) -> None:
    assert saturates(flags)
    assert exact_int8(flags) == exact_onednn_int8(flags, "") == ()
    assert "VNNI" in lacking((EXACT_INT8,), flags, "")
    assert "VNNI" in lacking((EXACT_ONEDNN_INT8,), flags, "")


@pytest.mark.parametrize("flags", EXACT.values(), ids=EXACT)
def test_with_vnni_or_elsewhere_they_are_exact(flags: tuple[str, ...]) -> None:
    assert not saturates(flags)
    assert lacking((*exact_int8(flags), *exact_onednn_int8(flags, "")), flags, "") == ""


@pytest.mark.parametrize(
    ("limit", "clipped"), [("AVX2", True), ("AVX512_CORE", True), ("AVX512_CORE_VNNI", False), ("AVX2_VNNI", False)]
)
def test_a_limit_of_onednn_clips_what_uses_onednn_alone(limit: str, clipped: bool) -> None:
    flags = EXACT["Sapphire Rapids"]
    assert saturates(flags, limit) is clipped
    assert bool(lacking((EXACT_ONEDNN_INT8,), flags, limit)) is clipped
    assert lacking((EXACT_INT8,), flags, limit) == ""
    assert exact_onednn_int8(flags, limit) == (() if clipped else (EXACT_ONEDNN_INT8,))


def test_a_limit_to_avx2_rules_out_the_vnni_of_avx512() -> None:
    """A Zen 4 has no other: oneDNN computes there as with AVX2 alone."""
    zen4, sapphire_rapids = EXACT["Ice Lake, Zen 4"], EXACT["Sapphire Rapids"]
    for limit in ("AVX2_VNNI", "AVX2_VNNI_2"):
        assert saturates(zen4, limit)
        assert not has_vnni(zen4, limit)
        assert "VNNI" in lacking((EXACT_ONEDNN_INT8,), zen4, limit)
        assert not saturates(sapphire_rapids, limit)
    assert not saturates(zen4, "AVX512_CORE_VNNI")


def test_vnni_is_where_a_processor_has_it_and_no_limit_rules_it_out() -> None:
    assert {name for name, flags in {**SATURATING, **EXACT}.items() if has_vnni(flags)} == {
        "Ice Lake, Zen 4",
        "Sapphire Rapids",
        "Alder Lake",
    }
    assert not has_vnni(EXACT["Ice Lake, Zen 4"], "AVX512_CORE")


def test_what_a_later_version_needs_counts_as_lacking() -> None:
    assert "'apx'" in lacking(("apx",), EXACT["Ice Lake, Zen 4"], "")


def test_nothing_needed_is_nothing_lacking() -> None:
    assert lacking((), SATURATING["Skylake-SP"], "AVX2") == ""
