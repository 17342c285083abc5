"""Whether matrix products, rather than convolutions, are what a subject computes: techniques that quantize decide by
it what is worth trying."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.records import Facts
from togi.techniques.base import Refuses

_PRODUCTS = frozenset(
    {"linear", "matmul", "bmm", "addmm", "einsum", "multiheadattention", "multi_head_attention_forward"}
)
FOUR_BITS_FROM = 1 << 26
"""Parameters. With 22 million (MiniLM) weights of 8 bits are as fast; a decoder of 135 million gains 1.1 to 1.2 x."""


def no_gain_by_four_bits(facts: Facts, *, vnni: bool) -> Refuses | None:
    """Why weights of 4 bits would gain nothing over those of 8; None where they may. ``vnni``: of the processor."""
    if not mostly_products(facts):
        return Refuses("fewer matrix products than convolutions: reading weights is not what takes the time")
    if facts.parameters < FOUR_BITS_FROM:
        return Refuses(
            f"it has {facts.parameters / 1e6:,.0f} million parameters: from {FOUR_BITS_FROM / 1e6:,.0f} million on "
            "4 bits gain over 8, since reading those takes the time"
        )
    return None if vnni else Refuses("this CPU has no instructions for products of 8 bits (VNNI), by which 4 bits gain")


def mostly_products(facts: Facts) -> bool:
    """At least as many calls of matrix products as of convolutions. By modules where calls are not known."""
    calls = facts.functions or {name.lower(): count for name, count in facts.modules.items()}
    convolutions = _count(calls, (name for name in calls if name.startswith("conv")))
    return _count(calls, _PRODUCTS) >= max(convolutions, 1)


def _count(calls: dict[str, int], names: Iterable[str]) -> int:
    return sum(calls.get(name, 0) for name in names)
