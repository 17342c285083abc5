"""Evaluates calls of functions and classes of torch."""

from __future__ import annotations

import ast
from dataclasses import replace

from togi.lint.source import torch_api
from togi.lint.source.interpreter.state import ScopeState
from togi.lint.source.interpreter.tensors import common_device, given_device, given_dtype, pair, tensor, tensors_among
from togi.lint.source.syntax import argument, arguments_of, is_constant
from togi.lint.source.value import NUMBER, UNKNOWN, Evidence, Value, ValueKind, list_of

_WRAPPERS_OF_MODULES = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")
_REGISTERED = ("Parameter", "Buffer", "UninitializedParameter", "UninitializedBuffer")
"""What moves with its module, so that nothing is known of its device."""
_NORMS = ("clip_grad_norm_", "clip_grad_norm", "get_total_norm")


def torch_call(state: ScopeState, name: str, node: ast.Call, values: list[Value]) -> Value:
    package, _, last = name.rpartition(".")
    if package == "torch":
        special = _torch_function(state, last, node, values)
        if special is not None:
            return special
    if name in torch_api.NUMBER_FUNCTIONS:
        return NUMBER
    if name == "torch.autograd.Variable" and values and values[0].kind is ValueKind.TENSOR:
        return values[0]
    if name in torch_api.TENSOR_CLASSES:
        return _tensor_class(name, node, values)
    if name == "torch.utils.data.DataLoader":
        return loader(name, node)
    if package.startswith("torch.nn") and last[:1].isupper():
        wrapped = last in _WRAPPERS_OF_MODULES and values and values[0].kind is ValueKind.MODULE
        return values[0] if wrapped else Value(ValueKind.MODULE, qualified=name, evidence=Evidence(node))
    if package.startswith("torch.distributions") and last[:1].isupper():
        tensors = tensors_among([state.values[arg] for arg in arguments_of(node)])
        return Value(qualified=name, device=common_device(tensors) if tensors else None, evidence=Evidence(node))
    if package.startswith("torch.nn.utils") and last in _NORMS:
        return norm_of_gradients(node)
    if package.startswith("torch.optim") and last[:1].isupper():
        kind = ValueKind.OPTIMIZER if "lr_scheduler" not in package else ValueKind.UNKNOWN
        return Value(kind, qualified=name, evidence=Evidence(node))
    if name in torch_api.MODULE_FACTORIES:
        if values and values[0].kind in (ValueKind.MODULE, ValueKind.FUNCTION):
            return values[0]
        return Value(ValueKind.MODULE, certain=False, qualified=name, evidence=Evidence(node))
    if name in torch_api.LIST_FUNCTIONS:
        return list_of(tensor(state, node, values))
    if package == "torch.nn.utils.rnn":
        return tensor(state, node, values) if last == "pad_sequence" else UNKNOWN
    return tensor(state, node, values) if torch_api.returns_tensor(name) else UNKNOWN


def _torch_function(state: ScopeState, last: str, node: ast.Call, values: list[Value]) -> Value | None:
    if last == "device":
        return Value(ValueKind.DEVICE, device=values[0].device if values else None, evidence=Evidence(node))
    if last in ("finfo", "iinfo") or (last == "compile" and not values):
        return UNKNOWN
    if last == "Size":
        return Value(ValueKind.SHAPE)
    if last in torch_api.FACTORIES or last in torch_api.FROM_DATA:
        return _factory_call(state, last, node, values)
    if last in torch_api.LIKE or last.startswith("new_"):
        device = given_device(state, node) or (values[0].device if values else None)
        dtype = given_dtype(state, node)
        return Value(ValueKind.TENSOR, device=device, dtype=dtype, graph=False, evidence=Evidence(node))
    keywords = {keyword.arg for keyword in node.keywords}
    if (last == "where" and len(values) == 1) or (last == "nonzero" and "as_tuple" in keywords):
        return list_of(tensor(state, node, values, dtype="int64"))
    if last in torch_api.PAIR_METHODS:
        return pair(state, last, node, values, node.args[1:])
    if last in ("unique", "unique_consecutive") and keywords & {"return_inverse", "return_counts"}:
        return list_of(tensor(state, node, values))
    return None


def _tensor_class(name: str, node: ast.Call, values: list[Value]) -> Value:
    """``torch.FloatTensor(...)``, ``torch.nn.Parameter(...)``."""
    last = name.rpartition(".")[2]
    if last in _REGISTERED:
        dtype = values[0].dtype if values else None
        return Value(ValueKind.TENSOR, dtype=dtype, graph=True if last == "Parameter" else None)
    return Value(
        ValueKind.TENSOR,
        device=None if "cuda" in name else "cpu",
        dtype=torch_api.TENSOR_CLASSES[name],
        call=node,
        evidence=Evidence(node, "makes a tensor"),
    )


def _factory_call(state: ScopeState, last: str, node: ast.Call, values: list[Value]) -> Value:
    if last in ("as_tensor", "asarray") and values and values[0].kind is ValueKind.TENSOR:
        return replace(values[0], device=given_device(state, node) or values[0].device)
    place = argument(node, "device")
    device = "cpu" if place is None or state.values[place].kind is ValueKind.NONE else state.values[place].device
    dtype = given_dtype(state, node) or ("int64" if last in ("randint", "randperm") else None)
    if last == "tensor" and values and isinstance(values[0].constant, float):
        dtype = dtype or "float32"
    return Value(
        ValueKind.TENSOR,
        device=device,
        dtype=dtype,
        graph=argument(node, "requires_grad") is not None,
        scalar=bool(values) and values[0].kind is ValueKind.NUMBER and last in ("tensor", "as_tensor"),
        call=node,
        evidence=Evidence(node, "makes a tensor" + (" on the CPU" if device == "cpu" else "")),
    )


def norm_of_gradients(node: ast.Call) -> Value:
    return Value(ValueKind.TENSOR, graph=False, scalar=True, evidence=Evidence(node, "is the norm of the gradients"))


def loader(name: str, node: ast.Call) -> Value:
    pinning = argument(node, "pin_memory")
    pinned: bool | None = pinning is not None and not is_constant(pinning, False)
    if pinning is None and any(keyword.arg is None for keyword in node.keywords):
        pinned = None
    return Value(ValueKind.DATALOADER, qualified=name, pinned=pinned, evidence=Evidence(node, "is a DataLoader"))
