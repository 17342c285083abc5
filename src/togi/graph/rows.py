"""Rows that nobody uses: a slice moves up through the calls before it, so that they compute only what it keeps.

``head(norm(x + mlp(x))[:, 0])`` needs one row of ``x``, and one query of the attention that made it.

A *pick* is a slice with fixed numbers that keeps half of a dimension at most. It moves up through a call that computes
row by row, where nobody else sees the whole result. ``_RULES`` tells which operands have the rows of a call's result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from togi.graph.edit import EditableGraph, arguments, call_name, is_call, pure, set_arguments, shape
from togi.torch_internals.dimensions import mixed_dimensions, moved_dimensions

aten = torch.ops.aten
_ATTENTION = "scaled_dot_product_attention.default"
_HEAVY = frozenset(("linear.default", "matmul.default", "bmm.default", "mm.default", "addmm.default", _ATTENTION))
_PICKS = ("slice.Tensor", "select.int")
_MOVED = "togi_moved"
"""In the ``meta`` of slices that were moved up: two that changed places must not change back."""
_LAST = (1 << 63) - 1
"""The end of a slice that goes up to the last row."""
_MOVING = ("transpose.int", "mT.default", "permute.default", "unsqueeze.default", "squeeze.dim", "select.int")
_COPYING = ("clone.default", "contiguous.default", "to.dtype", "_to_copy.default")
Rows = dict[str, int]
"""The operands from which is picked, and in which dimension. The others are used whole."""


def drop_unused_rows(graph: EditableGraph) -> int:
    """Move picks up as far as they go. Returns how many matrix products and attentions compute fewer rows."""
    fewer: set[Node] = set()
    while moved := next(filter(None, (_move(graph, node) for node in reversed(graph.nodes))), None):
        if call_name(moved) in _HEAVY:
            fewer.add(moved)
    return len(fewer)


def _as_slice(graph: EditableGraph, select: Node) -> Node:
    """``x[:, 0]`` becomes ``x[:, 0:1].squeeze(1)``. Returns the slice."""
    if is_call(select, "slice.Tensor"):
        return select
    given, (start, end) = arguments(select), _bounds(select) or (0, 0)
    picked = {"self": given["self"], "dim": given["dim"], "start": start, "end": end, "step": 1}
    pick = graph.call_with(aten.slice.Tensor, picked, before=select)
    graph.replace(select, graph.call_with(aten.squeeze.dim, {"self": pick, "dim": given["dim"]}, before=select))
    return pick


def _bounds(pick: Node) -> tuple[int, int] | None:
    """Start and end of what a slice or select keeps, or None where they are computed, or it keeps too much."""
    given = arguments(pick)
    if is_call(pick, "select.int"):
        start, end = given["index"], None
        if type(start) is not int:
            return None
        end = _LAST if start == -1 else start + 1
    else:
        start, end = given["start"] or 0, _LAST if given["end"] is None else given["end"]
        if given["step"] != 1 or type(start) is not int or type(end) is not int:
            return None
    whole = shape(given["self"])[given["dim"]]
    rows_kept = 1 if is_call(pick, "select.int") else shape(pick)[given["dim"]]
    few = type(rows_kept) is int and rows_kept > 0 and (type(whole) is not int or 2 * rows_kept <= whole)
    return (start, end) if few else None


def _move(graph: EditableGraph, pick: Node) -> Node | None:
    """Move a pick above the call it picks from. Returns that call, which computes fewer rows now."""
    if not is_call(pick, *_PICKS) or not pick.users or (bounds := _bounds(pick)) is None:
        return None
    rows = _movable(graph, pick)
    if rows is None:
        return None
    call: Node = arguments(pick)["self"]
    dim = _dim(pick)
    pick, *twins = [_as_slice(graph, user) for user in list(call.users)]
    for twin in twins:
        graph.replace(twin, pick)
    given = arguments(call)
    for name, at in rows.items():
        picked = {"self": given[name], "dim": at, "start": bounds[0], "end": bounds[1], "step": 1}
        given[name] = graph.call_with(aten.slice.Tensor, picked, before=call)
        given[name].meta[_MOVED] = True
    sizes = next((name for name in ("shape", "size") if name in given), None)
    if sizes is not None:
        given[sizes] = [shape(pick)[dim] if at == dim else size for at, size in enumerate(given[sizes])]
    if given.get("is_causal"):
        given["is_causal"] = False  # the last query sees all keys
    set_arguments(call, given)
    graph.propagate([call])
    last = call
    if any(graph.memory.share(pick, output) for output in graph.output.all_input_nodes):
        last = graph.call_with(aten.clone.default, {"self": call, "memory_format": torch.contiguous_format}, pick)
    graph.replace(pick, last)
    return call


def _movable(graph: EditableGraph, pick: Node) -> Rows | None:
    """The operands of the call before from which to pick instead; None where that is not the same."""
    call = arguments(pick)["self"]
    if not isinstance(call, Node) or not call_name(call) or graph.memory.writers(call):
        return None
    if not (pure(call) or is_call(call, _ATTENTION)):  # torch takes it for random, whether or not it drops anything
        return None
    form = call.meta["val"]
    alike = (_dim(pick), _bounds(pick))
    if not isinstance(form, torch.Tensor) or not all(
        is_call(user, *_PICKS) and (_dim(user), _bounds(user)) == alike and _may_be_made_anew(graph, user)
        for user in call.users
    ):
        return None
    rule = _RULES.get(call_name(call))
    if rule is None and torch.Tag.pointwise in call.target.tags:  # type: ignore[union-attr]
        rule = _pointwise
    return rule(call, _dim(pick), pick) if rule is not None else None


def _dim(pick: Node) -> int:
    return int(arguments(pick)["dim"] % len(shape(pick.all_input_nodes[0])))


def _may_be_made_anew(graph: EditableGraph, pick: Node) -> bool:
    """Nobody can tell that the pick has memory of its own: it is not returned, or alone and contiguous."""
    shared = [output for output in graph.output.all_input_nodes if graph.memory.share(pick, output)]
    if not shared:
        return True
    inner = all(root.op == "call_function" for root in graph.memory.roots[pick])
    return inner and len(shared) == 1 and bool(pick.meta["val"].is_contiguous())


# ruff: noqa: ARG001 - all rules have one signature


def _pointwise(node: Node, dim: int, pick: Node) -> Rows | None:
    """Every operand that has the dimension, and not once for all rows."""
    rows = {}
    for name, operand in arguments(node).items():
        if isinstance(operand, list | tuple) and any(isinstance(item, Node) for item in operand):
            return None
        at = _of_operand(node, operand, dim)
        if at is not None:
            if str(shape(operand)[at]) != str(shape(node)[dim]):
                return None
            rows[name] = at
    return rows or None


def _of_operand(node: Node, operand: Any, dim: int) -> int | None:
    """The place where a broadcast operand has dimension ``dim`` of the result, or None where it is the same for all of
    it."""
    at = dim - len(shape(node)) + len(shape(operand))
    return at if shape(operand) and at >= 0 and str(shape(operand)[at]) != "1" else None


def _one(name: str, rule: Callable[[Node, int], int | None]) -> Callable[[Node, int, Node], Rows | None]:
    """The rule of a call that has the rows of one operand."""

    def rows(node: Node, dim: int, pick: Node) -> Rows | None:
        at = rule(node, dim)
        return None if at is None else {name: at}

    return rows


def _not_mixed(node: Node, dim: int) -> int | None:
    return None if dim in mixed_dimensions(node.target, arguments(node), len(shape(node))) else dim


def _product(node: Node, dim: int, pick: Node) -> Rows | None:
    """Rows of the left matrices, columns of the right ones, or the matrices themselves."""
    left, right = node.args[:2]
    rank, names = len(shape(node)), list(arguments(node))[:2]
    if min(len(shape(left)), len(shape(right))) < 2:
        return None  # a vector has no rows
    wanted = {rank - 2: [True, False], rank - 1: [False, True]}.get(dim, [True, True])
    places = {
        n: _of_operand(node, operand, dim) for n, operand, w in zip(names, (left, right), wanted, strict=True) if w
    }
    rows = {name: at for name, at in places.items() if at is not None}
    return rows or None


def _with_bias(node: Node, dim: int, pick: Node) -> Rows | None:
    """Rows of the left matrix, and of the bias where each has its own."""
    if dim != 0:
        return None
    bias = _of_operand(node, arguments(node)["self"], dim)
    return {"mat1": 0, **({} if bias is None else {"self": bias})}


def _attention(node: Node, dim: int, pick: Node) -> Rows | None:
    """Queries, and what a mask says of them."""
    given, rank = arguments(node), len(shape(node))
    if dim != rank - 2 or len(shape(given["query"])) != rank or given["dropout_p"]:
        return None
    if given["is_causal"] and not (
        _bounds(pick) == (-1, _LAST) and str(shape(given["key"])[-2]) == str(shape(given["query"])[-2])
    ):
        return None  # which keys a query sees is told by where it stands
    mask = given["attn_mask"]
    at = None if mask is None else _of_operand(node, mask, dim)
    return {"query": dim, **({} if at is None else {"attn_mask": at})}


def _moved(node: Node, dim: int) -> int | None:
    given = arguments(node)
    return moved_dimensions(node.target, given, shape(given["self"]))[dim]


def _slice(node: Node, dim: int) -> int | None:
    other = arguments(node)["dim"] % len(shape(node)) != dim
    return dim if other and _MOVED not in node.meta else None


def _reshape(node: Node, dim: int) -> int | None:
    """The dimension stays whole, with as much before it."""
    source, target = shape(arguments(node)["self"]), shape(node)
    for at in range(len(source)):
        if str(source[at]) == str(target[dim]) and _amount(source[:at]) == _amount(target[:dim]):
            return at
    return None


def _amount(sizes: tuple[Any, ...]) -> tuple[int, list[str]]:
    """The product, dynamic sizes by name."""
    fixed = [size for size in sizes if type(size) is int]
    return math.prod(fixed), sorted(str(size) for size in sizes if type(size) is not int)


def _expand(node: Node, dim: int, pick: Node) -> Rows | None:
    at = _of_operand(node, arguments(node)["self"], dim)
    return {} if at is None else {"self": at}


_RULES: dict[str, Callable[[Node, int, Node], Rows | None]] = {
    "linear.default": _one("input", lambda node, dim: dim if dim < len(shape(node)) - 1 else None),
    "matmul.default": _product,
    "bmm.default": _product,
    "mm.default": _product,
    "addmm.default": _with_bias,
    _ATTENTION: _attention,
    **dict.fromkeys(("layer_norm.default", "rms_norm.default"), _one("input", _not_mixed)),
    "softmax.int": _one("self", _not_mixed),
    **dict.fromkeys(_MOVING, _one("self", _moved)),
    "slice.Tensor": _one("self", _slice),
    "reshape.default": _one("self", _reshape),
    "expand.default": _expand,
    **dict.fromkeys(_COPYING, _one("self", lambda _node, dim: dim)),
}
"""``(call, dimension of its result, pick)`` -> what to pick from. Other calls are known where torch calls them
pointwise."""
