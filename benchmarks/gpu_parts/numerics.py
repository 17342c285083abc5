"""The truth of the device is the CPU's; TensorFloat-32 is seen; 16 bits are never exact."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_parts.modules import MODULES, subject_of
from benchmarks.gpu_parts.row import Row, attempt

from togi.decide.faithful import MAX_UNITS
from togi.techniques import Refuses, technique
from togi.torch_internals.float32 import tf32_operators
from togi.verify.verdict import verify


def rows(device: str) -> Iterator[Row]:
    """The truth of the device is the CPU's; TensorFloat-32 is seen; 16 bits are never exact."""
    for name in MODULES:
        yield attempt(f"float64 of {name}", "1e-9 of the CPU's", same_truth, name, device)
    yield attempt("TensorFloat-32 of convolutions", "seen where the flags say it", tf32_seen, device)
    for half in ("fp16", "bf16"):
        yield attempt(f"{half} by a cast", "never exact", never_exact, half, device)


def same_truth(name: str, device: str) -> tuple[bool, str]:
    here, there = (subject_of(name, where)[1] for where in (device, "cpu"))
    pairs = [pair for one, other in zip(here.truth, there.truth, strict=True) for pair in zip(one, other, strict=True)]
    worst = max(float((a - b).norm() / b.norm()) for a, b in pairs)
    return worst <= 1e-9 and here.facts.precision == "float64", f"{worst:.1e}, truth in {here.facts.precision}"


def tf32_seen(device: str) -> tuple[bool | None, str]:
    operators = tf32_operators(device)
    if not operators:
        return None, "no operator rounds to TensorFloat-32 on this device"
    units = subject_of("convolutions", device)[1].facts.tf32_units
    return units > MAX_UNITS, f"eager's own error is {units:,.0f} x that of IEEE float32 ({', '.join(operators)})"


def never_exact(half: str, device: str) -> tuple[bool | None, str]:
    candidate, truth = subject_of("convolutions", device)
    approximate = technique(half)
    if isinstance(refusal := approximate.applies(candidate.facts), Refuses):
        return None, refusal.reason
    call = approximate.apply(candidate, {"how": "cast"}).runnable()
    report = verify(call, truth, candidate.samples, candidate.signature, seed=0, exact=approximate.exact)
    return not report.faithful and not report.problems, f"{report.units:,.0f} units"
