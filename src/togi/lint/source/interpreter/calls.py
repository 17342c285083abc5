"""Evaluates calls: functions of torch, of other libraries and of the file, classes, builtins, containers."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from togi.lint.source import torch_api
from togi.lint.source.hints import PASSING_ON, guessed
from togi.lint.source.interpreter.expressions import attribute_of
from togi.lint.source.interpreter.modules import module_call, module_method
from togi.lint.source.interpreter.state import ScopeState, key
from togi.lint.source.interpreter.tensors import OF_DISTRIBUTIONS, tensor, tensor_method
from togi.lint.source.interpreter.torch_functions import loader, norm_of_gradients, torch_call
from togi.lint.source.value import (
    ARRAY,
    NONE,
    NUMBER,
    STRING,
    UNKNOWN,
    Evidence,
    Value,
    ValueKind,
    element_of,
    iterate,
    join_all,
    list_of,
    tuple_of,
)

_LOADERS = ("DataLoader", "StatefulDataLoader")
"""Names of classes, also of libraries that build on PyTorch's."""
_PRETRAINED = re.compile(r"Model|For[A-Z]")
"""In the name of a class with ``from_pretrained``: it makes a model, not a tokenizer or a configuration."""
_NUMBERS = frozenset(
    """float int bool complex len isinstance issubclass hasattr callable any all id hash ord round divmod""".split()
)
_STRINGS = frozenset("str repr format chr input hex bin ascii".split())
_ITERABLES = frozenset(["iter", "reversed", "sorted", "list", "tuple", "set", "frozenset"])


def call(state: ScopeState, node: ast.Call) -> Value:
    func = node.func
    name = state.qualified(func)
    base = state.evaluate(func.value) if name is None and isinstance(func, ast.Attribute) else None
    values = [state.evaluate(arg) for arg in node.args]
    for keyword in node.keywords:
        state.evaluate(keyword.value)
    if name is not None:
        return _call_of_name(state, name, node, values)
    if base is not None and isinstance(func, ast.Attribute):
        return _call_of_attribute(state, base, func, node, values)
    return _call_of_value(state, state.evaluate(func), node, values)


def _call_of_attribute(
    state: ScopeState, base: Value, func: ast.Attribute, node: ast.Call, values: list[Value]
) -> Value:
    result = _method(state, base, func, node, values)
    if result is not None:
        return result
    dotted = state.env.get(f"{func.value.id}.{func.attr}") if isinstance(func.value, ast.Name) else None
    state.values[func] = callee = dotted or attribute_of(state, base, func)
    return _call_of_value(state, callee, node, values)


def _call_of_value(state: ScopeState, callee: Value, node: ast.Call, values: list[Value]) -> Value:
    if callee.kind is ValueKind.MODULE:
        return module_call(state, callee, node, values)
    if isinstance(callee.definition, ast.ClassDef) and callee.kind is ValueKind.CLASS:
        return replace(state.flow.instance(callee.definition), evidence=Evidence(node))
    if callee.definition is not None and callee.kind is ValueKind.FUNCTION:
        result = state.flow.result(callee.definition)
        return replace(result, call=None) if result.call is not None else result
    if callee.qualified is not None and callee.kind in (ValueKind.FUNCTION, ValueKind.CLASS):
        return _call_of_name(state, callee.qualified, node, values)
    if _is_submodule_call(state, node.func) and values and values[0].kind is ValueKind.TENSOR:
        return Value(
            ValueKind.TENSOR,
            certain=False,
            device=values[0].device,
            graph=state.recorded([Value(graph=True)]),
            evidence=Evidence(node, f"is what {ast.unparse(node.func)} returns", values[0]),
        )
    return UNKNOWN


def _is_submodule_call(state: ScopeState, func: ast.expr) -> bool:
    """``self.NAME(...)`` in a module, where NAME is none of its methods: a submodule, most likely."""
    if not (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self"):
        return False
    owner = state.env.get("self", UNKNOWN)
    return owner.kind is ValueKind.MODULE and isinstance(owner.definition, ast.ClassDef)


def _call_of_name(state: ScopeState, name: str, node: ast.Call, values: list[Value]) -> Value:
    """What calling the imported or builtin ``name`` returns."""
    if "." not in name:
        return _builtin_call(state, name, node, values)
    root = name.partition(".")[0]
    if root == "torch":
        if name == "torch.utils.checkpoint.checkpoint" and values:
            return _call_of_value(state, values[0], node, values[1:])
        return torch_call(state, name, node, values)
    if root in ("numpy", "cupy", "scipy", "jax"):
        last = name.rpartition(".")[2]
        return NUMBER if last in torch_api.NUMPY_NUMBERS else ARRAY
    if root in ("math", "time", "random", "statistics"):
        return NUMBER
    return _library_call(state, name, node, values)


# Functions of other libraries and of Python


def _library_call(state: ScopeState, name: str, node: ast.Call, values: list[Value]) -> Value:
    last = name.rpartition(".")[2]
    if last in PASSING_ON and values:
        return values[0]
    if last in _LOADERS:
        return loader(name, node)
    if last[:1].islower() and name.startswith(torch_api.MODEL_LIBRARIES):
        return Value(ValueKind.MODULE, qualified=name, evidence=Evidence(node))
    if last == "from_pretrained" and _PRETRAINED.search(name):
        return Value(ValueKind.MODULE, qualified=name, evidence=Evidence(node))
    if name.startswith("torchmetrics.") and last[:1].isupper():
        return Value(ValueKind.MODULE, qualified=name, evidence=Evidence(node))
    if name == "copy.deepcopy" and values:
        return values[0]
    if torch_api.returns_tensor(name):
        return tensor(state, node, values)
    if name.startswith("einops.") and values:
        return replace(values[0], call=None) if values[0].kind in (ValueKind.TENSOR, ValueKind.NDARRAY) else UNKNOWN
    return STRING if last in ("Path", "PurePath") else UNKNOWN


def _builtin_call(state: ScopeState, name: str, node: ast.Call, values: list[Value]) -> Value:
    first = values[0] if values else UNKNOWN
    if name in ("abs", "round") and first.kind is ValueKind.TENSOR:
        return replace(first, call=None)
    if name in _NUMBERS:
        return NUMBER
    if name in _STRINGS:
        return STRING
    if name in _ITERABLES:
        return _list_call(first, node, name)
    match name:
        case "print":
            return NONE
        case "range":
            return list_of(NUMBER)
        case "enumerate":
            return list_of(tuple_of(NUMBER, iterate(first)))
        case "zip":
            return list_of(tuple_of(*map(iterate, values)))
        case "next":
            return iterate(first)
        case "sum":
            return _sum(first)
        case "max" | "min":
            return join_all(values) if len(values) > 1 else iterate(first)
        case "abs":
            return first
        case "super" if "self" in state.env:
            return replace(state.env["self"], definition=None)
        case "dict":
            elements = [state.values[keyword.value] for keyword in node.keywords]
            return Value(ValueKind.DICT, element=join_all(elements) if elements else None)
    return UNKNOWN


def _list_call(first: Value, node: ast.Call, name: str) -> Value:
    if not node.args:
        return list_of(None)
    if first.kind in (ValueKind.DATALOADER, ValueKind.LIST):
        return first
    if first.kind is ValueKind.TUPLE and name != "set":
        return first if name in ("list", "tuple") else list_of(element_of(first))
    element = iterate(first)
    return list_of(element if element.kind is not ValueKind.UNKNOWN else None)


def _sum(first: Value) -> Value:
    element = iterate(first)
    if element.kind is ValueKind.TENSOR:
        return replace(element, call=None)
    return NUMBER if element.kind is ValueKind.NUMBER else UNKNOWN


# Methods


def _method(state: ScopeState, base: Value, func: ast.Attribute, node: ast.Call, values: list[Value]) -> Value | None:
    """What ``base.NAME(...)`` returns; None where NAME is an attribute that is called."""
    if func.attr == "clip_grad_norm_":
        return norm_of_gradients(node)
    match base.kind:
        case ValueKind.TENSOR:
            return tensor_method(state, base, func.attr, node, values)
        case ValueKind.MODULE:
            return module_method(state, base, func.attr, node, values)
        case ValueKind.NDARRAY:
            return NUMBER if func.attr == "item" else list_of(None) if func.attr == "tolist" else ARRAY
        case ValueKind.LIST | ValueKind.TUPLE | ValueKind.DICT:
            return _container_method(base, func.attr)
        case ValueKind.STRING:
            return STRING
        case ValueKind.NUMBER:
            return NUMBER
        case ValueKind.OPTIMIZER:
            return UNKNOWN
        case ValueKind.UNKNOWN if base.definition is None:
            return _unknown_method(state, base, func, node, values)
    return None


def _container_method(base: Value, name: str) -> Value:
    element = element_of(base)
    match name:
        case "items":
            return list_of(tuple_of(UNKNOWN, element))
        case "values":
            return list_of(element)
        case "copy":
            return Value(base.kind, element=element)
        case "pop" | "get" | "setdefault" | "popleft":
            return element
        case "index" | "count":
            return NUMBER
        case "keys":
            return list_of(None)
        case "append" | "extend" | "update":
            return NONE
    return UNKNOWN


def _unknown_method(
    state: ScopeState, base: Value, func: ast.Attribute, node: ast.Call, values: list[Value]
) -> Value | None:
    name = func.attr
    if name in OF_DISTRIBUTIONS:
        is_distribution = (base.qualified or "").startswith("torch.distributions.")
        if is_distribution or name in ("log_prob", "rsample"):
            graph = state.recorded([Value(graph=True)]) if name != "sample" else False
            return Value(
                ValueKind.TENSOR, certain=is_distribution, device=base.device, graph=graph, evidence=Evidence(node)
            )
    named = guessed(name)
    if named.kind is ValueKind.DATALOADER:  # trainer.get_train_dataloader()
        return named
    if name == "item" or name not in torch_api.TORCH_ONLY or name in torch_api.NOT_TELLING:
        return None
    tensor = Value(ValueKind.TENSOR, evidence=Evidence(func.value, f"is a tensor, as {name} tells"))
    variable = key(func.value)
    if variable is not None and variable in state.env:
        state.env[variable] = tensor
    return tensor_method(state, tensor, name, node, values)
