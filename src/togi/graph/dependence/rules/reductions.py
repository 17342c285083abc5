"""Operators that reduce, sort or scan along dimensions."""

from __future__ import annotations

from togi.graph.dependence.rules.elementwise import pointwise
from togi.graph.dependence.rules.registry import Answer, Operands, mixing, rule
from togi.torch_internals.dimensions import MIXED, mixed_dimensions, reduced_dimensions


@rule(
    "sum nansum mean nanmean amax amin aminmax logsumexp max min argmax argmin prod any all var std var_mean std_mean "
    "linalg_vector_norm norm median nanmedian kthvalue mode count_nonzero"
)
def _reduced(given: Operands) -> Answer:
    """The rows of a reduction. Without dimensions all of them are reduced."""
    if "other" in given.call.arguments:
        return pointwise(given)
    gone = reduced_dimensions(given.call.arguments, len(given["self"].shape))
    state = given.kept("self", gone)
    return state if given["keepdim"] else state.at(state.dim - sum(dim < state.dim for dim in gone))


@rule(" ".join(MIXED))
def _mixed(given: Operands) -> Answer:
    dims = mixed_dimensions(given.call.operator, given.call.arguments, given.rank)
    return given.kept(next(iter(given.call.arguments)), dims)


mixing("_fft_r2c _fft_c2r _fft_c2c", lambda given: given["dim"])
