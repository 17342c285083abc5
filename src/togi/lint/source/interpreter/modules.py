"""Evaluates attributes, methods and calls of modules."""

from __future__ import annotations

import ast
from dataclasses import replace

from togi.lint.source import torch_api
from togi.lint.source.hints import guessed
from togi.lint.source.interpreter.state import ScopeState
from togi.lint.source.interpreter.tensors import common_device
from togi.lint.source.syntax import arguments_of
from togi.lint.source.value import (
    ACCELERATORS,
    NONE,
    NUMBER,
    STRING,
    UNKNOWN,
    Evidence,
    Value,
    ValueKind,
    list_of,
    tuple_of,
)

_ANY_MODULE = ("torch.nn.Module", "torch.nn.Sequential")


def module_call(state: ScopeState, module: Value, node: ast.Call, values: list[Value]) -> Value:
    """What calling ``module`` returns."""
    device = common_device([value for value in values if value.kind is ValueKind.TENSOR])
    returned = Value(
        ValueKind.TENSOR,
        device=device if device in ACCELERATORS else module.device,
        graph=state.grad,
        evidence=Evidence(node, f"is what {ast.unparse(node.func)} returns", module if module.evidence.note else None),
    )
    if isinstance(module.definition, ast.ClassDef):
        return _own_module_call(state, module.definition, returned)
    name = module.qualified or ""
    last = name.rpartition(".")[2]
    if not name.startswith("torch.nn.") or name in _ANY_MODULE:
        return replace(returned, certain=False)
    if last in torch_api.TUPLE_MODULES:
        return tuple_of(returned, replace(returned, certain=False))
    if name in torch_api.CONTAINERS:
        return UNKNOWN
    return replace(returned, scalar=last == "loss" or last.endswith("Loss"))


def _own_module_call(state: ScopeState, definition: ast.ClassDef, returned: Value) -> Value:
    forward = state.flow.classes.method(definition, "forward")
    result = state.flow.result(forward) if forward is not None else UNKNOWN
    if result.kind is ValueKind.TENSOR:
        evidence = replace(returned.evidence, cause=None)
        return replace(result, device=returned.device, graph=returned.graph, call=None, evidence=evidence)
    if result.kind is ValueKind.UNKNOWN:
        return replace(returned, certain=False)
    return replace(result, call=None)


def module_method(state: ScopeState, base: Value, name: str, node: ast.Call, values: list[Value]) -> Value | None:
    if isinstance(base.definition, ast.ClassDef) and state.flow.classes.method(base.definition, name) is not None:
        return None
    match name:
        case "cpu" | "cuda":
            return replace(base, device=name)
        case "to" | "xpu":
            arguments = [state.values[arg] for arg in arguments_of(node)]
            devices = [value.device for value in arguments if value.kind in (ValueKind.DEVICE, ValueKind.STRING)]
            return replace(base, device=devices[0] if devices else None)
        case "register_buffer" | "register_parameter" if len(values) >= 2:
            _register(state, base, values)
            return NONE
        case "forward" | "__call__":
            return module_call(state, base, node, values)
        case "parameters" | "buffers":
            return list_of(_parameter_of(base))
        case "named_parameters" | "named_buffers":
            return list_of(tuple_of(STRING, _parameter_of(base)))
        case "modules" | "children" | "values":
            return list_of(Value(ValueKind.MODULE))
        case "named_modules" | "named_children" | "items":
            return list_of(tuple_of(STRING, Value(ValueKind.MODULE)))
        case "state_dict" | "load_state_dict" | "keys" | "append":
            return UNKNOWN
        case "encode" | "decode" | "generate" | "forward_features" | "predict" if base.definition is None:
            return Value(ValueKind.TENSOR, certain=False, device=base.device)
    return base if name in torch_api.SAME_MODULE else None


def _parameter_of(module: Value) -> Value:
    return Value(ValueKind.TENSOR, certain=False, device=module.device, graph=True)


def _register(state: ScopeState, base: Value, values: list[Value]) -> None:
    name, value = values[0].constant, values[1]
    if isinstance(name, str) and isinstance(base.definition, ast.ClassDef):
        registered = Value(ValueKind.TENSOR, dtype=value.dtype) if value.kind is ValueKind.TENSOR else value
        state.flow.keep(base.definition, name, registered)


def module_attribute(base: Value, attr: str) -> Value:
    if attr in ("weight", "bias", "running_mean", "running_var", "in_proj_weight"):
        return Value(ValueKind.TENSOR, device=base.device, certain=False)
    if attr == "training":
        return NUMBER
    if attr == "device":
        return Value(ValueKind.DEVICE, device=base.device)
    if attr == "dtype":
        return Value(ValueKind.DTYPE)
    if attr == "module" and base.definition is None:
        return base
    if attr in torch_api.CONTAINER_ATTRIBUTES and base.definition is None:
        return UNKNOWN
    return guessed(attr)
