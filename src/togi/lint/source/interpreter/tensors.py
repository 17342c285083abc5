"""Evaluates operators, attributes and methods of tensors, and functions that make them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from togi.lint.data.torch_names import torch_names
from togi.lint.source import torch_api
from togi.lint.source.interpreter.state import ScopeState
from togi.lint.source.syntax import argument, arguments_of, is_pairwise, last_name
from togi.lint.source.value import (
    ARRAY,
    NONE,
    NUMBER,
    STRING,
    UNKNOWN,
    Evidence,
    Value,
    ValueKind,
    accelerator_among,
    element_of,
    list_of,
    tuple_of,
)

_BITWISE = (ast.BitAnd, ast.BitOr, ast.BitXor)
_SAME_DTYPE = frozenset(
    """view reshape permute transpose flatten squeeze unsqueeze expand expand_as repeat t flip roll contiguous
    logical_not index_select gather view_as movedim masked_fill clone T narrow""".split()
)
_PLAIN = frozenset([ValueKind.NUMBER, ValueKind.STRING, ValueKind.SHAPE, ValueKind.DTYPE, ValueKind.NONE])
_ELSEWHERE = ("torch.cuda.", "torch.xpu.", "torch.mps.", "torch.distributed.", "torch.ops.")
OF_DISTRIBUTIONS = frozenset(["sample", "rsample", "log_prob", "entropy"])
_OF_CONTAINERS = frozenset(["items", "keys", "values", "get", "pop", "update"])
"""Methods of a batch or of a model's output that may be a dictionary of tensors."""


def tensor_operation(state: ScopeState, node: ast.BinOp | ast.AugAssign, left: Value, right: Value) -> Value:
    """The result of ``node``, at least one of whose operands is a tensor."""
    if {left.kind, right.kind} & {ValueKind.STRING, ValueKind.NONE}:
        return UNKNOWN
    operands = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
    tensors = [value for value in (left, right) if value.kind is ValueKind.TENSOR]
    first = tensors[0]
    two_tensors = len(tensors) == 2
    boolean = isinstance(node.op, _BITWISE) and any(value.dtype == "bool" for value in tensors)
    same = first.dtype if two_tensors and left.dtype == right.dtype and first.dtype != "bool" else None
    return Value(
        ValueKind.TENSOR,
        certain=any(value.certain for value in tensors),
        device=common_device(tensors),
        dtype="bool" if boolean else same,
        graph=state.recorded(tensors),
        scalar=all(value.scalar for value in tensors),
        large=(any(value.large for value in tensors) and not isinstance(node.op, ast.MatMult))
        or (two_tensors and is_pairwise(*operands)),
        evidence=Evidence(node, cause=first),
    )


def tensor_comparison(node: ast.Compare, operands: Sequence[Value]) -> Value:
    """The tensor of truth values that ``operands``, of which at least one is a tensor, compare to."""
    tensors = [value for value in operands if value.kind is ValueKind.TENSOR]
    return Value(
        ValueKind.TENSOR,
        certain=any(value.certain for value in tensors),
        device=common_device(tensors),
        dtype="bool",
        graph=False,
        scalar=all(value.scalar for value in tensors),
        large=any(value.large for value in tensors)
        or (len(tensors) == 2 == len(operands) and is_pairwise(node.left, node.comparators[0])),
        evidence=Evidence(node, cause=tensors[0]),
    )


def tensor(state: ScopeState, node: ast.Call, values: list[Value], *, dtype: str | None = None) -> Value:
    """The tensor that a function of torch makes from ``values``."""
    last = last_name(node.func)
    tensors = tensors_among(values)
    if dtype is None:
        dtype = given_dtype(state, node) or _result_dtype(last)
    counted = dtype in ("bool", "int64")
    pairs = len(node.args) >= 2 and is_pairwise(node.args[0], node.args[1])
    reduced = last in torch_api.REDUCTIONS and len(node.args) == 1 and not node.keywords
    loss = last in torch_api.LOSSES and argument(node, "reduction") is None
    return Value(
        ValueKind.TENSOR,
        device=given_device(state, node) or _made_on(state, node, tensors),
        dtype=dtype,
        graph=False if counted else state.recorded(tensors),
        scalar=reduced or loss,
        large=pairs or last == "cdist" or (any(v.large for v in tensors) and last not in torch_api.CONTRACTING),
        evidence=Evidence(node, "is a tensor", tensors[0] if tensors else None),
    )


def _made_on(state: ScopeState, node: ast.Call, tensors: list[Value]) -> str | None:
    """The device of the tensors; the CPU for results that PyTorch makes there: from a file, from numbers alone."""
    name = state.qualified(node.func) or ""
    if name in torch_api.ON_CPU:
        return "cpu"
    if tensors:
        return common_device(tensors)
    arguments = [state.values.get(arg, UNKNOWN) for arg in arguments_of(node)]
    plain = bool(arguments) and all(value.kind in _PLAIN for value in arguments) and argument(node, "device") is None
    return "cpu" if plain and name.startswith("torch.") and not name.startswith(_ELSEWHERE) else None


def pair(state: ScopeState, last: str, node: ast.Call, values: list[Value], further: list[ast.expr]) -> Value:
    """``max(x)``, ``max(x, dim)``, ``max(x, y)``, ``topk``, ``sort``."""
    result = tensor(state, node, values)
    if last in torch_api.ONLY_WITH_DIM:
        second = state.values.get(further[0], UNKNOWN) if further else UNKNOWN
        dims = (
            bool(further)
            and second.kind is not ValueKind.TENSOR
            and (second.kind is ValueKind.NUMBER or isinstance(further[0], ast.Constant | ast.UnaryOp))
        )
        if not dims and argument(node, "dim") is None:
            return result
    indices = replace(result, dtype="int64", graph=False, scalar=False)
    return tuple_of(replace(result, scalar=False), indices)


def tensor_attribute(base: Value, attr: str, node: ast.Attribute) -> Value:
    if attr == "shape":
        return Value(ValueKind.SHAPE)
    if attr in torch_api.NUMBER_PROPERTIES:
        return NUMBER
    if attr == "device":
        return Value(ValueKind.DEVICE, device=base.device)
    if attr == "dtype":
        return Value(ValueKind.DTYPE, dtype=base.dtype)
    if attr in torch_api.TENSOR_PROPERTIES:
        graph = False if attr in ("data", "grad") else base.graph
        return replace(base, graph=graph, call=None, evidence=Evidence(node, cause=base))
    if base.certain or attr in torch_api.OTHER_PROPERTIES:
        return UNKNOWN
    if not base.batch and attr not in ("loss", "logits", "last_hidden_state", "pooler_output"):
        return UNKNOWN
    evidence = Evidence(node, base.evidence.note, base)
    return replace(base, certain=attr in ("loss", "logits"), scalar=attr == "loss", call=None, evidence=evidence)


def tensor_method(state: ScopeState, base: Value, name: str, node: ast.Call, values: list[Value]) -> Value:
    """What the method ``name`` of a tensor returns."""
    if name in torch_api.NUMBER_METHODS:
        return Value(ValueKind.NUMBER, evidence=Evidence(node, cause=base))
    if name in OF_DISTRIBUTIONS and not base.certain:  # a policy that returns a distribution
        evidence = Evidence(node, base.evidence.note, base)
        return replace(base, graph=False if name == "sample" else base.graph, call=None, evidence=evidence)
    in_container = name in _OF_CONTAINERS and not base.certain
    # A method that tensors do not have tells that something is not a tensor, whatever its annotation says.
    if name.rstrip("_") not in torch_names().tensor_methods and not in_container:
        return UNKNOWN
    if name in torch_api.NONE_METHODS:
        return NONE
    if name in ("size", "stride"):
        return NUMBER if node.args or node.keywords else Value(ValueKind.SHAPE)
    if name == "tolist":
        return NUMBER if base.scalar else list_of(None)
    if name == "numpy":
        return ARRAY
    if name in ("to", "type", "type_as", "cpu", "cuda", "xpu", "pin_memory"):
        return _moved(state, base, name, node)
    return _in_container(base, name) if in_container else _computed(state, base, name, node, values)


def _computed(state: ScopeState, base: Value, name: str, node: ast.Call, values: list[Value]) -> Value:
    if name in torch_api.LIST_METHODS:
        return list_of(replace(base, call=None, evidence=Evidence(node, base.evidence.note, base)))
    if name == "nonzero" and argument(node, "as_tuple") is not None:
        return list_of(replace(base, dtype="int64", graph=False, call=None))
    if name in torch_api.PAIR_METHODS:
        return pair(state, name, node, [base, *values], node.args)
    if name in ("detach", "detach_"):
        return replace(base, graph=False, evidence=Evidence(node, cause=base))
    if name in ("clone", "contiguous", "requires_grad_"):
        return replace(base, graph=True if name == "requires_grad_" and not node.args else base.graph)
    result = tensor(state, node, [base, *values])
    is_view = name in _SAME_DTYPE
    reduces = name in torch_api.REDUCTIONS
    reduces_all = reduces and not node.args and argument(node, "dim") is None
    return replace(
        result,
        certain=base.certain or name in torch_api.TORCH_ONLY or name in torch_api.ARRAY_LIKE,
        device=base.device if base.device is not None else result.device,
        dtype=result.dtype or (base.dtype if is_view else None),
        scalar=reduces_all or (base.scalar and not reduces),
        call=base.call if is_view else None,
        evidence=Evidence(node, cause=base),
    )


def _moved(state: ScopeState, base: Value, name: str, node: ast.Call) -> Value:
    if name == "cpu":
        return replace(base, device="cpu", batch=False, evidence=Evidence(node, "is on the CPU", base))
    if name in ("cuda", "xpu"):
        evidence = Evidence(node, "is on the GPU", base)
        return replace(base, device="cuda", batch=False, call=None, evidence=evidence)
    if name == "pin_memory":
        return replace(base, pinned=True)
    device, moved, dtype = base.device, False, base.dtype
    named = [(k.arg, k.value) for k in node.keywords if k.arg in ("device", "dtype", "other", None)]
    for keyword, arg in [*((None, arg) for arg in node.args), *named]:
        value = state.values[arg]
        if value.kind is ValueKind.DTYPE or keyword == "dtype":
            dtype = value.dtype
        elif value.kind in (ValueKind.DEVICE, ValueKind.STRING, ValueKind.TENSOR) or keyword == "device":
            device, moved = value.device, True
        elif value.kind is ValueKind.UNKNOWN and not _names_dtype(arg):
            device, moved, dtype = None, True, None
        elif value.kind is ValueKind.NUMBER and name == "to" and arg in node.args[:1]:
            device, moved = "cuda", True  # the number of a GPU
        else:
            dtype = value.dtype
    evidence = Evidence(node, cause=base)
    if not moved:
        return replace(base, dtype=dtype, evidence=evidence)
    return replace(base, device=device, dtype=dtype, batch=False, call=None, evidence=evidence)


def _names_dtype(node: ast.expr) -> bool:
    text = last_name(node)
    return "dtype" in text or "precision" in text


def _in_container(base: Value, name: str) -> Value:
    """What a method returns of the dictionary of tensors that ``base`` may be."""
    item = replace(base, call=None)
    match name:
        case "items":
            return list_of(tuple_of(STRING, item))
        case "keys":
            return list_of(STRING)
        case "values":
            return list_of(item)
    return item


def given_device(state: ScopeState, node: ast.Call) -> str | None:
    device = argument(node, "device")
    return state.values[device].device if device is not None else None


def given_dtype(state: ScopeState, node: ast.Call) -> str | None:
    dtype = argument(node, "dtype")
    return state.values[dtype].dtype if dtype is not None else None


def _result_dtype(last: str) -> str | None:
    if last in torch_api.BOOL_RESULTS:
        return "bool"
    if last in torch_api.INT_RESULTS:
        return "int64"
    return torch_api.CASTS.get(last)


def tensors_among(values: list[Value]) -> list[Value]:
    tensors = [value for value in values if value.kind is ValueKind.TENSOR]
    elements = [element_of(value) for value in values if value.kind in (ValueKind.LIST, ValueKind.TUPLE)]
    return tensors + [element for element in elements if element.kind is ValueKind.TENSOR]


def common_device(tensors: Sequence[Value]) -> str | None:
    """Where the result of an operation on ``tensors`` lies: a CPU scalar may join tensors of a device."""
    devices = {value.device for value in tensors}
    return accelerator_among(devices) or ("cpu" if devices == {"cpu"} else None)
