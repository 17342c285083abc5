"""Operators that move, merge, split, drop or repeat dimensions."""

from __future__ import annotations

from typing import Any

from togi.graph.dependence.recording import RecordedTensor
from togi.graph.dependence.rules.registry import Answer, Found, Operands, agreed, mixing, rule
from togi.graph.dependence.state import SAME, Depends, Rows, Same, Times, plain, product, quotient
from togi.torch_internals.dimensions import moved_dimensions


@rule("view _unsafe_view reshape _reshape_alias", sizes="size shape stride", numbers=True)
def reshaped(given: Operands) -> Answer:
    """Memory order stays: as many elements stand before and after each row as did."""
    state, source, target = given.rows("self"), given["self"].shape, given.result.shape
    if given["dtype"] is not None:
        return given.kept("self", [-1])
    before = product(source[: state.dim]) * state.outer
    after = state.inner * product(source[state.dim + 1 :])
    for dim, size in enumerate(target):
        if not isinstance(size, Times) or not all(map(plain, target[:dim] + target[dim + 1 :])):
            continue
        outer, inner = quotient(before, product(target[:dim])), quotient(after, product(target[dim + 1 :]))
        if outer is not None and inner is not None and not (state.numbers and (outer, inner) != (1, 1)):
            return Rows(dim, outer, inner, state.numbers)
    raise Depends(f"{given.call.name} merges rows with each other")


@rule("permute transpose swapaxes transpose_copy t unsqueeze squeeze", numbers=True)
def _moved(given: Operands) -> Answer:
    state = given.rows("self")
    dims = moved_dimensions(given.call.operator, given.call.arguments, given["self"].shape)
    return state.at(dims.index(state.dim))


@rule("expand broadcast_to", sizes="size", numbers=True)
def _expand(given: Operands) -> Answer:
    """The value that is the same for all rows is repeated for each."""
    state = given.state("self")
    if isinstance(state, Rows):
        return state.at(state.dim + given.rank - len(given["self"].shape))
    return constant(given.result)


@rule("repeat", sizes="repeats")
def _repeat(given: Operands) -> Answer:
    state, source, repeats = given.state("self"), given["self"].shape, given["repeats"]
    new = len(repeats) - len(source)
    if isinstance(state, Rows):
        times = repeats[state.dim + new]
        return Rows(state.dim + new, state.outer * times if plain(times) else -1, state.inner)
    dims = [dim for dim, times in enumerate(repeats) if not plain(times)]
    if len(dims) != 1 or not isinstance(repeats[dims[0]], Times):
        raise Depends(f"{given.call.name} repeats by the number of rows")
    own = source[dims[0] - new] if dims[0] >= new else 1
    return Rows(dims[0], 1, repeats[dims[0]].each * own)


def constant(filled: RecordedTensor) -> Answer:
    """The state of a tensor that holds one value for all rows, wherever they are."""
    if all(map(plain, filled.shape)):
        return SAME
    dims = [dim for dim, size in enumerate(filled.shape) if isinstance(size, Times)]
    return Rows(dims[0], 1, filled.shape[dims[0]].each) if len(dims) == 1 else Rows(-1)


@rule("select unbind")
def _picked(given: Operands) -> Answer:
    given.kept("self", [given["dim"]])
    return _moved(given)


@rule("slice", sizes="start end", numbers=True)
def _slice(given: Operands) -> Answer:
    dim, shape = given["dim"] % given.rank, given["self"].shape
    state = given.rows("self")
    if dim != state.dim:
        if not plain(given["start"]) or not (plain(given["end"]) or given.result.shape == shape):
            raise Depends(f"{given.call.name} cuts by the number of rows")
        return state
    return _blocks(given, state, given["start"] or 0, given["end"], given["step"])


def _blocks(given: Operands, state: Rows, start: Any, end: Any, step: Any = 1) -> Rows:
    """Whole blocks of all rows: one half of what was doubled with ``torch.cat([x, x])``."""
    size, block = given["self"].shape[state.dim], state.inner
    start = Times(0) if start == 0 else _from_the_front(start, size)
    end = size if end is None or (isinstance(end, int) and end >= 1 << 62) else _from_the_front(end, size)
    if step == 1 and isinstance(start, Times) and isinstance(end, Times):
        first, last = quotient(start.each, block), quotient(min_of(end.each, size.each), block)
        if first is not None and last is not None and not (state.numbers and (first, last) != (0, 1)):
            return Rows(state.dim, last - first, state.inner, state.numbers)
    raise Depends(f"{given.call.name} takes some rows and leaves others")


def _from_the_front(at: Any, size: Any) -> Any:
    behind = isinstance(at, Times) and isinstance(at.each, int) and at.each < 0
    return Times(at.each + size.each) if behind else at


def min_of(one: Any, other: Any) -> Any:
    """The smaller one of two numbers; of expressions the first, whose shape is then checked."""
    return min(one, other) if isinstance(one, int) and isinstance(other, int) else one


@rule("split unsafe_split split_with_sizes unsafe_split_with_sizes split_copy", sizes="split_size split_sizes")
def _split(given: Operands) -> Answer:
    state, dim = given.rows("self"), given["dim"] % given.rank
    sizes = given["split_size"] if "split_size" in given.call.arguments else given["split_sizes"]
    fixed = all(map(plain, sizes if isinstance(sizes, list) else [sizes]))
    if dim != state.dim and fixed:
        return state
    if dim != state.dim or fixed:
        raise Depends(f"{given.call.name} cuts by the number of rows")
    parts, start = [], 0
    for part in given.call.results:
        size = part.shape[dim]
        if not isinstance(size, Times):
            raise Depends(f"{given.call.name} separates rows")
        parts.append(_blocks(given, state, Times(start), Times(start + size.each)))
        start += size.each
    return parts


mixing("unfold", lambda given: [given["dimension"]])


@rule("diagonal")
def _diagonal(given: Operands) -> Answer:
    gone = [given["dim1"] % (given.rank + 1), given["dim2"] % (given.rank + 1)]
    state = given.kept("self", gone)
    return state.at(state.dim - sum(dim < state.dim for dim in gone))


@rule("as_strided", sizes="size stride")
def _as_strided(given: Operands) -> Answer:
    """Windows within each row of a contiguous tensor, as ``torch.stft`` takes them."""
    source, state = given["self"], given.rows("self")
    sizes, strides, offset = given["size"], given["stride"], given["storage_offset"]
    if state.dim == 0 and (state.outer, state.inner) == (1, 1) and _contiguous(source) and offset is None:
        row = source.stride[0]
        for dim, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
            others = [pair for at, pair in enumerate(zip(sizes, strides, strict=True)) if at != dim]
            known = all(isinstance(number, int) for pair in others for number in pair) and isinstance(row, int)
            if size == Times(1) and stride == row and known and sum((n - 1) * step for n, step in others) < row:
                return Rows(dim)
    raise Depends(f"{given.call.name} reads memory by strides")


def _contiguous(value: RecordedTensor) -> bool:
    step: Any = 1
    for size, stride in zip(reversed(value.shape[1:]), reversed(value.stride[1:]), strict=True):
        if size != 1 and stride != step:
            return False
        step = step * size if plain(size) else -1
    return bool(value.stride[0] == step)


@rule("cat")
def _cat(given: Operands) -> Answer:
    dim = given["dim"] % given.rank
    parts = [part for part in given["tensors"] if part.shape != (0,) or given.rank == 1]
    states = [given.states[part] for part in parts]
    return _all_have_rows(given, states, agreed_blocks(given, states, dim))


def agreed_blocks(given: Operands, states: list[Any], dim: int) -> Rows | Same:
    """Batches one after the other are more blocks of one batch."""
    if all(isinstance(state, Rows) and state.dim == dim for state in states):
        if len({state.inner for state in states}) == 1:
            return Rows(dim, sum(state.outer for state in states), states[0].inner)
        raise Depends(f"{given.call.name} meets rows in different order")
    return agreed(given.call, states)


@rule("stack")
def _stack(given: Operands) -> Answer:
    dim = given["dim"] % given.rank
    states = [given.states[part] for part in given["tensors"]]
    rows = _all_have_rows(given, states, agreed(given.call, states))
    return rows.at(rows.dim + int(dim <= rows.dim))


def _all_have_rows(given: Operands, states: list[Found], together: Found) -> Rows:
    if isinstance(together, Same) or any(isinstance(state, Same) for state in states):
        raise Depends(f"{given.call.name} puts rows next to what is the same for all")
    return together
