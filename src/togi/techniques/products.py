"""Whether matrix products, rather than convolutions, are what a subject computes: techniques that quantize decide by
it what is worth trying."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.records import Facts

_PRODUCTS = frozenset(
    {"linear", "matmul", "bmm", "addmm", "einsum", "multiheadattention", "multi_head_attention_forward"}
)


def mostly_products(facts: Facts) -> bool:
    """At least as many calls of matrix products as of convolutions. By modules where calls are not known."""
    calls = facts.functions or {name.lower(): count for name, count in facts.modules.items()}
    convolutions = _count(calls, (name for name in calls if name.startswith("conv")))
    return _count(calls, _PRODUCTS) >= max(convolutions, 1)


def _count(calls: dict[str, int], names: Iterable[str]) -> int:
    return sum(calls.get(name, 0) for name in names)
