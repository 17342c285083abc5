"""Finds where a call of a captured graph carries the channels of its argument: the calls that treat channels
separately."""

# ruff: noqa: ARG001 - all rules have one signature

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from togi.graph.edit import EditableGraph, arguments, call_name, shape
from togi.torch_internals.dimensions import moved_dimensions, reduced_dimensions

_POINTWISE = (
    "relu relu6 hardtanh leaky_relu elu selu celu gelu silu mish hardswish hardsigmoid sigmoid tanh softplus softsign "
    "clamp clamp_min clamp_max neg abs square threshold dropout feature_dropout clone contiguous to alias detach "
    "softshrink hardshrink tanhshrink log_sigmoid"
)
POINTWISE = frozenset(name + place for name in _POINTWISE.split() for place in ("", "_"))
"""By base name. Each is finite at zero, and at what the others give for zero. A limit may be a tensor with a value for
each channel (``clamp``), which nothing pads: such calls are left."""
ARITHMETIC = frozenset(f"{name}{place}.Tensor" for name in ("add", "sub", "mul", "div") for place in ("", "_"))
POOLS = {f"{kind}{n}d.default": n for kind in ("max_pool", "avg_pool", "adaptive_avg_pool") for n in (1, 2, 3)} | {
    f"upsample_{kind}.{form}": n
    for kind, n in (("nearest2d", 2), ("bilinear2d", 2), ("nearest1d", 1), ("nearest3d", 3), ("bicubic2d", 2))
    for form in ("vec", "default")
}
"""Calls on spatial dimensions, and how many of those they take."""


def carried_to(graph: EditableGraph, node: Node, source: Node, dim: int) -> int | None:
    """The dimension of ``node``'s result that holds dimension ``dim`` of its argument ``source`` (not negative)."""
    name = call_name(node)
    if not name or not shape(node) or type(shape(source)[dim]) is not int:
        return None
    if name.partition(".")[0] in POINTWISE:
        alone = not any(shape(other) for other in node.all_input_nodes if other is not source)
        return dim if node.args[0] is source and alone and len(shape(node)) == len(shape(source)) else None
    if name in POOLS:
        spatial = len(shape(source)) - POOLS[name]
        return dim if node.args[0] is source and dim == spatial - 1 else None
    rule = _RULES.get(name)
    return rule(graph, node, source, dim) if rule is not None else None


def _batch_norm(graph: EditableGraph, node: Node, source: Node, dim: int) -> int | None:
    given = arguments(node)
    held = [given[key] for key in ("weight", "bias", "running_mean", "running_var") if given[key] is not None]
    known = not given["training"] and given["running_mean"] is not None
    return (
        1
        if known and given["input"] is source and dim == 1 and all(graph.constant(t) is not None for t in held)
        else None
    )


def _arithmetic(graph: EditableGraph, node: Node, source: Node, dim: int) -> int | None:
    out = dim + len(shape(node)) - len(shape(source))
    other = arguments(node)["other"]
    if call_name(node).startswith("div") and (type(other) not in (int, float) or other == 0):
        return None  # zeros by zeros
    return out if shape(source)[dim] != 1 and str(shape(node)[out]) == str(shape(source)[dim]) else None


def _padding(graph: EditableGraph, node: Node, source: Node, dim: int) -> int | None:
    """Padding of the dimensions after the channels."""
    pads = arguments(node)["pad"]
    return dim if node.args[0] is source and dim < len(shape(source)) - len(pads) // 2 else None


def _reduction(graph: EditableGraph, node: Node, source: Node, dim: int) -> int | None:
    """A mean or sum over other dimensions."""
    given = arguments(node)
    gone = reduced_dimensions(given, len(shape(source)))
    if dim in gone:
        return None
    return dim if given["keepdim"] else dim - sum(d < dim for d in gone)


def _moved(graph: EditableGraph, node: Node, source: Node, dim: int) -> int | None:
    dims = moved_dimensions(node.target, arguments(node), shape(source))
    return dims.index(dim) if dim in dims else None


def _reshape(graph: EditableGraph, node: Node, source: Node, dim: int) -> int | None:
    """Only what comes after the channels is joined, to itself or to the channels; what comes before stays."""
    before, after = [str(n) for n in shape(source)], [str(n) for n in shape(node)]
    if before[:dim] != after[:dim] or len(after) <= dim:
        return None
    if before[dim] == after[dim]:
        return dim
    static = all(type(size) is int for size in shape(source)[dim:])
    return dim if static and len(after) == dim + 1 else None


_Rule = Callable[[EditableGraph, Node, Node, int], int | None]
_RULES: dict[str, _Rule] = {
    "batch_norm.default": _batch_norm,
    "constant_pad_nd.default": _padding,
    "pad.default": _padding,
    "mean.dim": _reduction,
    "sum.dim_IntList": _reduction,
    **dict.fromkeys(("permute.default", "transpose.int", "unsqueeze.default", "squeeze.dim"), _moved),
    "reshape.default": _reshape,
    "flatten.using_ints": _reshape,
    "cat.default": lambda _graph, _node, _source, dim: dim,
    **dict.fromkeys(ARITHMETIC, _arithmetic),
}
