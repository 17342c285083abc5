"""Operators that reduce, sort or scan along dimensions."""

from __future__ import annotations

from togi.graph.dependence.rules.elementwise import pointwise
from togi.graph.dependence.rules.registry import Answer, Operands, mixing, rule


@rule(
    "sum nansum mean nanmean amax amin aminmax logsumexp max min argmax argmin prod any all var std var_mean std_mean "
    "linalg_vector_norm norm median nanmedian kthvalue mode count_nonzero"
)
def _reduced(given: Operands) -> Answer:
    """The rows of a reduction. Without dimensions all of them are reduced."""
    arguments = given.call.arguments
    if "other" in arguments:
        return pointwise(given)
    source = len(given["self"].shape)
    asked = arguments.get("dim")
    listed = range(source) if asked is None or asked == [] else [asked] if isinstance(asked, int) else asked
    gone = {dim % max(source, 1) for dim in listed}
    state = given.kept("self", list(gone))
    return state if given["keepdim"] else state.at(state.dim - sum(dim < state.dim for dim in gone))


mixing(
    "_softmax _log_softmax softmax log_softmax _safe_softmax cumsum cumprod logcumsumexp cummax cummin sort topk "
    "argsort glu",
    lambda given: [given["dim"]],
)
mixing("_fft_r2c _fft_c2r _fft_c2c", lambda given: given["dim"])
