"""Operators that make tensors of a given size."""

from __future__ import annotations

from togi.graph.dependence.recording import RecordedTensor
from togi.graph.dependence.rules.registry import Answer, Operands, rule
from togi.graph.dependence.rules.views import constant
from togi.graph.dependence.state import Depends, Rows, Times


@rule(
    "zeros ones full empty new_zeros new_ones new_full new_empty zeros_like ones_like full_like empty_like "
    "new_empty_strided empty_strided",
    sizes="size stride",
    shape_only=True,
)
def _filled(given: Operands) -> Answer:
    """One value everywhere (``empty`` has none that anybody may read)."""
    state = given.states.get(given["self"]) if isinstance(given["self"], RecordedTensor) else None
    if isinstance(state, Rows) and given["self"].shape == given.result.shape:
        return Rows(state.dim, state.outer, state.inner)
    return constant(given.result)


@rule("arange", sizes="end")
def _arange(given: Operands) -> Answer:
    """The numbers of the rows."""
    given_start, step = given["start"], given["step"]
    if given["end"] == Times(1) and given_start in (None, 0) and step in (None, 1):
        return Rows(0, numbers=True)
    raise Depends(f"{given.call.name} counts by the number of rows")
