"""Operators that pick and write by index."""

from __future__ import annotations

from typing import Any

import torch

from togi.graph.dependence.recording import RecordedTensor
from togi.graph.dependence.rules.registry import Answer, Found, Operands, agreed, aligned, rule
from togi.graph.dependence.state import SAME, Depends, Rows, Same

_MASKS = (torch.bool, torch.uint8)


@rule("embedding")
def _embedding(given: Operands) -> Answer:
    return given.rows("indices")


@rule("index_select")
def _index_select(given: Operands) -> Answer:
    dim = given["dim"] % given.rank
    if isinstance(given.state("index"), Rows):
        return given.rows("index").at(dim)
    return given.kept("self", [dim])


@rule("take")
def _take(given: Operands) -> Answer:
    return given.rows("index")


@rule("gather")
def _gather(given: Operands) -> Answer:
    """Each row of the index in its own row; a table that is the same for all only along the dimension of the index."""
    source, index, dim = given.state("self"), given.state("index"), given["dim"] % given.rank
    if isinstance(source, Same) and isinstance(index, Rows) and index.dim == dim:
        return index
    return _in_own_row(given, [source, index], dim)


def _in_own_row(given: Operands, states: list[Found], dim: int) -> Rows:
    if len(set(states)) != 1 or not isinstance(states[0], Rows) or states[0].dim == dim:
        raise Depends(f"{given.call.name} reaches other rows by index")
    return states[0]


@rule("scatter scatter_add scatter_reduce")
def _scatter(given: Operands) -> Answer:
    names = [name for name in ("self", "index", "src") if isinstance(given[name], RecordedTensor)]
    return _in_own_row(given, [given.state(name) for name in names], given["dim"] % given.rank)


@rule("index_add index_copy")
def _index_add(given: Operands) -> Answer:
    if isinstance(given.state("index"), Rows):
        raise Depends(f"{given.call.name} reaches other rows by index")
    return _in_own_row(given, [given.state("self"), given.state("source")], given["dim"] % given.rank)


@rule("slice_scatter select_scatter")
def _assigned(given: Operands) -> Answer:
    dim, state, source = given["dim"] % given.rank, given.state("self"), given.state("src")
    dropped = len(given["src"].shape) < given.rank
    if isinstance(source, Rows) and dropped:
        source = source.at(source.dim + int(dim <= source.dim))
    return _in_own_row(given, [state, source], dim)


@rule("bucketize")
def _bucketize(given: Operands) -> Answer:
    """Each number meets all boundaries."""
    return given.rows("self")


@rule("searchsorted")
def _searchsorted(given: Operands) -> Answer:
    edges, state = given.state("sorted_sequence"), given.state("self")
    if isinstance(edges, Same) and len(given["sorted_sequence"].shape) == 1 and given["sorter"] is None:
        return given.rows("self")
    if edges != state or given["sorter"] is not None:
        raise Depends(f"{given.call.name} reaches other rows")
    return _in_own_row(given, [edges, state], given.rank - 1)


@rule("index _unsafe_index", numbers=True)
def _index(given: Operands) -> Answer:
    if isinstance(given.state("self"), Rows) and given.state("self").numbers:  # type: ignore[union-attr]
        raise Depends(f"{given.call.name} reads row numbers as values")
    return _picked(given)


def _picked(given: Operands) -> Rows:
    """The rows of ``x[i, j]``: the index tensors' common dimensions stand in place of those that they index, or in
    front where these are not neighbours."""
    source, indices = given["self"], list(given["indices"])
    at = [dim for dim, index in enumerate(indices) if index is not None]
    if any(indices[dim].dtype in _MASKS for dim in at):
        raise Depends(f"{given.call.name} picks by a mask")
    wide = max(len(indices[dim].shape) for dim in at)
    neighbours = at == list(range(at[0], at[0] + len(at)))
    place = at[0] if neighbours else 0
    state, (common, numbered) = given.states[source], _common(given, indices, at, wide)
    own = isinstance(state, Rows) and numbered == [state.dim] and (state.outer, state.inner) == (1, 1)
    if isinstance(common, Rows) and (own or (isinstance(state, Same) and not numbered)):
        return common.at(common.dim + place)
    if isinstance(state, Same) or isinstance(common, Rows) or state.dim in at:
        raise Depends(f"{given.call.name} reaches other rows by index")
    gone = sum(dim < state.dim for dim in at)
    return state.at(state.dim - gone + (wide if not neighbours or at[0] < state.dim else 0))


def _common(given: Operands, indices: list[Any], at: list[int], wide: int) -> tuple[Found, list[int]]:
    """The rows of all index tensors in their broadcast form, and which of these count the rows."""
    states = {dim: aligned(given.states[indices[dim]], len(indices[dim].shape), wide) for dim in at}
    numbered = [dim for dim, state in states.items() if isinstance(state, Rows) and state.numbers]
    plainly = [Rows(s.dim, s.outer, s.inner) if isinstance(s, Rows) else s for s in states.values()]
    return agreed(given.call, plainly), numbered


@rule("index_put _index_put_impl _unsafe_index_put", numbers=True)
def _index_put(given: Operands) -> Answer:
    """Rows are written by a mask of each row, with one value for all; or each row at its own number."""
    state, values, indices = given.state("self"), given["values"], list(given["indices"])
    at = [dim for dim, index in enumerate(indices) if index is not None]
    if not isinstance(state, Rows) or state.numbers:
        raise Depends(f"{given.call.name} writes rows into what is the same for all")
    masks = [dim for dim in at if indices[dim].dtype in _MASKS]
    if masks:
        return _masked(given, state, values, indices, at)
    picked = _picked(given)
    source = given.states[values]
    if isinstance(source, Rows) and aligned(source, len(values.shape), _rank_of_picked(given, indices, at)) != picked:
        raise Depends(f"{given.call.name} writes rows into others")
    return state


def _rank_of_picked(given: Operands, indices: list[Any], at: list[int]) -> int:
    return len(given["self"].shape) - len(at) + max(len(indices[dim].shape) for dim in at)


def _masked(given: Operands, state: Rows, values: RecordedTensor, indices: list[Any], at: list[int]) -> Rows:
    """All rows decide how many are chosen, so that only one value can be written."""
    mask = given.states[indices[at[0]]]
    wide = len(indices[at[0]].shape)
    one_value = isinstance(given.states[values], Same) and all(size == 1 for size in values.shape)
    own = aligned(mask, 0, at[0])
    inside = at[0] <= state.dim < at[0] + wide
    if len(at) == 1 and one_value and own == (state if inside else SAME):
        return state
    raise Depends(f"{given.call.name} writes by a mask of all rows")
