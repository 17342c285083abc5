"""Operators whose body is Python (``torch.library.custom_op``), as what their body calls.

Engines outside of torch know no such operator, and one of torch's own holds a lock while Python runs. A body that can
be traced for the sizes of a graph stands in its place. One loops over what a tensor holds and cannot be traced, though
it computes a sum of products: rows that are sorted by group, each group with a weight of its own (a mixture of
experts). It is known by what it answers, whatever its name is.

A histogram with a range of its own, which counts the rows of each group, is written as comparisons: OpenVINO has none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from togi.torch_internals.bodies import traced_body
from togi.torch_internals.operators import is_python_operator, python_kernel, result_arguments, written_arguments

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_GATHERED_BYTES = 64 << 20
"""So much may the weights of all rows, or of all blocks of rows, take together; else each group is computed for all
rows."""
_MOST_GROUPS = 16
"""Of which each is computed for all rows."""
_MOST_BINS = 256
"""Each is compared with all values."""


def inline_bodies(program: ExportedProgram, device: str) -> None:
    """Put the bodies of Python operators in the places of their calls. One that cannot be traced stays."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        body = None
        if node.target is torch.ops.aten.histc.default:
            body = _traced(node, histogram)
        elif is_python_operator(node.target) and not _writes(node.target) and _results_are_taken_apart(node):
            body = _body_of(node, device)
        if body is not None:
            _inline(graph, node, body)
    program.graph_module.recompile()


def _results_are_taken_apart(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor) or all(user.target is getitem for user in node.users)


def _writes(operator: Any) -> bool:
    return bool(written_arguments(operator) or result_arguments(operator))


def _body_of(node: fx.Node, device: str) -> fx.GraphModule | None:
    """A graph from the node's inputs to its results."""
    kernel = python_kernel(node.target, device)
    for function in (kernel, grouped_product):
        if function is grouped_product and not _is_grouped_product(node, kernel):
            return None
        if (traced := _traced(node, function)) is not None:
            return traced
    return None


def _traced(node: fx.Node, function: Callable[..., Any]) -> fx.GraphModule | None:
    """What a function does with the node's inputs; None where it cannot be traced."""
    try:
        return traced_body(_from_inputs(node, function), [given.meta["val"] for given in node.all_input_nodes])
    except Exception:  # foreign code: a body that reads values, or calls what is not torch
        return None


def _from_inputs(node: fx.Node, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        given = dict(zip(node.all_input_nodes, values, strict=True))
        args, kwargs = fx.map_arg((node.args, node.kwargs), given.__getitem__)
        return function(*args, **kwargs)

    return call


def _inline(graph: fx.Graph, node: fx.Node, body: fx.GraphModule) -> None:
    copies: dict[fx.Node, Any] = {}
    given = iter(node.all_input_nodes)
    results: Any = None
    with graph.inserting_before(node):
        for inner in body.graph.nodes:
            if inner.op == "placeholder":
                copies[inner] = next(given)
            elif inner.op == "output":
                results = fx.map_arg(inner.args[0], copies.__getitem__)
            else:
                copies[inner] = copied = graph.node_copy(inner, copies.__getitem__)
                place: dict[str, Any] = {
                    key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta
                }
                copied.meta = {**({"val": inner.meta["val"]} if "val" in inner.meta else {}), **place}
    if isinstance(results, fx.Node):
        _replace(node, results)
    else:
        for user in list(node.users):  # each takes one of the results
            _replace(user, results[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)


def _replace(node: fx.Node, result: fx.Node) -> None:
    """With the sizes as the rest of the graph names them."""
    if result.op != "placeholder":
        result.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(result)


def grouped_product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Each row times the weight of its group; rows behind the last group are zeros. ``ends``: where each group ends."""
    place = torch.arange(rows.shape[0], device=rows.device)
    group = (ends.unsqueeze(0) <= place.unsqueeze(1)).sum(1)
    count = weights.shape[0]
    if _fits_gathered(rows, weights):
        inside = group.clamp(max=count - 1)
        if (size := _block_of(rows, weights)) == 1:
            product = torch.bmm(rows.unsqueeze(1), _of_groups(weights, inside)).squeeze(1)
        else:
            product = _in_blocks(rows, weights, ends, place, inside, size)
        return torch.where((group < count).unsqueeze(1), product, torch.zeros_like(product))
    mine = group.unsqueeze(0) == torch.arange(count, device=rows.device).unsqueeze(1)
    alone = torch.where(mine.unsqueeze(2), rows.unsqueeze(0), torch.zeros_like(rows).unsqueeze(0))
    return torch.bmm(alone, weights).sum(0)


def histogram(values: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """``torch.histc`` of a range that is given, by comparisons. Raises ValueError for what it is not meant for."""
    if not min < max or not values.is_floating_point() or bins > _MOST_BINS:
        raise ValueError("a histogram whose range values decide, of integers, or of many bins")
    flat = values.flatten()
    place = ((flat - min) / (max - min) * bins).floor().clamp(max=bins - 1)
    inside = (flat >= min) & (flat <= max)
    mine = place.unsqueeze(0) == torch.arange(bins, dtype=values.dtype, device=values.device).unsqueeze(1)
    return (mine & inside.unsqueeze(0)).sum(1).to(values.dtype)


def _in_blocks(rows: Tensor, weights: Tensor, ends: Tensor, place: Tensor, group: Tensor, size: int) -> Tensor:
    """The product of ``size`` rows of a group at once. The last block of a group is filled up with rows of others,
    whose products nobody takes. ``place`` and ``group``: of each row."""
    count, most = weights.shape[0], _blocks(rows, weights, size)
    starts = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    blocks = (ends - starts + size - 1).div(size, rounding_mode="floor")
    until = blocks.cumsum(0)
    first = until - blocks
    block = torch.arange(most, device=rows.device)
    of_block = (until.unsqueeze(0) <= block.unsqueeze(1)).sum(1).clamp(max=count - 1)
    begin = starts.index_select(0, of_block) + (block - first.index_select(0, of_block)) * size
    taken = begin.unsqueeze(1) + torch.arange(size, device=rows.device)
    taken = taken.clamp(min=0, max=rows.shape[0] - 1)  # of a block that no group has, too
    given = rows.index_select(0, taken.flatten()).view(most, size, -1)
    products = torch.bmm(given, _of_groups(weights, of_block)).flatten(0, 1)
    at = (first.index_select(0, group)) * size + place - starts.index_select(0, group)
    return products.index_select(0, at.clamp(min=0, max=most * size - 1))


def _of_groups(weights: Tensor, groups: Tensor) -> Tensor:
    """The weight of each. Layers store them transposed: then rows of memory are gathered, and seen transposed."""
    if weights.stride(-1) == 1:
        return weights.index_select(0, groups)
    return weights.transpose(1, 2).index_select(0, groups).transpose(1, 2)


def _fits_gathered(rows: Tensor, weights: Tensor) -> bool:
    """Whether the weights of each block take little memory together."""
    sizes = (*rows.shape, *weights.shape)
    if not all(isinstance(size, int) for size in sizes):
        return False
    bytes_of_one = weights.shape[1] * weights.shape[2] * weights.element_size()
    return _blocks(rows, weights, _block_of(rows, weights)) * bytes_of_one <= _GATHERED_BYTES


def _block_of(rows: Tensor, weights: Tensor) -> int:
    """How many rows are multiplied at once: as many as a group has in the mean."""
    return max(1, rows.shape[0] // weights.shape[0])


def _blocks(rows: Tensor, weights: Tensor, size: int) -> int:
    """So many hold all rows: each group has one that is not full at most."""
    return rows.shape[0] if size == 1 else rows.shape[0] // size + weights.shape[0]


def _is_grouped_product(node: fx.Node, kernel: Callable[..., Any]) -> bool:
    given = [inner.meta.get("val") for inner in node.all_input_nodes]
    values = [value for value in (*given, node.meta.get("val")) if isinstance(value, Tensor)]
    if len(node.args) != 3 or node.kwargs or [value.dim() for value in values] != [2, 3, 1, 2]:
        return False
    rows, weights, ends, _ = values
    if ends.is_floating_point() or not (_fits_gathered(rows, weights) or _has_few_groups(weights)):
        return False
    return _answers_as_grouped_product(kernel, ends.dtype)


def _has_few_groups(weights: Tensor) -> bool:
    return isinstance(weights.shape[0], int) and weights.shape[0] <= _MOST_GROUPS


@functools.cache
def _answers_as_grouped_product(kernel: Callable[..., Any], dtype: torch.dtype) -> bool:
    """Ask it: for groups of any size, empty ones, and rows behind the last."""
    generator = torch.Generator().manual_seed(0)
    for ends in ([2, 5, 6, 9], [0, 0, 9, 9], [9, 9, 9, 9], [1, 1, 4, 7], [0, 0, 0, 0]):
        rows = torch.randn(9, 3, generator=generator)
        weights, at = torch.randn(4, 3, 5, generator=generator), torch.tensor(ends, dtype=dtype)
        try:
            with torch.no_grad():
                answer = kernel(rows.clone(), weights.clone(), at.clone())
        except Exception:  # foreign code: it wants something else
            return False
        expected = grouped_product(rows, weights, at)
        if not isinstance(answer, Tensor) or answer.shape != expected.shape or answer.dtype != expected.dtype:
            return False
        if not torch.allclose(answer, expected, rtol=1e-5, atol=1e-5):
            return False
    return True
