"""Products of matrices and what else works on the last two dimensions."""

from __future__ import annotations

from typing import Any

from togi.graph.dependence.rules.registry import Answer, Found, Operands, agreed, aligned, mixing, rule
from togi.graph.dependence.state import Depends, Rows, Same


@rule("mm bmm")
def _product(given: Operands) -> Answer:
    return product_of(given, "self", "mat2")


@rule("addmm baddbmm _addmm_activation")
def _with_bias(given: Operands) -> Answer:
    left, right = ("batch1", "batch2") if "batch1" in given.call.arguments else ("mat1", "mat2")
    bias = aligned(given.state("self"), len(given["self"].shape), given.rank)
    return agreed(given.call, [bias, product_of(given, left, right)])


def product_of(given: Operands, left: str, right: str) -> Found:
    """Rows of the left matrices, columns of the right ones, or the matrices themselves."""
    left_state, right_state, last = given.state(left), given.state(right), given.rank - 1
    summed = (isinstance(left_state, Rows) and left_state.dim == last) or (
        isinstance(right_state, Rows) and right_state.dim == last - 1
    )
    within = any(isinstance(state, Rows) and state.dim >= last - 1 for state in (left_state, right_state))
    both = isinstance(left_state, Rows) and isinstance(right_state, Rows)
    if summed or (both and within):
        raise Depends(f"{given.call.name} multiplies rows with each other")
    return agreed(given.call, [left_state, right_state])


mixing("mv", lambda _: [-1])
mixing("linear", lambda _: [-1], "input")


@rule("_cdist_forward _euclidean_dist")
def _distances(given: Operands) -> Answer:
    left, right, rank = given.state("x1"), given.state("x2"), given.rank
    moved = []
    for name, state in (("x1", left), ("x2", right)):
        if isinstance(state, Rows):
            of = len(given[name].shape)
            if state.dim == of - 1 or (state.dim == of - 2 and not isinstance(left if name == "x2" else right, Same)):
                raise Depends(f"{given.call.name} compares rows with each other")
            last = rank - 1 if name == "x2" else rank - 2
            moved.append(state.at(last if state.dim == of - 2 else state.dim + rank - of))
    return agreed(given.call, moved)


@rule(
    "_linalg_svd linalg_qr _linalg_eigh linalg_eig _linalg_eigvals linalg_eigvals linalg_inv_ex linalg_cholesky_ex "
    "_linalg_det _linalg_slogdet linalg_lu linalg_lu_factor_ex linalg_matrix_exp linalg_pinv cholesky_inverse "
    "linalg_householder_product triu tril"
)
def _matrices(given: Operands) -> Answer:
    """Each matrix by itself."""
    name = next(name for name, value in given.call.arguments.items() if value is next(given.tensors()))
    return given.kept(name, [-2, -1])


@rule("_linalg_solve_ex linalg_solve_triangular cholesky_solve linalg_lstsq")
def _solved(given: Operands) -> Answer:
    tensors = list(given.tensors())
    ranks = {len(tensor.shape) for tensor in tensors}
    states = [given.states[tensor] for tensor in tensors]
    together = agreed(given.call, states)
    if len(ranks) != 1 or isinstance(together, Same) or together.dim >= max(ranks) - 2:
        raise Depends(f"{given.call.name} works across the rows")
    return together


@rule("linalg_cross")
def _cross(given: Operands) -> Answer:
    states = [aligned(given.states[operand], len(operand.shape), given.rank) for operand in given.tensors()]
    together = agreed(given.call, states)
    if isinstance(together, Rows) and together.dim == given["dim"] % given.rank:
        raise Depends(f"{given.call.name} works across the rows")
    return together


_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable scaled_dot_product_attention"
)


@rule(_ATTENTION)
def _attention(given: Operands) -> Answer:
    """(B, H, T, D): samples and heads are apart; queries are where no position tells what they see."""
    mask = given["attn_mask"] if given["attn_mask"] is not None else given["attn_bias"]
    states: list[Any] = [given.state(name) for name in ("query", "key", "value")]
    if given["dropout_p"]:
        raise Depends(f"{given.call.name} draws random numbers")
    queries_alone = isinstance(states[0], Rows) and states[1] == states[2] and isinstance(states[1], Same)
    rank = len(given["query"].shape)
    if queries_alone and states[0].dim == rank - 2 and not given["is_causal"]:
        pass
    elif not (states[0] == states[1] == states[2] and isinstance(states[0], Rows) and states[0].dim < rank - 2):
        raise Depends(f"{given.call.name} lets rows see each other")
    if mask is not None:
        states.append(aligned(given.states[mask], len(mask.shape), rank))
    return [agreed(given.call, states), *[None] * (len(given.call.results) - 1)]
