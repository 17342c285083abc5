"""Attention in a captured graph: what is written out as ``scaled_dot_product_attention``, and what a mask hides all
keys from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.fx import Node

from togi.graph.composites import unwritten
from togi.graph.edit import EditableGraph, arguments, call_name, is_call, same_form, set_arguments, shape, value
from togi.graph.polynomial import number

aten = torch.ops.aten
_PRODUCTS = ("matmul.default", "bmm.default")
_PERMUTES = ("transpose.int", "permute.default")
_CASTS = ("to.dtype", "_to_copy.default", "type_as.default", "to.other")
_SCALINGS = tuple(f"{name}.{kind}" for name in ("mul", "div") for kind in ("Tensor", "Scalar"))
_SUMS_OF_PRODUCTS = ("matmul.", "bmm.", "mm.", "addmm.", "baddbmm.", "einsum.", "linear.", "conv")
"""Where an element that is infinite is no more the one element that it was. Users give masks as they are."""
_HIDDEN = -1e9
"""What a score is set to that shall count for nothing; added to by no other score."""


@dataclass(frozen=True, kw_only=True)
class _Scores:
    """``query @ keys * scale + added``, or with minus infinity where ``hidden``."""

    query: Node
    keys: Node
    """``[..., width, keys]``."""
    scale: float = 1.0
    added: Node | None = None
    hidden: Node | None = None
    """Boolean."""
    kept: Node | None = None
    """Boolean, the opposite of ``hidden``."""

    @property
    def mask(self) -> Node | None:
        return self.added or self.hidden or self.kept


def fuse_attention(graph: EditableGraph) -> int:
    """``softmax(q k^T * scale + mask) v`` becomes one call. Returns how many.

    Left alone: probabilities that something else uses; scores to which anything else is done; a mask that may hide all
    keys from a query with minus infinity, which is NaN when it is written out, and 0 in the operator.
    """
    return sum(_fuse(graph, node) for node in graph.nodes if is_call(node, "softmax.int"))


def answer_hidden_queries(module: fx.GraphModule) -> None:
    """Attention in which every query sees a key, with the same answers.

    A boolean mask may hide all keys from a query: that of the padding before a short prompt. torch answers 0; an engine
    that writes the softmax out divides nothing by nothing. Here such a query sees all keys, and its answer is set to 0.
    """
    shown: dict[Node, tuple[Node, Node]] = {}
    for node in module.graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default):
        given = arguments(node)
        mask = given["attn_mask"]
        if mask is None or mask.meta["val"].dtype != torch.bool:
            continue
        if mask not in shown:
            with module.graph.inserting_before(node):
                hidden = _called(
                    module.graph, aten.logical_not.default, _called(module.graph, aten.any.dim, mask, -1, True)
                )
                shown[mask] = hidden, _called(module.graph, aten.logical_or.default, mask, hidden)
        hidden, given["attn_mask"] = shown[mask]
        set_arguments(node, given)
        with module.graph.inserting_after(node):
            answer = _called(module.graph, aten.masked_fill.Scalar, node, hidden, 0.0)
        node.replace_all_uses_with(answer, delete_user_cb=lambda user, kept=answer: user is not kept)
    module.recompile()


def _called(graph: fx.Graph, operator: Any, *args: Any) -> Node:
    node = graph.call_function(operator, args)
    with torch.no_grad():
        node.meta["val"] = operator(*fx.map_arg(args, lambda n: n.meta["val"]))
    return node


def _fuse(graph: EditableGraph, softmax: Node) -> bool:
    given, rank = arguments(softmax), len(shape(softmax))
    probabilities = _through_casts(softmax)
    root = next(iter(probabilities.users), None)
    if rank not in (3, 4) or given["dim"] not in (-1, rank - 1) or not same_form(softmax, given["self"]):
        return False
    if root is None or len(probabilities.users) != 1 or not is_call(root, *_PRODUCTS):
        return False
    values, scores = root.args[1], _scores(graph, given["self"])
    if scores is None or root.args[0] is not probabilities or not _fit(scores, values):
        return False
    assert isinstance(values, Node)
    read = [node for node in (scores.query, scores.keys, values, scores.mask) if node is not None]
    if not all(unwritten(graph, node, root) for node in read) or not _mask_fits(graph, scores, softmax):
        return False
    _insert(graph, root, scores, values)
    return True


def _through_casts(node: Node) -> Node:
    """The last of the casts to the same dtype that follow."""
    users = list(node.users)
    cast = len(users) == 1 and is_call(users[0], *_CASTS) and same_form(users[0], node)
    return _through_casts(users[0]) if cast else node


def _scores(graph: EditableGraph, node: Any) -> _Scores | None:
    """The call that makes the scores ``node``; None where that is something else, or has other users."""
    if not isinstance(node, Node) or len(node.users) != 1:
        return None
    if is_call(node, *_PRODUCTS):
        query, keys = node.args[:2]
        return _Scores(query=query, keys=keys) if isinstance(query, Node) and isinstance(keys, Node) else None
    for inner, change in _steps(graph, node):
        scores = _scores(graph, inner) if same_form(inner, node) else None
        if scores is not None:
            plain = scores.mask is None or not change  # what is masked already is not scaled or masked again
            return replace(scores, **{**change, "scale": scores.scale * change.get("scale", 1.0)}) if plain else None
    return None


def _steps(graph: EditableGraph, node: Node) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The ways to read a call as one step from other scores to these, with what it adds to them."""
    if is_call(node, *_CASTS):
        yield node.args[0], {}
    elif is_call(node, *_SCALINGS):
        given = arguments(node)
        factor, divides = number(graph, given["other"]), call_name(node).startswith("div")
        if factor:
            yield given["self"], {"scale": 1 / factor if divides else factor}
    elif is_call(node, "add.Tensor") and arguments(node)["alpha"] == 1:
        one, other = node.args[:2]
        if isinstance(other, Node):  # a number is not a mask
            yield one, {"added": other}
            yield other, {"added": one}
    elif is_call(node, "masked_fill.Scalar", "masked_fill.Tensor"):
        given = arguments(node)
        if _hides(graph, given["value"]):
            yield given["self"], {"hidden": given["mask"]}
    elif is_call(node, "where.self", "where.ScalarOther"):
        given = arguments(node)
        if _hides(graph, given["other"]):
            yield given["self"], {"kept": given["condition"]}


def _hides(graph: EditableGraph, fill: Any) -> bool:
    number_filled = number(graph, fill)
    return number_filled is not None and number_filled <= _HIDDEN


def _fit(scores: _Scores, values: Any) -> bool:
    """True if queries, keys and values are matrices of one dtype for the same batch and heads."""
    tensors = [value(node) for node in (scores.query, scores.keys, values)]
    if any(tensor is None or not tensor.dtype.is_floating_point for tensor in tensors):
        return False
    return len({(str(tuple(t.shape[:-2])), t.dtype, t.dim()) for t in tensors if t is not None}) == 1


def _mask_fits(graph: EditableGraph, scores: _Scores, softmax: Node) -> bool:
    """True if the operator takes the mask, and gives the same where it hides much."""
    if scores.mask is None:
        return True
    form, constant = value(scores.mask), graph.constant(scores.mask)
    if form is None or form.dim() < 2:
        return False
    if scores.added is not None:
        alike = form.dtype == softmax.meta["val"].dtype
        if constant is None:
            return alike and not _may_be_infinite(graph, scores.added)
        return alike and not bool((constant == -math.inf).all(-1).any())
    if constant is None or constant.dtype != torch.bool:
        return False
    return not bool((constant if scores.hidden is not None else ~constant).all(-1).any())


def _may_be_infinite(graph: EditableGraph, mask: Node) -> bool:
    """True if it may hold minus infinity: floats given from outside lead to it, but for those in products, or it is
    computed with infinity or a logarithm."""
    if any(root.op == "placeholder" for root in graph.memory.roots[mask]):
        return True
    open_, seen = [(mask, True)], {(mask, True)}
    while open_:
        node, as_given = open_.pop()
        if (form := value(node)) is not None and not form.dtype.is_floating_point:
            continue  # truth values and integers are finite
        if as_given and node.op == "placeholder":
            return True
        if (constant := graph.constant(node)) is not None:
            if constant.is_floating_point() and constant.isinf().any():
                return True
            continue
        numbers = [item for item in (*node.args, *node.kwargs.values()) if isinstance(item, float)]
        if any(map(math.isinf, numbers)) or call_name(node).startswith(("log.", "log1p.", "log2.", "log10.")):
            return True
        as_given = as_given and not call_name(node).startswith(_SUMS_OF_PRODUCTS)
        sources = {(source, as_given) for source in node.all_input_nodes} - seen
        open_ += sources
        seen |= sources
    return False


def _insert(graph: EditableGraph, root: Node, scores: _Scores, values: Node) -> None:
    def call(operator: Any, **given: Any) -> Node:
        return graph.call_with(operator, given, before=root)

    rank, mask = len(shape(root)), scores.mask
    query, keys = scores.query, call(aten.transpose.int, self=scores.keys, dim0=-2, dim1=-1)
    if mask is not None and scores.hidden is not None:
        mask = call(aten.logical_not.default, self=mask)
    if mask is not None and len(shape(mask)) == 3:
        mask = call(aten.unsqueeze.default, self=mask, dim=1 if rank == 3 else 0)
    if rank == 3:  # the fused kernels know heads alone
        query, keys, values = (call(aten.unsqueeze.default, self=node, dim=1) for node in (query, keys, values))
    fused = call(
        aten.scaled_dot_product_attention.default,
        query=query,
        key=keys,
        value=values,
        attn_mask=mask,
        dropout_p=0.0,
        is_causal=False,
        scale=scores.scale,
        enable_gqa=False,
    )
    if rank == 3:
        fused = call(aten.squeeze.dim, self=fused, dim=1)
    if not all(_lays_out_anew(user) for user in root.users):  # the kernels put heads next to each other
        fused = call(aten.contiguous.default, self=fused, memory_format=torch.contiguous_format)
    graph.replace(root, fused)
    graph.propagate(user for user in fused.users if is_call(user, *_PERMUTES))


def _lays_out_anew(user: Node) -> bool:
    """It brings the dimensions into another order, and only what copies them into that order follows."""
    copies = ("reshape.default", "contiguous.default", "flatten.using_ints")
    return is_call(user, *_PERMUTES) and all(
        is_call(next_, *copies)
        or (is_call(next_, "clone.default") and arguments(next_)["memory_format"] is torch.contiguous_format)
        for next_ in user.users
    )
